//! Test bench: one adapter with one server.

use std::time::Duration;

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_http::HttpAdapter;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::server::{SECRET, Server};

pub(crate) struct Bench {
    pub(crate) adapter: HttpAdapter,
    pub(crate) server: Server,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let server = Server::start().await;
        let config = config(&server.url);
        Self {
            adapter: HttpAdapter::initialize(Host::detached(), Config::try_from(config).unwrap())
                .await
                .unwrap(),
            server,
        }
    }

    pub(crate) fn request(&self, message: &str) -> ExecutionRequest {
        ExecutionRequest::sample(message)
    }

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(self.request(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        self.run_until(request, "", async || {}).await
    }

    /// Runs a request, and `act` concurrently from the first event of this kind.
    pub(crate) async fn run_until(
        &self,
        request: ExecutionRequest,
        kind: &str,
        act: impl AsyncFnOnce(),
    ) -> Ran {
        let (events, mut received) = Events::channel(10_000);
        let (begin, begun) = oneshot::channel::<()>();
        let acting = async {
            if begun.await.is_ok() {
                act().await;
            }
        };
        let collecting = async {
            let mut begin = Some(begin);
            let mut seen = Vec::new();
            while let Some(event) = received.recv().await {
                if event.kind == kind
                    && let Some(begin) = begin.take()
                {
                    // `act` is skipped when the execution has already ended.
                    let _ = begin.send(());
                }
                seen.push(event);
            }
            seen
        };
        let execution = self.adapter.execute(request, events);
        let (result, events, ()) = tokio::join!(execution, collecting, acting);
        let result = result.unwrap_or_else(|error| ExecutionResult {
            retryable: Some(error.retryable),
            retry_after_ms: error.retry_after_ms,
            ..ExecutionResult::error(error.code, error.message)
        });
        Ran { result, events }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &str {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        self.result.output.as_deref().unwrap_or_default()
    }

    /// Asserts that the run failed with this code; returns the error text.
    #[track_caller]
    pub(crate) fn failed(&self, code: &str) -> &str {
        assert_eq!(
            self.result.error_code.as_deref(),
            Some(code),
            "{:?}",
            self.result
        );
        self.result.error.as_deref().unwrap()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        let events = self.events.iter().filter(|event| event.kind == kind);
        events.map(|event| event.data.as_ref().unwrap()).collect()
    }

    pub(crate) fn text(&self) -> String {
        let deltas = self.all("assistant.text").into_iter();
        deltas.map(|data| data["delta"].as_str().unwrap()).collect()
    }
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < limit, "it never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn config(url: &str) -> Value {
    json!({"url": url, "token": "t0ken", "secret": SECRET, "headers": {"x-team": "blue"}, "callback": {},
        "poll_seconds": 0.02, "silence_seconds": 2.0})
}
