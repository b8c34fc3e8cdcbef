//! Calls of Hermes' management interface, at a server that the operator names or one that starts on first use.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_acp_client::AcpClient;
use forge_adapter_api::foreign_json;
use forge_adapter_api::{AdapterError, Host, Result};
use forge_adapter_transport::http::{Failure, Http, Limits};
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::process::{START, ServeProcess, unavailable};
use crate::settings::Settings;

/// Path of the default profile's settings.
pub(crate) const CONFIG: &str = "/api/config";
/// Header with the server's token.
const HEADER: &str = "X-Hermes-Session-Token";
/// Time limit of a call; a list of models asks the provider.
const CALL: Duration = Duration::from_secs(60);

/// Address and token of a server.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) token: SecretString,
}

pub(crate) struct Management {
    host: Host,
    client: Arc<AcpClient>,
    http: Http,
    /// The operator's server.
    configured: Option<Endpoint>,
    /// The adapter's own server. Locked while it starts, so that one starts.
    process: Mutex<Option<ServeProcess>>,
    /// True if the last call reached no server.
    is_lost: AtomicBool,
    /// The settings at the last reload, or at the first call.
    config: StdMutex<Option<Value>>,
    /// Profiles whose instructions are being replaced.
    changing: StdMutex<HashSet<String>>,
}

/// Exclusive right to replace the instructions of a profile.
pub(crate) struct ChangeGuard<'a> {
    changing: &'a StdMutex<HashSet<String>>,
    profile: &'a str,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        lock(self.changing).remove(self.profile);
    }
}

impl Management {
    pub(crate) fn new(host: Host, settings: Settings, client: Arc<AcpClient>) -> Result<Self> {
        let http = Http::new(Limits {
            total: Some(CALL),
            ..Limits::within(host.limits())
        })?;
        let configured = settings.management_url.zip(settings.management_token);
        Ok(Self {
            host,
            http,
            configured: configured.map(|(url, token)| Endpoint { url, token }),
            client,
            process: Mutex::default(),
            is_lost: AtomicBool::new(false),
            config: StdMutex::default(),
            changing: StdMutex::default(),
        })
    }

    /// True if the operator names the server.
    pub(crate) fn is_configured(&self) -> bool {
        self.configured.is_some()
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.call(|url| self.http.get(&format!("{url}{path}")))
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(|url| self.http.post(&format!("{url}{path}"), body))
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(|url| self.http.put(&format!("{url}{path}"), body))
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.call(|url| self.http.delete(&format!("{url}{path}")))
            .await
    }

    /// True if the last call reached no server. Its text can have the server's stderr, which no health shows.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Reads the settings again; true if they differ from those of the last reload, or of the first call.
    pub(crate) async fn reload_config(&self) -> Result<bool> {
        let now = Some(self.get(CONFIG).await?);
        let mut kept = self.config();
        let changed = *kept != now;
        *kept = now;
        Ok(changed)
    }

    /// Fails with `conflict` while the instructions of the profile are being replaced: Hermes would keep either text, and
    /// report success for both.
    pub(crate) fn change<'a>(&'a self, profile: &'a str) -> Result<ChangeGuard<'a>> {
        let changing = &self.changing;
        match lock(changing).insert(profile.to_owned()) {
            true => Ok(ChangeGuard { changing, profile }),
            false => Err(AdapterError::new(
                "conflict",
                format!("the instructions of {profile} are being changed by another request"),
            )),
        }
    }

    /// Ends the adapter's own server.
    pub(crate) async fn stop(&self) {
        let process = self.process.lock().await.take();
        if let Some(process) = process {
            process.stop().await;
        }
    }

    async fn call(&self, request: impl Fn(&str) -> RequestBuilder) -> Result<Value> {
        let answered = self.answer(request).await;
        let is_lost = matches!(&answered, Err(error) if error.code == "adapter_unavailable");
        self.is_lost.store(is_lost, Ordering::Relaxed);
        answered
    }

    async fn answer(&self, request: impl Fn(&str) -> RequestBuilder) -> Result<Value> {
        let endpoint = self.endpoint().await?;
        self.begin(&endpoint).await;
        match self.send(&endpoint, request(&endpoint.url)).await {
            Err(failure @ (Failure::Connect(_) | Failure::Broken(_) | Failure::Silent(_))) => {
                Err(unavailable(self.lost(&failure).await))
            }
            answered => answered.map_err(|failure| self.refusal(failure)),
        }
    }

    async fn send(&self, endpoint: &Endpoint, request: RequestBuilder) -> Result<Value, Failure> {
        let request = request.header(HEADER, endpoint.token.expose_secret());
        self.http.json(request).await
    }

    /// Reads the settings at the first call, to compare them at a reload.
    async fn begin(&self, endpoint: &Endpoint) {
        let is_known = || self.config().is_some();
        if !is_known() {
            let request = self.http.get(&format!("{}{CONFIG}", endpoint.url));
            // The call that follows reports the failure.
            if let Ok(config) = self.send(endpoint, request).await {
                *self.config() = Some(config);
            }
        }
    }

    fn config(&self) -> MutexGuard<'_, Option<Value>> {
        lock(&self.config)
    }

    /// The server to call; the adapter's own starts here, also after it has ended.
    async fn endpoint(&self) -> Result<Endpoint> {
        if let Some(configured) = &self.configured {
            return Ok(configured.clone());
        }
        let mut process = self.process.lock().await;
        if let Some(running) = process.as_mut() {
            match running.ended() {
                None => return Ok(running.endpoint.clone()),
                Some(reason) => tracing::warn!("{reason}; it is started again"),
            }
        }
        *process = None;
        let started = ServeProcess::start(&self.host, &self.client, START).await?;
        Ok(process.insert(started).endpoint.clone())
    }

    /// Describes a call that got no answer.
    async fn lost(&self, failure: &Failure) -> String {
        let mut process = self.process.lock().await;
        let ended = process.as_mut().and_then(ServeProcess::ended);
        // One that does not listen has ended too, and is about to be noticed.
        if ended.is_some() || matches!(failure, Failure::Connect(_)) {
            *process = None;
        }
        ended.unwrap_or_else(|| format!("`hermes serve`: {failure}"))
    }

    fn refusal(&self, failure: Failure) -> AdapterError {
        let Failure::Refused { status, body, .. } = &failure else {
            return failure.into();
        };
        let code = match status.as_u16() {
            400 | 422 => "invalid_request",
            404 => "not_found",
            401 | 403 => {
                let cure = match self.configured {
                    Some(_) => "; set management_token to its HERMES_DASHBOARD_SESSION_TOKEN",
                    None => "",
                };
                let text = format!("`hermes serve` refused the token ({status}){cure}");
                return AdapterError::new("unauthenticated", text);
            }
            _ => return failure.into(),
        };
        let said = foreign_json::from_str(body).unwrap_or(Value::Null);
        let said = said["detail"].as_str().unwrap_or(body);
        AdapterError::new(code, format!("Hermes: {said}"))
    }
}

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn invalid(text: impl Into<String>) -> AdapterError {
    AdapterError::new("invalid_request", text)
}

pub(crate) fn absent(kind: &str, name: &str) -> AdapterError {
    AdapterError::new("not_found", format!("there is no {kind} {name:?}"))
}

/// Converts the code `not_found` to `None`.
pub(crate) fn found(answer: Result<Value>) -> Result<Option<Value>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code == "not_found" => Ok(None),
        Err(error) => Err(error),
    }
}
