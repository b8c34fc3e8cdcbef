//! The adapter `acp`: runs tasks on an agent program that speaks the Agent Client Protocol on stdio. One instance
//! drives one program, with one process per run, which can be started ahead; only the agent's session outlives a run.

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
mod process;
mod run;
mod tool_server;
mod transcript;
mod warm;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::child::Program;
use forge_adapter_api::folder::TempFolder;
use forge_adapter_api::{
    Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host,
    LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use serde_json::json;

use crate::config::{Settings, UsageScope};
use crate::meter::Marks;
use crate::warm::Warm;

/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

pub struct Acp {
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

#[async_trait]
impl ExecutionAdapter for Acp {
    const NAME: &'static str = "acp";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Arc::new(Settings::read(&config)?);
        TempFolder::remove_leftovers(host.instance());
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

    async fn shutdown(&self) -> Result<()> {
        // Executions still running are dropped, which kills their programs.
        tokio::join!(self.warm.close(), self.running.drain(SHUTDOWN));
        Ok(())
    }

    /// Called first when another generation has taken over: no run of this one needs a process any more.
    async fn stop_event_relay(&self) -> Result<()> {
        self.warm.close().await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let instance = self.host.instance();
        let Some(path) = &self.settings.table.program else {
            return Health::degraded(launch::not_named(instance));
        };
        let mut program = Program::new(path);
        program.env.clone_from(&self.settings.env);
        if program.locate().is_none() {
            return Health::degraded(launch::missing(instance, path));
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

    fn capabilities(&self) -> Profile {
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

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        run::execute(self, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

impl Acp {
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

forge_adapter_api::export_adapter!(Acp);
