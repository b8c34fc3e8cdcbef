//! The adapter `openclaw`: runs tasks on an OpenClaw gateway operated elsewhere, over one WebSocket, and manages what
//! the gateway keeps.

mod agents;
mod archive;
mod connection;
mod frame;
mod gateway;
mod health;
mod identity;
mod link;
mod outcome;
mod past;
mod progress;
mod run;
mod runtime;
mod session;
mod settings;
mod skills;
mod subagents;
mod transcript;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forge_adapter_api::manage::{
    AgentManager, Interface, RuntimeManager, SkillManager, SystemManager,
};
use forge_adapter_api::{
    AdapterError, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult,
    Health, Host, LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_transport::http::{Http, Limits};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::connection::lock;
use crate::gateway::Gateway;
use crate::health::Facts;
use crate::identity::Identity;
use crate::run::Execution;
use crate::settings::Settings;

/// Wait for the first connection at the start.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for executions to end at shutdown and to abort their runs.
const SHUTDOWN: Duration = Duration::from_secs(5);

pub struct OpenClaw {
    settings: Arc<Settings>,
    gateway: Option<Gateway>,
    facts: Mutex<Facts>,
    /// Hash of the gateway's settings at the last look.
    config_hash: Mutex<Option<String>>,
    running: Running,
    tasks: TaskTracker,
}

#[async_trait]
impl ExecutionAdapter for OpenClaw {
    const NAME: &'static str = "openclaw";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const INTERFACES: &'static [Interface] = &Interface::ALL;

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Arc::new(Settings::read(&config)?);
        let tasks = TaskTracker::new();
        let facts = Mutex::new(Facts::default());
        let mut hash = None;
        let gateway = match settings.url.clone() {
            Some(url) => {
                let http = Http::new(Limits::within(host.limits()))?;
                let identity = Identity::open(host.state_dir())?;
                let gateway = Gateway::start(http, url, Arc::clone(&settings), identity, &tasks);
                gateway.settled(CONNECT).await;
                if gateway.hello().is_ok() {
                    match health::look(&facts, &gateway).await {
                        Ok(facts) => hash = Some(facts.config_hash().to_owned()),
                        Err(failure) => tracing::warn!(%failure, "the settings are not known yet"),
                    }
                }
                Some(gateway)
            }
            None => None,
        };
        Ok(Self {
            settings,
            gateway,
            facts,
            config_hash: Mutex::new(hash),
            running: Running::default(),
            tasks,
        })
    }

    async fn shutdown(&self) -> Result<()> {
        self.running.drain(SHUTDOWN).await;
        if let Some(gateway) = &self.gateway {
            gateway.stop();
        }
        self.tasks.close();
        // Tasks that are left after the limit are dropped with the runtime.
        let _ = timeout(SHUTDOWN, self.tasks.wait()).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let Some(gateway) = &self.gateway else {
            return Health::degraded(NO_GATEWAY);
        };
        // The next check repeats a look that failed; the health says why it did.
        let look = timeout(health::PROBE, health::look(&self.facts, gateway));
        tokio::join!(health::probe(gateway), look).0
    }

    fn capabilities(&self) -> Profile {
        let mut capabilities = vec![
            "streaming",
            "session_resume",
            "file_io",
            "subagents",
            "cost_tracking",
            "management",
            "native_tools",
        ];
        let facts = lock(&self.facts).clone();
        if facts.is_sandboxed {
            capabilities.push("sandboxing");
        }
        Profile {
            capabilities: capabilities.into_iter().map(str::to_owned).collect(),
            native_tools: facts.native_tools,
            max_concurrent: self.settings.table.max_concurrent.max(1),
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::File],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Moderate,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        let execution = Execution {
            gateway: self.gateway()?,
            settings: &self.settings,
            facts: &self.facts,
            request: &request,
            events: &events,
            cancel: &run,
            afterwards: &self.tasks,
        };
        execution.run().await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }

    async fn start_event_relay(&self, events: Events) -> Result<()> {
        self.relay(Some(events));
        Ok(())
    }

    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        Some(self)
    }

    fn agents(&self) -> Option<&dyn AgentManager> {
        Some(self)
    }

    fn skills(&self) -> Option<&dyn SkillManager> {
        Some(self)
    }

    fn system(&self) -> Option<&dyn SystemManager> {
        Some(self)
    }

    async fn stop_event_relay(&self) -> Result<()> {
        self.relay(None);
        Ok(())
    }
}

const NO_GATEWAY: &str = "no gateway is named: set OPENCLAW_URL, or url of [adapters.openclaw], to where OpenClaw \
                          listens, such as ws://127.0.0.1:18789, and OPENCLAW_TOKEN to its token; `npm install -g \
                          openclaw` installs it, `openclaw gateway run` starts it";

impl OpenClaw {
    fn gateway(&self) -> Result<&Gateway> {
        let gateway = self.gateway.as_ref();
        gateway.ok_or_else(|| AdapterError::new("adapter_unavailable", NO_GATEWAY))
    }

    fn relay(&self, events: Option<Events>) {
        if let Some(gateway) = &self.gateway {
            gateway.relay(events);
        }
    }
}

forge_adapter_api::export_adapter!(OpenClaw);
