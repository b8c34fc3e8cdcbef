//! One server shared by all tests of the binary; an adapter and a fake model for each test.

use std::sync::LazyLock;
use std::time::Duration;

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_langgraph::LangGraph;
use forge_adapter_transport::http::{Failure, Http, Limits};
use forge_test_model::Model;
use forge_test_runtimes::LangGraph as Server;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Tokens of one model call: 31 input, 5 of them cached; 9 output, 2 of them reasoning.
pub(crate) const CALL: (u64, u64) = (31, 9);

/// Stopped at the end of the process.
static SERVER: LazyLock<Server> =
    LazyLock::new(|| forge_test_runtimes::langgraph("http://127.0.0.1:9"));

pub(crate) fn server() -> &'static Server {
    &SERVER
}

pub(crate) struct Bench {
    pub(crate) adapter: LangGraph,
    pub(crate) model: Model,
    pub(crate) server: &'static Server,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let server = server();
        let model = Model::start().await;
        let mut config = config(server.url(), model.url());
        let members = table.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(members);
        Self {
            adapter: adapter(config).await,
            model,
            server,
        }
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        run(&self.adapter, request).await
    }

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(request(message)).await
    }

    pub(crate) async fn say_in(&self, session: &str, message: &str) -> Ran {
        self.run(in_session(session, message)).await
    }

    /// Reads from the server directly; `None` on 404.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let http = Http::new(Limits::default()).unwrap();
        let url = format!("{}{path}", self.server.url());
        match http.json(http.get(&url)).await {
            Ok(answer) => Some(answer),
            Err(Failure::Refused { status, .. }) if status == 404 => None,
            Err(failure) => panic!("{path}: {failure}"),
        }
    }
}

pub(crate) fn config(server: &str, model: &str) -> Value {
    json!({
        "url": server, "assistant": "agent", "configurable": {"model_url": model},
        "model_key": "model", "schema_key": "schema", "tools_key": "tools",
    })
}

pub(crate) async fn adapter(config: Value) -> LangGraph {
    let config = Config::try_from(config).unwrap();
    LangGraph::initialize(Host::detached(), config)
        .await
        .unwrap()
}

pub(crate) fn request(message: &str) -> ExecutionRequest {
    ExecutionRequest {
        execution_id: format!("dsp_{}/1", message.replace('/', "")),
        task_id: "task-1".to_owned(),
        ..ExecutionRequest::sample(message)
    }
}

pub(crate) fn in_session(session: &str, message: &str) -> ExecutionRequest {
    ExecutionRequest {
        session_id: Some(session.to_owned()),
        ..request(message)
    }
}

pub(crate) async fn run(adapter: &LangGraph, request: ExecutionRequest) -> Ran {
    run_until(adapter, request, "", async || {}).await
}

/// Runs a request, and `act` beside it from the first event of this kind on.
pub(crate) async fn run_until(
    adapter: &LangGraph,
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
                // The receiver is gone if the execution has already ended.
                let _ = begin.send(());
            }
            seen.push(event);
        }
        seen
    };
    let execution = adapter.execute(request, events);
    let (result, events, ()) = tokio::join!(execution, collecting, acting);
    let result = result.unwrap_or_else(|error| ExecutionResult {
        retryable: Some(error.retryable),
        ..ExecutionResult::error(error.code, error.message)
    });
    Ran { result, events }
}

impl Ran {
    /// Asserts that the execution failed with this code.
    #[track_caller]
    pub(crate) fn failed(&self, code: &str) {
        let result = &self.result;
        assert_eq!(result.error_code.as_deref(), Some(code), "{result:?}");
        assert_eq!(result.status, Status::Error);
        assert!(result.error.as_deref().is_some_and(|text| !text.is_empty()));
    }

    #[track_caller]
    pub(crate) fn succeeded(&self) {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        assert_eq!(self.result.error_code, None);
    }

    /// Asserts usage of exactly this number of model calls.
    #[track_caller]
    pub(crate) fn used(&self, calls: u64) {
        let usage = &self.result.usage;
        let (input, output) = CALL;
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (
                Some(calls * input),
                Some(calls * output),
                Some(calls * (input + output))
            )
        );
        assert_eq!(usage.cache_read_tokens, Some(calls * 5));
        assert_eq!(self.result.cost_usd, None, "the server knows no prices");
    }

    pub(crate) fn output(&self) -> &str {
        self.result.output.as_deref().unwrap_or_default()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        self.events
            .iter()
            .filter(|event| event.kind == kind)
            .map(|event| event.data.as_ref().unwrap())
            .collect()
    }

    /// Data of `exec.progress` events of this kind.
    pub(crate) fn progress(&self, kind: &str) -> Vec<&Value> {
        let mut all = self.all("exec.progress");
        all.retain(|data| data["kind"] == kind);
        all
    }

    /// The text deltas joined.
    pub(crate) fn text(&self) -> String {
        let all = self.all("assistant.text").into_iter();
        all.map(|data| data["delta"].as_str().unwrap()).collect()
    }

    /// Paths of the thread and of the run.
    pub(crate) fn paths(&self) -> (String, String) {
        let known = self.all("session.updated")[0];
        let id = |name: &str| known[name].as_str().unwrap().to_owned();
        let thread = format!("/threads/{}", id("threadId"));
        let run = format!("{thread}/runs/{}", id("runId"));
        (thread, run)
    }
}

pub(crate) async fn until<T>(what: &str, condition: impl AsyncFn() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < limit, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
