//! Client of the Agent Client Protocol for adapters: runs tasks on an agent program that speaks it on stdio. One
//! [`AcpClient`] drives one program, with one process per run, which can be started ahead; only the agent's session
//! outlives a run.

mod agent;
mod attachments;
mod choices;
mod config;
mod conversation;
mod files;
mod launch;
mod mcp_probe;
mod meter;
mod mode;
mod outcome;
mod policy;
mod preset;
mod process;
mod run;
mod tool_server;
mod transcript;
mod warm;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::child::Program;
use forge_adapter_api::{
    Config, CostTier, Events, ExecutionRequest, ExecutionResult, Health, Host, LatencyProfile,
    OutputStrategy, Profile, Result, Running,
};
use serde_json::json;

pub use crate::preset::Preset;

use crate::config::{Settings, UsageScope};
use crate::meter::Marks;
use crate::warm::Warm;

/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// An adapter's connection to its agent program. The methods are those of an `ExecutionAdapter`.
pub struct AcpClient {
    host: Host,
    settings: Arc<Settings>,
    warm: Warm,
    running: Running,
    marks: Mutex<Marks>,
    /// Reason why the last run could not start; `None` after a successful start.
    unusable: Mutex<Option<String>>,
    /// Set if the agent of the last run offered no mode that asks.
    unasked: AtomicBool,
}

impl AcpClient {
    /// Reads the settings and removes what earlier runs left behind; starts no process.
    ///
    /// Fails with `invalid_config`.
    pub fn new(host: Host, config: &Config, preset: Preset) -> Result<Self> {
        let settings = Arc::new(Settings::read(config, preset)?);
        host.remove_leftovers();
        Ok(Self {
            warm: Warm::new(host.clone(), Arc::clone(&settings)),
            host,
            settings,
            running: Running::default(),
            marks: Mutex::default(),
            unusable: Mutex::default(),
            unasked: AtomicBool::new(false),
        })
    }

    /// Ends warm processes and waits a few seconds for executions.
    pub async fn shutdown(&self) {
        // Executions still running are dropped, which kills their programs.
        tokio::join!(self.warm.close(), self.running.drain(SHUTDOWN));
    }

    /// Ends warm processes that have read settings which are no longer valid. Returns their number.
    pub async fn renew_warm(&self) -> usize {
        self.warm.renew().await
    }

    /// The agent program with its configured variables and without arguments, to start it for other purposes than a
    /// run. Fails with `adapter_unavailable` if none is configured.
    pub fn program(&self) -> Result<Program> {
        let path = self.settings.table.program.as_ref();
        let not_named = || outcome::unavailable(launch::not_named(self.host.instance()));
        let mut program = Program::new(path.ok_or_else(not_named)?);
        program.env.clone_from(&self.settings.env);
        Ok(program)
    }

    /// Text that says how to get the program, for errors of a start.
    pub fn missing(&self, path: &Path) -> String {
        launch::missing(self.host.instance(), &self.settings.preset, path)
    }

    /// Ends warm processes when another generation has taken over: no run of this one needs a process any more.
    pub async fn stop_event_relay(&self) {
        self.warm.close().await;
    }

    /// Reports if the program exists and if the last run could start it.
    pub fn check_health(&self) -> Health {
        let program = match self.program() {
            Ok(program) => program,
            Err(error) => return Health::degraded(error.message),
        };
        if program.locate().is_none() {
            return Health::degraded(self.missing(&program.path));
        }
        let unusable = self
            .unusable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut health = match unusable {
            Some(reason) => Health::degraded(format!("the last run could not start: {reason}")),
            None => Health {
                message: self.remark(),
                ..Health::healthy()
            },
        };
        if self.settings.table.warm > 0 {
            health.details = Some(json!({ "warm": self.warm.report() }));
        }
        health
    }

    /// The profile of an agent of the protocol.
    pub fn capabilities(&self) -> Profile {
        let table = &self.settings.table;
        let counts = table.usage != UsageScope::None;
        let names = [
            Some("streaming"),
            Some("session_resume"),
            Some("continuation"),
            Some("file_io"),
            Some("mcp_servers"),
            counts.then_some("cost_tracking"),
            Some("native_tools"),
            Some("attachments"),
        ];
        Profile {
            capabilities: names.into_iter().flatten().map(str::to_owned).collect(),
            native_tools: table.native_tools.clone(),
            max_concurrent: table.max_concurrent.max(1),
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::File],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }
    }

    /// Runs one task in a process of its own, started with `options` before the configured arguments.
    pub async fn execute(
        &self,
        request: &ExecutionRequest,
        options: &[String],
        events: &Events,
    ) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        run::execute(self, request, options, events, &run).await
    }

    /// Cancels the executions of this task; false if none was running.
    pub fn cancel(&self, task_handle: &str) -> bool {
        self.running.cancel(task_handle)
    }

    /// Message of a healthy adapter.
    fn remark(&self) -> Option<String> {
        let failed = |reason| format!("a warm process failed, the next run starts one: {reason}");
        let unasked = self.unasked.load(Ordering::Relaxed);
        let unasked = unasked.then(|| mode::UNASKED.to_owned());
        self.warm.failure().map(failed).or(unasked)
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
