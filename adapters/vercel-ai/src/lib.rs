//! The adapter `vercel-ai`: models of many providers, chosen by `provider/model`. Mode `direct` speaks the providers'
//! own protocols as the `ai` package does, `gateway` uses Vercel's AI Gateway, and `sidecar` runs the `ai` package in a
//! Node process.

mod gateway;
mod gemini;
mod health;
mod messages;
mod parts;
mod providers;
mod responses;
mod run;
mod settings;
mod sidecar;
mod wire;

use std::sync::Mutex;
use std::time::Duration;

use forge_adapter_api::options::ALL;
use forge_adapter_api::{
    Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host,
    LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_openai_client::Sessions;
use forge_adapter_transport::http::{Http, Limits};

use crate::health::Probe;
use crate::run::Room;
use crate::settings::{Mode, Settings};

/// Timeout of a health check request.
const PROBE: Duration = Duration::from_millis(1500);
/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// The adapter.
pub struct VercelAi {
    room: Room,
    probe: Probe,
    running: Running,
}

#[async_trait]
impl ExecutionAdapter for VercelAi {
    const NAME: &'static str = "vercel-ai";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const ENV: &'static [&'static str] = &providers::VARIABLES;

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Settings::read(&config)?;
        let probe = Limits {
            connect: PROBE,
            silence: PROBE,
            total: Some(PROBE),
            ..Limits::default()
        };
        Ok(Self {
            probe: Probe {
                http: Http::new(probe)?,
                node: Mutex::default(),
            },
            room: Room {
                sessions: Sessions::new(settings.session_dir.as_deref())?,
                http: Http::new(settings.limits(&host))?,
                settings,
                host,
            },
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Executions still running are dropped with their connections and processes.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        self.probe.health(&self.room).await
    }

    fn capabilities(&self) -> Profile {
        let settings = &self.room.settings;
        let capabilities = [
            "streaming",
            "session_resume",
            "mcp_servers",
            // MCP tools are called in the bridge's tool rounds; the adapter starts no servers.
            "tool_rounds",
            "cost_tracking",
            "structured_output",
            "attachments",
        ];
        let concurrent = match settings.mode {
            Mode::Direct | Mode::Gateway => 64,
            // A run is a process of some eighty megabytes.
            Mode::Sidecar => 8,
        };
        Profile {
            capabilities: capabilities.map(str::to_owned).to_vec(),
            native_tools: Vec::new(),
            max_concurrent: settings.max_concurrent.unwrap_or(concurrent).max(1),
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
            options: match settings.mode {
                // `stop` and `seed` are not in every provider's protocol.
                Mode::Direct => ALL[..5].iter().map(|&name| name.to_owned()).collect(),
                Mode::Gateway | Mode::Sidecar => ALL.map(str::to_owned).to_vec(),
            },
            cost_tier: CostTier::Low,
            latency_profile: match settings.mode {
                Mode::Direct | Mode::Gateway => LatencyProfile::Fast,
                Mode::Sidecar => LatencyProfile::Moderate,
            },
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        run::execute(&self.room, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

forge_adapter_api::export_adapter!(VercelAi);
