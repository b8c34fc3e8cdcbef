//! Test setup: an adapter, an agent program with its own home directory, and a fake model.

use std::path::{Path, PathBuf};

use forge_adapter_acp::Acp;
use forge_adapter_api::host::Create;
use forge_adapter_api::{Config, ExecutionAdapter as _, ExecutionRequest, Host};
use forge_test_model::Model;
use forge_test_support::execution::{Execution, record};
use forge_test_support::instance::with_members;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Input and output tokens of one call of the fake model, cached ones and reasoning included.
pub(crate) const CALL: (u64, u64) = (31, 9);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Agent {
    Hermes,
    OpenCode,
    Claude,
    Gemini,
}

/// The agents that most tests run; the others are in `others.rs`.
pub(crate) const AGENTS: [Agent; 2] = [Agent::Hermes, Agent::OpenCode];

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: Acp,
    pub(crate) workspace: TempDir,
    _home: TempDir,
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
            Agent::Claude => {
                let folder = home.join(".claude");
                std::fs::create_dir(&folder).unwrap();
                let settings = json!({"permissions": {"defaultMode": "bypassPermissions"}});
                std::fs::write(folder.join("settings.json"), settings.to_string()).unwrap();
                json!({
                    "program": forge_test_runtimes::node(),
                    "args": [forge_test_runtimes::claude_agent_acp()],
                    "env": {
                        "HOME": home, "CLAUDE_CONFIG_DIR": folder,
                        "CLAUDE_CODE_EXECUTABLE": forge_test_runtimes::claude(),
                        "ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "fake",
                        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                        // Without it the agent does not bypass permissions for root.
                        "IS_SANDBOX": "1",
                    },
                })
            }
            Agent::Gemini => {
                let folder = home.join(".gemini");
                std::fs::create_dir(&folder).unwrap();
                let settings = json!({
                    "model": {"name": "gemini-2.5-flash"}, "general": {"enableAutoUpdate": false},
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": false},
                });
                std::fs::write(folder.join("settings.json"), settings.to_string()).unwrap();
                json!({
                    "program": forge_test_runtimes::node(),
                    "args": [forge_test_runtimes::gemini_cli(), "--acp", "--skip-trust"],
                    "env": {"HOME": home, "GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": model},
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
            Agent::Claude => {
                let input = json!({"command": command, "description": "d"});
                format!("CALL Bash {input}")
            }
            Agent::Gemini => {
                let input = json!({"command": command, "description": "d"});
                format!("CALL run_shell_command {input}")
            }
        }
    }

    /// Marker that makes the model call a tool that writes a file.
    pub(crate) fn write(self, path: &Path) -> String {
        let (tool, name) = match self {
            Agent::Hermes => ("write_file", "path"),
            Agent::OpenCode => ("write", "filePath"),
            Agent::Claude => ("Write", "file_path"),
            Agent::Gemini => ("write_file", "file_path"),
        };
        let mut input = json!({"content": "written"});
        input[name] = json!(path);
        format!("CALL {tool} {input}")
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
        let config = with_members(agent.config(model.url(), home.path()), &table);
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

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(self.request(message)).await
    }

    /// Runs a long text and cancels it in the middle.
    pub(crate) async fn cancelled(&self) -> Execution {
        let cancel = async || assert!(self.adapter.cancel("task-1").await.unwrap());
        let request = self.request("SLOW please");
        let ran = run_until(&self.adapter, request, "assistant.text", cancel).await;
        ran.failed("cancelled");
        assert!(ran.output().starts_with("tick0"), "{:?}", ran.result);
        ran
    }

    /// Messages of the last model request for this task; requests for titles and the like are skipped.
    pub(crate) fn asked_last(&self, word: &str) -> String {
        let requests = self.model.requests();
        let asked = requests.iter().rev().find_map(|request| {
            let body = &request.body;
            let messages = body.get("messages").or(body.get("contents"));
            let messages = messages.map_or_else(String::new, Value::to_string);
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

pub(crate) async fn run(adapter: &Acp, request: ExecutionRequest) -> Execution {
    run_until(adapter, request, "", async || {}).await
}

/// Runs a request that must have a result, and `act` beside it from the first event of this kind on.
pub(crate) async fn run_until(
    adapter: &Acp,
    request: ExecutionRequest,
    kind: &str,
    act: impl AsyncFnOnce(),
) -> Execution {
    let (result, events) = record(adapter, request, kind, act).await;
    Execution {
        result: result.unwrap(),
        events,
    }
}
