//! The adapter `command`: runs any program that takes a prompt and returns text or JSON, one process per
//! run.

mod argv;
mod config;
mod outcome;
mod rules;
mod run;
mod transcript;

use std::path::Path;
use std::time::Duration;

use forge_adapter_api::child::Program;
use forge_adapter_api::{
    Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host,
    LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use secrecy::ExposeSecret as _;

use crate::argv::Placeholder;
use crate::config::{Output, Settings, Stdin};

/// Time limit for running executions at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

const NO_PROGRAM: &str = "no program is configured: set adapters.command.program (or COMMAND_PROGRAM) and adapters.command.args";

pub struct Command {
    host: Host,
    settings: Settings,
    running: Running,
}

#[async_trait]
impl ExecutionAdapter for Command {
    const NAME: &'static str = "command";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        host.remove_leftovers();
        let settings = Settings::read(&config)?;
        let program = settings
            .table
            .program
            .as_deref()
            .map_or_else(|| "none".into(), Path::to_string_lossy);
        tracing::info!(program = %program, "program configured");
        Ok(Self {
            host,
            settings,
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Remaining executions are dropped, which kills their programs.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let Some(path) = &self.settings.table.program else {
            return Health::degraded(NO_PROGRAM);
        };
        let mut program = Program::new(path);
        if let Some(path) = self.settings.env.get("PATH") {
            program
                .env
                .insert("PATH".to_owned(), path.expose_secret().to_owned());
        }
        if program.locate().is_none() {
            return Health::degraded(missing(path));
        }
        match self.settings.missing_env().as_slice() {
            [] => Health::healthy(),
            names => Health::degraded(format!(
                "pass_env names {}, not set: set it for the bridge, or remove it from pass_env",
                names.join(", ")
            )),
        }
    }

    fn capabilities(&self) -> Profile {
        let argv = &self.settings.argv;
        let speaks_bridge =
            self.settings.table.output == Output::Bridge && self.settings.stdin() == Stdin::Request;
        let structured = argv.has(Placeholder::OutputSchema) || speaks_bridge;
        let counts = self.settings.counts_usage();
        let capabilities = [
            ("streaming", self.settings.table.output != Output::Json),
            (
                "session_resume",
                argv.has(Placeholder::SessionId) || speaks_bridge,
            ),
            ("file_io", true),
            ("structured_output", structured),
            ("cost_tracking", counts),
        ];
        let mut output_strategies = vec![OutputStrategy::Stream, OutputStrategy::File];
        if structured {
            output_strategies.push(OutputStrategy::Structured);
        }
        Profile {
            capabilities: capabilities
                .into_iter()
                .filter(|(_, has)| *has)
                .map(|(name, _)| name.to_owned())
                .collect(),
            native_tools: Vec::new(),
            max_concurrent: self.settings.table.max_concurrent.max(1),
            output_strategies,
            options: Vec::new(),
            cost_tier: self.settings.table.cost_tier,
            latency_profile: LatencyProfile::Variable,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        run::execute(&self.host, &self.settings, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

/// Error text for a missing program.
fn missing(path: &Path) -> String {
    format!(
        "the program {} does not exist: install it, or set its path in adapters.command.program",
        path.display()
    )
}

forge_adapter_api::export_adapter!(Command);
