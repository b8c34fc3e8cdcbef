//! The adapter `gloo-ai`: runs tasks on the Gloo AI platform, whose completions are routed, guarded and grounded.
//! Written from the platform's documentation and tested against a strict fake, not the service.

mod answer;
mod ask;
mod models;
mod prices;
mod run;
mod settings;
mod token;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forge_adapter_api::manage::{Interface, RuntimeManager};
use forge_adapter_api::{
    Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host,
    LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_openai_client::Sessions;
use forge_adapter_transport::http::{Http, Limits};
use tokio::time::timeout;

use crate::prices::Prices;
use crate::settings::{Keys, Settings};
use crate::token::{Client, Credentials};

const NO_CREDENTIALS: &str = "no credentials: set GLOO_API_KEY, or GLOO_CLIENT_ID and GLOO_CLIENT_SECRET, to those of \
                              https://studio.ai.gloo.com";
/// Timeout of a health check request.
const PROBE: Duration = Duration::from_millis(1500);
/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);

pub struct GlooAi {
    settings: Settings,
    http: Http,
    credentials: Option<Credentials>,
    prices: Prices,
    sessions: Sessions,
    running: Running,
    /// True if the platform rejected the credentials when they were last used.
    refused: AtomicBool,
}

#[async_trait]
impl ExecutionAdapter for GlooAi {
    const NAME: &'static str = "gloo-ai";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const ENV: &'static [&'static str] = &[
        "GLOO_API_KEY",
        "GLOO_BASE_URL",
        "GLOO_CLIENT_ID",
        "GLOO_CLIENT_SECRET",
    ];
    const INTERFACES: &'static [Interface] = &[Interface::Runtime];

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let mut settings = Settings::read(&config)?;
        // Short timeouts: tokens and prices are small.
        let quick = Http::new(Limits {
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            body_bytes: 4 << 20,
            ..Limits::default()
        })?;
        let credentials = settings.keys.take().map(|keys| match keys {
            Keys::Key(key) => Credentials::Key(key),
            Keys::Client { id, secret } => {
                let url = settings.platform.token();
                Credentials::Client(Box::new(Client::new(quick.clone(), url, id, secret)))
            }
        });
        if credentials.is_none() {
            tracing::warn!("{NO_CREDENTIALS}");
        }
        Ok(Self {
            http: Http::new(Limits::within(host.limits()))?,
            credentials,
            prices: Prices::new(quick, settings.platform.models()),
            sessions: Sessions::new(settings.table.session_dir.as_deref())?,
            running: Running::default(),
            refused: AtomicBool::new(false),
            settings,
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Executions still running are dropped with their connections.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let Some(credentials) = &self.credentials else {
            return Health::degraded(NO_CREDENTIALS);
        };
        let probe = async { tokio::join!(self.prices.probe(), credentials.bearer()) };
        let Ok((platform, bearer)) = timeout(PROBE, probe).await else {
            return Health::offline("the platform does not answer; check GLOO_BASE_URL");
        };
        match (platform, bearer) {
            (Err(error), _) => Health::offline(format!(
                "{}; check GLOO_BASE_URL and the network",
                error.message
            )),
            (Ok(()), Err(error)) => Health::degraded(error.message),
            (Ok(()), Ok(_)) if self.refused.load(Ordering::Relaxed) => Health::degraded(
                "the platform rejected the credentials when they were last used; check GLOO_API_KEY",
            ),
            (Ok(()), Ok(_)) => Health::healthy(),
        }
    }

    fn capabilities(&self) -> Profile {
        Profile {
            capabilities: ["streaming", "session_resume", "cost_tracking"]
                .map(str::to_owned)
                .to_vec(),
            native_tools: Vec::new(),
            max_concurrent: self.settings.table.max_concurrent,
            output_strategies: vec![OutputStrategy::Stream],
            options: ["maxOutputTokens", "temperature"]
                .map(str::to_owned)
                .to_vec(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        run::execute(self, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }

    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        Some(self)
    }
}

forge_adapter_api::export_adapter!(GlooAi);
