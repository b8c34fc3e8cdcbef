//! The adapter for all dialects.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use forge_adapter_api::options::ALL;
use forge_adapter_api::{
    AdapterError, Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health,
    Host, OutputStrategy, Profile, Result, Running, async_trait,
};
use forge_adapter_transport::http::{Failure, Http, Limits};

use crate::Dialect;
use crate::ask::Structured;
use crate::client::Client;
use crate::run;
use crate::sessions::Sessions;
use crate::settings::Settings;

/// Time limit of a health check.
const PROBE: Duration = Duration::from_millis(1500);
/// Time limit for running executions at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
const MAX_CONCURRENT: u32 = 64;

/// An adapter for servers of this dialect.
pub struct OpenAi<D> {
    host: Host,
    pub(crate) settings: Settings,
    pub(crate) sessions: Sessions,
    /// Clients for executions and for health checks, or a text that says which setting is missing.
    clients: Result<(Client, Client), String>,
    running: Running,
    dialect: PhantomData<D>,
}

impl<D: Dialect> OpenAi<D> {
    /// The instance id. It differs from `NAME` where one library serves several ids.
    pub(crate) fn id(&self) -> &str {
        match self.host.instance() {
            "" => D::NAME,
            id => id,
        }
    }

    fn clients(settings: &Settings, host: &Host) -> Result<Result<(Client, Client), String>> {
        let Some(url) = &settings.base_url else {
            return Ok(Err(missing::<D>("address", "base_url", D::URLS)));
        };
        if D::NEEDS_KEY && settings.api_key.is_none() {
            return Ok(Err(missing::<D>("API key", "api_key", D::KEYS)));
        }
        let own = D::headers().into_iter();
        let mut headers: BTreeMap<String, String> = own
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let operators = settings.headers.iter();
        headers.extend(operators.map(|(name, value)| (name.to_lowercase(), value.clone())));
        let client = |limits| {
            let client = Client::new(Http::new(limits)?, url, settings.api_key.as_ref(), &headers)?;
            Ok::<_, AdapterError>(client.with_refusal(D::refusal))
        };
        let probe = Limits {
            connect: PROBE,
            silence: PROBE,
            total: Some(PROBE),
            ..Limits::default()
        };
        Ok(Ok((client(settings.limits(host))?, client(probe)?)))
    }
}

fn missing<D: Dialect>(what: &str, setting: &str, variables: &[&str]) -> String {
    let variable = variables.first().map(|name| format!("{name} or "));
    format!(
        "no {what} is configured: set {}adapters.{}.{setting}",
        variable.unwrap_or_default(),
        D::NAME
    )
}

#[async_trait]
impl<D: Dialect> ExecutionAdapter for OpenAi<D> {
    const NAME: &'static str = D::NAME;
    const VERSION: &'static str = D::VERSION;
    const ENV: &'static [&'static str] = D::ENV;

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Settings::read::<D>(&config)?;
        let clients = Self::clients(&settings, &host)?;
        if let Err(missing) = &clients {
            tracing::warn!("{missing}");
        }
        Ok(Self {
            host,
            sessions: Sessions::new(settings.session_dir.as_deref())?,
            clients,
            settings,
            running: Running::default(),
            dialect: PhantomData,
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Remaining executions are dropped with their connections.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let probe = match &self.clients {
            Ok((_, probe)) => probe,
            Err(missing) => return Health::degraded(missing),
        };
        match self.settings.health_path::<D>() {
            "" => Health::healthy(),
            path => judge(path, probe.get(path).await.map(drop)),
        }
    }

    fn capabilities(&self) -> Profile {
        let mut capabilities = vec!["streaming", "session_resume", "attachments"];
        if D::TELLS_COST || !self.settings.prices.is_empty() {
            capabilities.push("cost_tracking");
        }
        let mut output_strategies = vec![OutputStrategy::Stream];
        if self.settings.structured != Structured::Off {
            capabilities.push("structured_output");
            output_strategies.push(OutputStrategy::Structured);
        }
        Profile {
            capabilities: capabilities.into_iter().map(str::to_owned).collect(),
            native_tools: Vec::new(),
            max_concurrent: MAX_CONCURRENT,
            output_strategies,
            options: ALL.map(str::to_owned).to_vec(),
            cost_tier: D::COST,
            latency_profile: D::LATENCY,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let client = match &self.clients {
            Ok((client, _)) => client,
            Err(missing) => return Err(AdapterError::new("adapter_unavailable", missing.as_str())),
        };
        let run = self.running.start(&request.task_id);
        run::execute(self, client, &request, &events, &run).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

/// Maps the result of the health probe to a health status.
fn judge(path: &str, answer: Result<(), Failure>) -> Health {
    let failure = match answer {
        // An answer that is not JSON still shows that the server is up.
        Ok(()) | Err(Failure::NotJson(_)) => return Health::healthy(),
        Err(failure) => failure,
    };
    match &failure {
        Failure::Connect(_) | Failure::Silent(_) => {
            Health::offline(format!("{failure}: start the server, or correct base_url"))
        }
        Failure::Refused { host, status, .. } => match status.as_u16() {
            401 | 403 => Health::degraded(format!(
                "{host} rejected the API key ({status}): set a valid one"
            )),
            404 | 405 => Health::degraded(format!(
                "{host} has no {path}: correct base_url, or set health_path to an existing path or to \"\""
            )),
            _ => Health::degraded(format!(
                "{host} answered {status} to {path}: check the server"
            )),
        },
        Failure::Tls(_)
        | Failure::Client(_)
        | Failure::Broken(_)
        | Failure::TooLong(_)
        | Failure::NotJson(_) => Health::degraded(format!("{path}: {failure}: check the server")),
    }
}
