//! Test setup: an adapter and a fake model.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_vercel_ai::VercelAi;
use forge_test_model::Model;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: VercelAi,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(&json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: &Value) -> Self {
        let model = Model::start().await;
        Self {
            adapter: initialize(with_members(config(model.url()), table)).await,
            model,
        }
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(ExecutionRequest::sample(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }

    /// Body of the last request to the model.
    pub(crate) fn asked(&self) -> Value {
        self.model.requests().pop().unwrap().body
    }
}

/// Settings with all providers and the gateway at the fake model.
pub(crate) fn config(model: &str) -> Value {
    let at = |path: &str| json!({"base_url": format!("{model}{path}"), "api_key": "k-1"});
    json!({
        "model": "anthropic/claude-sonnet-4-5",
        "max_output_tokens": 500,
        "providers": {
            "anthropic": at("/v1"), "openai": at("/v1"), "openai-chat": at("/v1"), "google": at("/v1beta"),
        },
        "gateway": at("/v1"),
    })
}

/// Members of the table for the mode `sidecar`.
pub(crate) fn by_package() -> Value {
    json!({
        "mode": "sidecar",
        "sidecar": {"node": forge_test_runtimes::node(), "packages": forge_test_runtimes::ai()},
    })
}

pub(crate) async fn adapter(config: Value) -> VercelAi {
    initialize(config).await
}

/// One model per protocol.
pub(crate) const MODELS: [&str; 4] = [
    "anthropic/claude-sonnet-4-5",
    "openai/gpt-4.1",
    "openai-chat/gpt-4.1",
    "google/gemini-2.5-flash",
];

/// A request to this model.
pub(crate) fn to(model: &str, message: &str) -> ExecutionRequest {
    ExecutionRequest {
        model: Some(model.to_owned()),
        ..ExecutionRequest::sample(message)
    }
}
