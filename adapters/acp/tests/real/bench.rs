//! Test setup: an adapter, an agent program with its own home directory, and a fake model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forge_adapter_acp::Acp;
use forge_adapter_api::host::Create;
use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_test_model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Input tokens of one call of the fake model, cached ones included; its output includes reasoning.
pub(crate) const CALL_INPUT: u64 = 31;
pub(crate) const CALL_OUTPUT: u64 = 9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Agent {
    Hermes,
    OpenCode,
}

pub(crate) const AGENTS: [Agent; 2] = [Agent::Hermes, Agent::OpenCode];

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: Acp,
    pub(crate) workspace: TempDir,
    _home: TempDir,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Agent {
    /// The adapter's table; writes the agent's own settings to its home directory.
    pub(crate) fn config(self, model: &str, home: &Path) -> Value {
        match self {
            Agent::Hermes => {
                let file = format!(
                    "model: {{default: fake-1, provider: custom, base_url: '{model}/v1', api_key: fake, context_length: 128000}}\n\
                     agent: {{api_max_retries: 1}}\nterminal: {{backend: local}}\n"
                );
                std::fs::write(home.join("config.yaml"), file).unwrap();
                json!({
                    "program": forge_test_runtimes::hermes(), "args": ["acp"],
                    "env": {"HOME": home, "HERMES_HOME": home},
                })
            }
            Agent::OpenCode => {
                let models = json!({
                    "fake-1": {"limit": {"context": 128_000, "output": 8_000}, "cost": {"input": 1, "output": 2}},
                    "fake-2": {"limit": {"context": 128_000, "output": 8_000}},
                });
                let file = json!({
                    "model": "fake/fake-1", "permission": {"bash": "ask", "edit": "ask"},
                    "provider": {"fake": {
                        "npm": "@ai-sdk/openai-compatible", "models": models,
                        "options": {"baseURL": format!("{model}/v1"), "apiKey": "fake"},
                    }},
                });
                let path = home.join("opencode.json");
                std::fs::write(&path, file.to_string()).unwrap();
                json!({
                    "program": forge_test_runtimes::opencode(), "args": ["acp"],
                    "env": {
                        "HOME": home, "OPENCODE_CONFIG": path,
                        "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
                    },
                })
            }
        }
    }

    /// Marker that makes the model call the agent's shell.
    pub(crate) fn shell(self, command: &str) -> String {
        match self {
            Agent::Hermes => format!("CALL terminal {}", json!({ "command": command })),
            Agent::OpenCode => {
                let input = json!({"command": command, "description": "d"});
                format!("CALL bash {input}")
            }
        }
    }

    /// Marker that makes the model call a tool that writes a file.
    pub(crate) fn write(self, path: &Path) -> String {
        match self {
            Agent::Hermes => {
                format!(
                    "CALL write_file {}",
                    json!({"path": path, "content": "written"})
                )
            }
            Agent::OpenCode => {
                format!(
                    "CALL write {}",
                    json!({"filePath": path, "content": "written"})
                )
            }
        }
    }
}

impl Bench {
    pub(crate) async fn new(agent: Agent) -> Self {
        Self::with(agent, json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(agent: Agent, table: Value) -> Self {
        let model = Model::start().await;
        let home = tempfile::tempdir().unwrap();
        let mut config = agent.config(model.url(), home.path());
        let members = table.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(members);
        Self {
            adapter: adapter(config).await,
            model,
            workspace: tempfile::tempdir().unwrap(),
            _home: home,
        }
    }

    pub(crate) fn request(&self, message: &str) -> ExecutionRequest {
        request(message, self.workspace.path())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.workspace.path().canonicalize().unwrap().join(name)
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        run(&self.adapter, request).await
    }

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(self.request(message)).await
    }

    /// Messages of the last model request for this task; requests for titles and the like are skipped.
    pub(crate) fn asked_last(&self, word: &str) -> String {
        let requests = self.model.requests();
        let asked = requests.iter().rev().find_map(|request| {
            let messages = request.body["messages"].to_string();
            // Only requests of the task itself have tools.
            (request.body["tools"].is_array() && messages.contains(word)).then_some(messages)
        });
        asked.unwrap_or_else(|| panic!("the model was never asked {word:?}"))
    }
}

pub(crate) async fn adapter(config: Value) -> Acp {
    let config = Config::try_from(config).unwrap();
    let relay = format!("{}/tests/real/relay.py", env!("CARGO_MANIFEST_DIR"));
    let host = Host::detached_with(Create {
        relay: vec!["python3".to_owned(), relay],
        ..Create::default()
    });
    Acp::initialize(host, config).await.unwrap()
}

pub(crate) fn request(message: &str, workspace: &Path) -> ExecutionRequest {
    serde_json::from_value(json!({
        "executionId": "dsp_1/1", "taskId": "task-1", "agentId": "agent-1", "attempt": 1,
        "message": message, "timeoutSeconds": 60.0, "outputStrategy": "stream",
        "workspace": {"dir": workspace.canonicalize().unwrap()},
    }))
    .unwrap()
}

pub(crate) async fn run(adapter: &Acp, request: ExecutionRequest) -> Ran {
    run_until(adapter, request, "", async || {}).await
}

/// Runs a request, and `act` beside it from the first event of this kind on.
pub(crate) async fn run_until(
    adapter: &Acp,
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
    Ran {
        result: result.unwrap(),
        events,
    }
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
        let (input, output) = (calls * CALL_INPUT, calls * CALL_OUTPUT);
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (Some(input), Some(output), Some(input + output))
        );
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

    /// The deltas of this kind joined.
    pub(crate) fn text(&self, kind: &str) -> String {
        let deltas = self.all(kind).into_iter();
        deltas.map(|data| data["delta"].as_str().unwrap()).collect()
    }
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(tokio::time::Instant::now() < limit, "it never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
