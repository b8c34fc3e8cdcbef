//! Test bench: one adapter with one server.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_http::HttpAdapter;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::initialize;
use serde_json::{Value, json};

use crate::server::{SECRET, Server};

pub(crate) struct Bench {
    pub(crate) adapter: HttpAdapter,
    pub(crate) server: Server,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let server = Server::start().await;
        Self {
            adapter: initialize(config(&server.url)).await,
            server,
        }
    }

    pub(crate) fn request(&self, message: &str) -> ExecutionRequest {
        ExecutionRequest::sample(message)
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(self.request(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }
}

pub(crate) fn config(url: &str) -> Value {
    json!({"url": url, "token": "t0ken", "secret": SECRET, "headers": {"x-team": "blue"}, "callback": {},
        "poll_seconds": 0.02, "silence_seconds": 2.0})
}
