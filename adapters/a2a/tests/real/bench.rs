//! Test setup: an agent of the A2A SDK, its fake model, and the adapter.

use forge_adapter_a2a::A2a;
use forge_adapter_api::child::{Child, Line, Program};
use forge_adapter_api::{ExecutionRequest, Host};
use forge_test_model::Model;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::initialize;
use serde_json::{Value, json};
use tempfile::TempDir;

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

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(self.request(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }
}

pub(crate) async fn adapter(config: Value) -> A2a {
    initialize(config).await
}

pub(crate) fn config(url: &str) -> Value {
    json!({"url": url, "token": "t0ken", "poll_seconds": 0.05, "silence_seconds": 20.0, "patience_seconds": 2.0})
}
