//! Test bench: one adapter and one fake model endpoint.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_openai_compatible::OpenAiCompatible;
use forge_test_model::Model;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: OpenAiCompatible,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(&json!({})).await
    }

    /// A bench with these members in the adapter's table.
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

    /// Body of the last request that the model received.
    pub(crate) fn asked(&self) -> Value {
        self.model.requests().pop().unwrap().body
    }
}

pub(crate) fn config(model: &str) -> Value {
    json!({"base_url": format!("{model}/v1"), "api_key": "k-1", "model": "fake-1"})
}

pub(crate) async fn adapter(config: Value) -> OpenAiCompatible {
    initialize(config).await
}
