//! Test setup: an adapter and a fake platform.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_gloo_ai::GlooAi;
use forge_test_model::gloo::{API_KEY, CLIENT_ID, CLIENT_SECRET, Gloo};
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::initialize;
use serde_json::{Value, json};

/// Cost of one call: 26 uncached and 5 cached input tokens, 9 output tokens, at the prices of the model chosen by
/// routing.
pub(crate) const CALL_COST: f64 = (26.0 * 3.0 + 5.0 * 0.3 + 9.0 * 15.0) / 1e6;

pub(crate) struct Bench {
    pub(crate) gloo: Gloo,
    pub(crate) adapter: GlooAi,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({"api_key": API_KEY})).await
    }

    pub(crate) async fn with_client() -> Self {
        Self::with(json!({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET})).await
    }

    pub(crate) async fn with(table: Value) -> Self {
        let gloo = Gloo::start().await;
        let adapter = adapter(gloo.url(), table).await;
        Self { gloo, adapter }
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        run(&self.adapter, ExecutionRequest::sample(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }

    /// Path and body of the last request to the platform.
    pub(crate) fn asked(&self) -> (String, Value) {
        let last = self.gloo.requests().pop().unwrap();
        (last.path, last.body)
    }
}

pub(crate) async fn adapter(url: &str, mut table: Value) -> GlooAi {
    table["base_url"] = url.into();
    initialize(table).await
}

/// The platform's additions to its answer.
pub(crate) fn about(ran: &Execution) -> Value {
    ran.all("execution.completed")[0]["gloo"].clone()
}
