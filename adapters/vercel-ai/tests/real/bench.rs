//! Test setup: an adapter and a fake model.

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_vercel_ai::VercelAi;
use forge_test_model::Model;
use serde_json::{Value, json};

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: VercelAi,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(&json!({})).await
    }

    /// Sets up an adapter with these members in its table.
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

    /// Body of the last request to the model.
    pub(crate) fn asked(&self) -> Value {
        self.model.requests().pop().unwrap().body
    }
}

/// Runs a request, and `act` beside it from the first event of this kind on.
pub(crate) async fn run(
    adapter: &VercelAi,
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
    /// Asserts that the execution failed with this code, and that the error contains this text.
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

    /// The deltas of this kind joined.
    pub(crate) fn text(&self, kind: &str) -> String {
        let events = self.events.iter().filter(|event| event.kind == kind);
        events
            .map(|event| event.data.as_ref().unwrap()["delta"].as_str().unwrap())
            .collect()
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
    let config = Config::try_from(config).unwrap();
    VercelAi::initialize(Host::detached(), config)
        .await
        .unwrap()
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

/// Waits for a condition, at most 10 s.
#[track_caller]
pub(crate) fn until(condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        while !condition() {
            assert!(
                tokio::time::Instant::now() < end,
                "not within 10 s: {place}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}
