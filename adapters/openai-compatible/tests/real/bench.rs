//! Test bench: one adapter and one fake model endpoint.

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_openai_compatible::OpenAiCompatible;
use forge_test_model::Model;
use serde_json::{Value, json};

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: OpenAiCompatible,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(&json!({})).await
    }

    /// A bench with these members in the adapter's table.
    pub(crate) async fn with(table: &Value) -> Self {
        let model = Model::start().await;
        let mut config = config(model.url());
        let members = table.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(members);
        Self {
            adapter: adapter(config).await,
            model,
        }
    }

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(ExecutionRequest::sample(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        run(&self.adapter, request, "", async || {}).await
    }

    /// Body of the last request that the model received.
    pub(crate) fn asked(&self) -> Value {
        self.model.requests().pop().unwrap().body
    }
}

/// Runs a request, and `act` at its first event of this kind.
pub(crate) async fn run(
    adapter: &OpenAiCompatible,
    request: ExecutionRequest,
    kind: &str,
    act: impl AsyncFnOnce(),
) -> Ran {
    let (events, mut received) = Events::channel(10_000);
    let collecting = async {
        let mut act = Some(act);
        let mut seen = Vec::new();
        while let Some(event) = received.recv().await {
            if event.kind == kind
                && let Some(act) = act.take()
            {
                act().await;
            }
            seen.push(event);
        }
        seen
    };
    let (result, events) = tokio::join!(adapter.execute(request, events), collecting);
    let result = result.unwrap_or_else(|error| {
        ExecutionResult::error(error.code.as_str(), error.message.as_str())
    });
    Ran { result, events }
}

impl Ran {
    /// Asserts that the run failed with this code and a text that contains `said`.
    #[track_caller]
    pub(crate) fn failed(&self, code: &str, said: &str) {
        let result = &self.result;
        assert_eq!(result.error_code.as_deref(), Some(code), "{result:?}");
        assert_eq!(result.status, Status::Error);
        let error = result.error.as_deref().unwrap();
        assert!(error.contains(said), "{error}");
    }

    #[track_caller]
    pub(crate) fn succeeded(&self) {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
    }

    pub(crate) fn output(&self) -> &str {
        self.result.output.as_deref().unwrap_or_default()
    }

    /// The joined deltas of the events of this kind.
    pub(crate) fn text(&self, kind: &str) -> String {
        let events = self.events.iter().filter(|event| event.kind == kind);
        events
            .map(|event| event.data.as_ref().unwrap()["delta"].as_str().unwrap())
            .collect()
    }
}

pub(crate) fn config(model: &str) -> Value {
    json!({"base_url": format!("{model}/v1"), "api_key": "k-1", "model": "fake-1"})
}

pub(crate) async fn adapter(config: Value) -> OpenAiCompatible {
    let config = Config::try_from(config).unwrap();
    OpenAiCompatible::initialize(Host::detached(), config)
        .await
        .unwrap()
}
