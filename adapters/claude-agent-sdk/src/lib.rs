//! The adapter `claude-agent-sdk`: runs tasks on the `claude` program, one process per run, over the control protocol
//! of the official SDKs. The program is proprietary and installed by the operator.

mod config;
mod control;
mod conversation;
mod events;
mod launch;
mod mcp_status;
mod meter;
mod options;
mod outcome;
mod policy;
mod task;
mod transcript;

use std::path::Path;
use std::time::Duration;

use forge_adapter_api::child::Program;
use forge_adapter_api::{
    Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host,
    LatencyProfile, OutputStrategy, Profile, Result, Running, SteerRequest, async_trait,
};

use crate::config::{FORWARDED, Settings};

/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

pub struct ClaudeAgentSdk {
    host: Host,
    settings: Settings,
    running: Running,
}

#[async_trait]
impl ExecutionAdapter for ClaudeAgentSdk {
    const NAME: &'static str = "claude-agent-sdk";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const ENV: &'static [&'static str] = &FORWARDED;

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        host.remove_leftovers();
        Ok(Self {
            host,
            settings: Settings::read(&config)?,
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Executions still running are dropped, which kills their programs.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let mut program = Program::new(&self.settings.table.program);
        program.env.clone_from(&self.settings.env);
        if program.locate().is_none() {
            return Health::degraded(missing(&program.path));
        }
        if !self.settings.has_credentials() && !is_logged_in(&self.settings) {
            return Health::degraded(
                "no credentials: set ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN, \
                 or log in with `claude auth login`",
            );
        }
        Health::healthy()
    }

    fn capabilities(&self) -> Profile {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Profile {
            capabilities: names(&[
                "streaming",
                "session_resume",
                "continuation",
                "file_io",
                "mcp_servers",
                "subagents",
                "cost_tracking",
                "structured_output",
                "native_tools",
                "attachments",
            ]),
            native_tools: match &self.settings.table.tools {
                Some(tools) => tools.clone(),
                None => names(&[
                    "Bash",
                    "Edit",
                    "Glob",
                    "Grep",
                    "NotebookEdit",
                    "Read",
                    "Task",
                    "WebFetch",
                    "WebSearch",
                    "Write",
                ]),
            },
            max_concurrent: self.settings.table.max_concurrent.max(1),
            output_strategies: vec![
                OutputStrategy::Stream,
                OutputStrategy::Structured,
                OutputStrategy::File,
            ],
            options: names(&["reasoning"]),
            cost_tier: CostTier::High,
            latency_profile: LatencyProfile::Variable,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        conversation::execute(&self.host, &self.settings, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }

    async fn steer(&self, request: SteerRequest) -> Result<bool> {
        Ok(self.running.steer(request).await)
    }
}

/// Error text when the program does not exist.
fn missing(path: &Path) -> String {
    format!(
        "the program {} does not exist: install it with `npm install -g @anthropic-ai/claude-code`, or set its path in \
         CLAUDE_AGENT_SDK_PROGRAM or adapters.claude-agent-sdk.program",
        path.display()
    )
}

/// Returns true if the credentials file of a login exists. Asking the program would take too long for a health check.
fn is_logged_in(settings: &Settings) -> bool {
    let home = |name: &str| settings.env.get(name).map(Path::new);
    home("CLAUDE_CONFIG_DIR")
        .map(|folder| folder.join(".credentials.json"))
        .or_else(|| home("HOME").map(|home| home.join(".claude/.credentials.json")))
        .is_some_and(|file| file.exists())
}

forge_adapter_api::export_adapter!(ClaudeAgentSdk);
