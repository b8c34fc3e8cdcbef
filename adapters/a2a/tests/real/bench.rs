//! Test setup: an agent of the A2A SDK, its fake model, and the adapter.

use std::time::Duration;

use forge_adapter_a2a::A2a;
use forge_adapter_api::child::{Child, Line, Program};
use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_test_model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: A2a,
    pub(crate) agent: Agent,
}

/// The agent's process; killed on drop.
pub(crate) struct Agent {
    pub(crate) url: String,
    pub(crate) child: Child,
    folder: TempDir,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Agent {
    /// Starts an agent. `kind` is `both`, `0.3` or `plain`; `token` is required by the agent unless empty.
    pub(crate) async fn start(model: &Model, kind: &str, token: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/agent.py");
        let mut program = Program::new(forge_test_runtimes::a2a_python());
        program.args = vec![script.into(), kind.into()];
        program
            .env
            .insert("MODEL_URL".to_owned(), model.url().to_owned());
        program.env.insert("TOKEN".to_owned(), token.to_owned());
        let folder = tempfile::tempdir().unwrap();
        let cancels = folder.path().join("cancels").display().to_string();
        program.env.insert("CANCELS".to_owned(), cancels);
        let mut child = Child::start(&Host::detached(), None, &program).unwrap();
        let Some(Line::Text(port)) = child.next().await else {
            child.wait().await.unwrap();
            panic!("the agent does not start: {}", child.stderr_tail());
        };
        Self {
            url: format!("http://127.0.0.1:{port}"),
            child,
            folder,
        }
    }

    /// Number of cancelled tasks.
    pub(crate) fn cancels(&self) -> usize {
        let cancels = std::fs::read_to_string(self.folder.path().join("cancels"));
        cancels.unwrap_or_default().lines().count()
    }
}

impl Bench {
    pub(crate) async fn new(kind: &str) -> Self {
        let model = Model::start().await;
        let agent = Agent::start(&model, kind, "t0ken").await;
        Self {
            adapter: adapter(config(&agent.url)).await,
            model,
            agent,
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

    /// Runs a request, and `act` beside it from the first event of this kind on.
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
                    // The receiver is gone if the execution has already ended.
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

    /// Asserts that the execution failed with this code; returns the error text.
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

pub(crate) async fn adapter(config: Value) -> A2a {
    A2a::initialize(Host::detached(), Config::try_from(config).unwrap())
        .await
        .unwrap()
}

pub(crate) fn config(url: &str) -> Value {
    json!({"url": url, "token": "t0ken", "poll_seconds": 0.05, "silence_seconds": 20.0})
}
