//! The adapter `a2a`: drives an agent over the Agent2Agent protocol, 1.0 and 0.3, by JSON-RPC.

mod card;
mod config;
mod rpc;
mod talk;
mod transcript;
mod update;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forge_adapter_api::{
    AdapterError, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult,
    Health, Host, LatencyProfile, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_transport::http::{Failure, Http, Limits};
use serde_json::Value;

use crate::card::{Endpoint, UnusableCard};
use crate::config::Settings;
use crate::talk::Talk;

/// Time for executions to end at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Timeout for reading the card in a health check.
const HEALTH: Duration = Duration::from_millis(900);

const NO_URL: &str = "no agent is configured: set adapters.a2a.url, or A2A_URL";

pub struct A2a {
    settings: Settings,
    http: Http,
    /// The endpoint from the last read of the card.
    endpoint: Mutex<Option<Endpoint>>,
    running: Running,
}

enum CardError {
    Fetch(Failure),
    Use(UnusableCard),
}

#[async_trait]
impl ExecutionAdapter for A2a {
    const NAME: &'static str = "a2a";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let instance = match host.instance() {
            "" => Self::NAME,
            instance => instance,
        };
        let settings = Settings::read(&config, instance)?;
        let http = Http::new(Limits {
            silence: Duration::from_secs_f64(settings.table.silence_seconds),
            ..Limits::within(host.limits())
        })?;
        let agent = settings
            .card_url
            .as_ref()
            .and_then(|url| url.host_str())
            .unwrap_or("none");
        tracing::info!(agent = %agent, "executions are sent to this agent");
        Ok(Self {
            settings,
            http,
            endpoint: Mutex::new(None),
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Executions still running are dropped, which cancels their tasks at the agent.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        if self.settings.card_url.is_none() {
            return Health::degraded(NO_URL);
        }
        match tokio::time::timeout(HEALTH, self.fetch()).await {
            Ok(Ok(_)) => Health::healthy(),
            Ok(Err(CardError::Use(error))) => Health::degraded(error.to_string()),
            Ok(Err(CardError::Fetch(Failure::Refused { status, .. }))) => Health::degraded(match status.as_u16() {
                401 | 403 => format!("the agent answered {status}: set adapters.a2a.token, api_key or headers"),
                404 => "the agent has no card at this address: correct adapters.a2a.url, or set it to the card's own address".to_owned(),
                _ => format!("the agent answered {status} for its card: check its log"),
            }),
            Ok(Err(CardError::Fetch(error))) => {
                Health::offline(format!("{}: start the agent, or correct adapters.a2a.url", AdapterError::from(error)))
            }
            Err(_) => Health::degraded(format!("the agent did not return its card within {HEALTH:?}: check its load")),
        }
    }

    fn capabilities(&self) -> Profile {
        Profile {
            capabilities: ["streaming", "session_resume", "attachments"]
                .map(str::to_owned)
                .into(),
            native_tools: Vec::new(),
            max_concurrent: self.settings.table.max_concurrent.max(1),
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        let known = self
            .endpoint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let endpoint = match known {
            Some(endpoint) => endpoint,
            None => tokio::select! {
                fetched = self.fetch() => fetched.map_err(|error| match error {
                    CardError::Fetch(failure) => AdapterError::from(failure),
                    CardError::Use(error) => AdapterError::new("upstream_error", error.to_string()),
                })?,
                () = run.cancelled() => return Err(AdapterError::cancelled()),
            },
        };
        let talk = Talk {
            http: &self.http,
            settings: &self.settings,
            endpoint: &endpoint,
            events: &events,
        };
        talk.execute(&request, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

impl A2a {
    /// Reads the card and caches its endpoint.
    async fn fetch(&self) -> std::result::Result<Endpoint, CardError> {
        let Some(url) = &self.settings.card_url else {
            return Err(CardError::Use(UnusableCard::NotConfigured));
        };
        let request = self.settings.with_credentials(self.http.get(url.as_str()));
        let card: Value = self.http.json(request).await.map_err(CardError::Fetch)?;
        let endpoint = Endpoint::choose(&self.settings, url, &card).map_err(CardError::Use)?;
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some(endpoint.clone());
        Ok(endpoint)
    }
}

forge_adapter_api::export_adapter!(A2a);
