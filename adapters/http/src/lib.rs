//! The adapter `http`: posts executions to a server that uses the bridge's JSON. `custom` and
//! `convex-native` are this library under other ids.

mod accepted_ids;
mod callback_request;
mod callback_server;
mod config;
mod deferred;
mod exchange;
mod signing;

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{
    AdapterError, Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health,
    HealthStatus, Host, Profile, Result, Running, async_trait,
};
use forge_adapter_transport::http::{Failure, Http, Limits};
use secrecy::ExposeSecret as _;

use crate::callback_server::CallbackServer;
use crate::config::Settings;
use crate::exchange::Exchange;

/// Time limit for running executions at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Time limit of the health check.
const HEALTH: Duration = Duration::from_millis(900);

/// Message of an adapter without a server; `instance` is its id.
fn no_url(instance: &str) -> String {
    let variable = instance.to_ascii_uppercase().replace('-', "_");
    format!("no server is configured: set adapters.{instance}.url, or {variable}_URL")
}

pub struct HttpAdapter {
    /// The adapter's id.
    instance: String,
    settings: Settings,
    http: Http,
    door: Option<CallbackServer>,
    running: Running,
}

#[async_trait]
impl ExecutionAdapter for HttpAdapter {
    const NAME: &'static str = "http";
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
        let door = match (&settings.table.callback, &settings.signing) {
            (Some(callback), Some(signing)) => {
                let door = CallbackServer::open(callback, Arc::clone(signing)).await;
                Some(door.map_err(|error| {
                    let message = format!(
                        "cannot listen for callbacks on {}: {error}",
                        callback.listen
                    );
                    AdapterError::new("invalid_config", message)
                })?)
            }
            (_, _) => None,
        };
        let server = settings
            .url
            .as_ref()
            .and_then(|url| url.host_str())
            .unwrap_or("none");
        tracing::info!(server = %server, "executions are posted to this server");
        Ok(Self {
            instance: instance.to_owned(),
            settings,
            http,
            door,
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        // Remaining executions are dropped, which also sends their cancel requests to the server.
        self.running.drain(SHUTDOWN).await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let server = self.server_health().await;
        match self.door.as_ref().and_then(CallbackServer::closed) {
            Some(why) if server.status == HealthStatus::Healthy => Health::degraded(why),
            Some(_) | None => server,
        }
    }

    fn capabilities(&self) -> Profile {
        let table = &self.settings.table;
        Profile {
            capabilities: table.capabilities.clone(),
            native_tools: table.native_tools.clone(),
            max_concurrent: table.max_concurrent.max(1),
            output_strategies: table.output_strategies.clone(),
            options: table.options.clone(),
            cost_tier: table.cost_tier,
            latency_profile: table.latency_profile,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let Some(url) = &self.settings.url else {
            return Err(AdapterError::new(
                "adapter_unavailable",
                no_url(&self.instance),
            ));
        };
        let run = self.running.start(&request.task_id);
        let exchange = Exchange {
            http: &self.http,
            settings: &self.settings,
            url,
            door: self.door.as_ref(),
            events: &events,
            run: &run,
        };
        exchange.execute(&request).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

impl HttpAdapter {
    async fn server_health(&self) -> Health {
        let Some(url) = &self.settings.health_url else {
            return Health::degraded(no_url(&self.instance));
        };
        let mut get = self.http.get(url.as_str());
        for (name, value) in &self.settings.table.headers {
            get = get.header(name, value.expose_secret());
        }
        if let Some(token) = &self.settings.table.token {
            get = get.bearer_auth(token.expose_secret());
        }
        let answer = tokio::time::timeout(HEALTH, self.http.answer(get)).await;
        match answer {
            Ok(Ok(_)) => Health::healthy(),
            Ok(Err(Failure::Refused { status, .. })) => match status.as_u16() {
                401 | 403 => Health::degraded(format!(
                    "the server answered {status}: set adapters.{}.token or headers",
                    self.instance
                )),
                // The server is up; it only does not accept a GET here.
                300..=499 => Health::healthy(),
                _ => Health::degraded(format!("the server answered {status}: check its log")),
            },
            Ok(Err(error)) => Health::offline(format!(
                "{}: start the server, or correct adapters.{}.url",
                AdapterError::from(error),
                self.instance
            )),
            Err(_) => Health::degraded(format!(
                "the server did not answer within {HEALTH:?}: check its load"
            )),
        }
    }
}

forge_adapter_api::export_adapter!(HttpAdapter);
