//! Test setup: an adapter and a fake platform.

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_gloo_ai::GlooAi;
use forge_test_model::gloo::{API_KEY, CLIENT_ID, CLIENT_SECRET, Gloo};
use serde_json::{Value, json};

/// Cost of one call: 26 uncached and 5 cached input tokens, 9 output tokens, at the prices of the model chosen by
/// routing.
pub(crate) const CALL_COST: f64 = (26.0 * 3.0 + 5.0 * 0.3 + 9.0 * 15.0) / 1e6;

pub(crate) struct Bench {
    pub(crate) gloo: Gloo,
    pub(crate) adapter: GlooAi,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
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

    pub(crate) async fn say(&self, message: &str) -> Ran {
        run(&self.adapter, ExecutionRequest::sample(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
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
    let config = Config::try_from(table).unwrap();
    GlooAi::initialize(Host::detached(), config).await.unwrap()
}

pub(crate) async fn run(adapter: &GlooAi, request: ExecutionRequest) -> Ran {
    run_and(adapter, request, async || {}).await
}

/// Runs a request, and `act` beside it from the first text on.
pub(crate) async fn run_and(
    adapter: &GlooAi,
    request: ExecutionRequest,
    act: impl AsyncFnOnce(),
) -> Ran {
    let (events, mut received) = Events::channel(10_000);
    let collecting = async {
        let mut seen: Vec<AdapterEvent> = Vec::new();
        let mut act = Some(act);
        while let Some(event) = received.recv().await {
            let is_text = event.kind == "assistant.text";
            seen.push(event);
            if is_text && let Some(act) = act.take() {
                act().await;
            }
        }
        seen
    };
    let (result, events) = tokio::join!(adapter.execute(request, events), collecting);
    let result = result.unwrap_or_else(|error| ExecutionResult {
        retryable: Some(error.retryable),
        retry_after_ms: error.retry_after_ms,
        ..ExecutionResult::error(error.code, error.message)
    });
    Ran { result, events }
}

impl Ran {
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &str {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        self.result.output.as_deref().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn failed(&self, code: &str) -> &str {
        let seen = self.result.error_code.as_deref();
        assert_eq!(seen, Some(code), "{:?}", self.result);
        self.result.error.as_deref().unwrap()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        let of_kind = self.events.iter().filter(|event| event.kind == kind);
        of_kind.filter_map(|event| event.data.as_ref()).collect()
    }

    pub(crate) fn text(&self) -> String {
        let deltas = self.all("assistant.text");
        deltas
            .iter()
            .map(|data| data["delta"].as_str().unwrap())
            .collect()
    }

    /// The platform's additions to its answer.
    pub(crate) fn about(&self) -> Value {
        self.all("execution.completed")[0]["gloo"].clone()
    }
}
