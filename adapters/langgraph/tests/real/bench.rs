//! One server shared by all tests of the binary; an adapter and a fake model for each test.

use std::sync::LazyLock;

use forge_adapter_api::ExecutionRequest;
use forge_adapter_langgraph::LangGraph;
use forge_adapter_transport::http::{Failure, Http, Limits};
use forge_test_model::Model;
use forge_test_runtimes::LangGraph as Server;
pub(crate) use forge_test_support::deadline::until_some as until;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};

/// Tokens of one model call: 31 input, 5 of them cached; 9 output, 2 of them reasoning.
const CALL: (u64, u64) = (31, 9);

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

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let server = server();
        let model = Model::start().await;
        Self {
            adapter: initialize(with_members(config(server.url(), model.url()), &table)).await,
            model,
            server,
        }
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(request(message)).await
    }

    pub(crate) async fn say_in(&self, session: &str, message: &str) -> Execution {
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
    initialize(config).await
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

/// Asserts usage of exactly this number of model calls, and no cost.
#[track_caller]
pub(crate) fn used(ran: &Execution, calls: u64) {
    ran.used(calls, CALL);
    assert_eq!(ran.result.usage.cache_read_tokens, Some(calls * 5));
    assert_eq!(ran.result.cost_usd, None, "the server knows no prices");
}

/// Paths of the thread and of the run.
pub(crate) fn paths(ran: &Execution) -> (String, String) {
    let known = ran.all("session.updated")[0];
    let id = |name: &str| known[name].as_str().unwrap().to_owned();
    let thread = format!("/threads/{}", id("threadId"));
    let run = format!("{thread}/runs/{}", id("runId"));
    (thread, run)
}
