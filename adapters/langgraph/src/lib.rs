//! The adapter `langgraph`: runs tasks as runs of a LangGraph server operated elsewhere, one thread per session, over
//! its HTTP interface.

mod assistants;
mod execution;
mod follow;
mod health;
mod input;
mod meter;
mod outcome;
mod server;
mod settings;
mod thread;
mod transcript;

use std::time::Duration;

use forge_adapter_api::manage::{AgentManager, Interface, RuntimeManager};
use forge_adapter_api::{
    AdapterError, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult,
    Health, Host, LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_transport::http::{Http, Limits};
use tokio_util::task::TaskTracker;

use crate::assistants::Assistants;
use crate::execution::Execution;
use crate::server::Server;
use crate::settings::Settings;

/// Time for executions to end at shutdown and to cancel their runs.
const SHUTDOWN: Duration = Duration::from_secs(5);

pub struct LangGraph {
    settings: Settings,
    server: Option<Server>,
    running: Running,
    /// Tasks that cancel runs of dropped executions.
    afterwards: TaskTracker,
}

#[async_trait]
impl ExecutionAdapter for LangGraph {
    const NAME: &'static str = "langgraph";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const ENV: &'static [&'static str] = &["LANGSMITH_API_KEY"];
    const INTERFACES: &'static [Interface] = &[Interface::Runtime, Interface::Agents];

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Settings::read(&config)?;
        let http = Http::new(Limits::within(host.limits()))?;
        let server = settings
            .url
            .clone()
            .map(|url| Server::new(http, url, settings.api_key.clone()));
        Ok(Self {
            settings,
            server,
            running: Running::default(),
            afterwards: TaskTracker::new(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        let ended = async {
            self.running.drain(SHUTDOWN).await;
            self.afterwards.close();
            self.afterwards.wait().await;
        };
        // One limit for both: tasks still running after it are dropped.
        let _ = tokio::time::timeout(SHUTDOWN, ended).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        match &self.server {
            Some(server) => health::probe(server).await,
            None => Health::degraded(NO_SERVER),
        }
    }

    fn capabilities(&self) -> Profile {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Profile {
            capabilities: names(&[
                "streaming",
                "session_resume",
                "cost_tracking",
                "structured_output",
                "management",
            ]),
            native_tools: Vec::new(),
            max_concurrent: self.settings.table.max_concurrent.max(1),
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        let execution = Execution {
            server: self.server()?,
            settings: &self.settings,
            request: &request,
            events: &events,
            cancel: &run,
            afterwards: &self.afterwards,
        };
        execution.run().await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }

    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        Some(self)
    }

    fn agents(&self) -> Option<&dyn AgentManager> {
        Some(self)
    }
}

const NO_SERVER: &str = "no server is named: set LANGGRAPH_URL, or url of [adapters.langgraph], to where LangGraph \
                         listens, such as http://127.0.0.1:2024 for `langgraph dev`; `pip install \
                         'langgraph-cli[inmem]'` installs that";

impl LangGraph {
    fn server(&self) -> Result<&Server> {
        let server = self.server.as_ref();
        server.ok_or_else(|| AdapterError::new("adapter_unavailable", NO_SERVER))
    }

    pub(crate) fn assistants(&self) -> Result<Assistants<'_>> {
        Ok(Assistants {
            server: self.server()?,
            settings: &self.settings,
        })
    }
}

forge_adapter_api::export_adapter!(LangGraph);
