//! One adapter as the rest of the bridge sees it: what it can do, how it is, and calls to it. An adapter
//! that cannot serve is still here, with the reason.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::crash;
use forge_adapter_api::{AdapterError, Health, Profile};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::attend::{Attendant, answer, ask, empty};
use super::health::{HealthReport, Monitor};
use super::instance::{Boot, Facts, Handle};
use super::listen::Call;
use super::load::LoadError;
use super::{Config, Relayed};

/// The op that runs a request.
const EXECUTE: &str = "execute";
/// The adapter's own cancel has this long to say whether it knows the execution.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
const CAPABILITIES_TIMEOUT: Duration = Duration::from_secs(5);
const RELAY_TIMEOUT: Duration = Duration::from_secs(2);
/// Even at the very end an instance gets this long for `destroy`.
const DESTROY_TIMEOUT: Duration = Duration::from_millis(500);

/// A handle; clones are the same adapter.
#[derive(Clone)]
pub struct Adapter {
    shared: Arc<Shared>,
}

struct Shared {
    provider: String,
    monitor: Arc<Monitor>,
    /// Absent when the library could not be loaded.
    loaded: Option<Loaded>,
    /// Why it never loaded.
    load_error: Option<String>,
    ended: CancellationToken,
}

struct Loaded {
    facts: Facts,
    handle: Handle,
    /// Absent when `initialize` or `capabilities` failed: then nothing is ever asked of it again.
    ready: Option<Ready>,
}

struct Ready {
    profile: Arc<Profile>,
    max_concurrent: usize,
    slots: Arc<Semaphore>,
}

/// The right to one running execution; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _slot: OwnedSemaphorePermit,
}

/// What an adapter is started from.
pub(super) struct Plan {
    pub id: String,
    pub boot: Result<Boot, LoadError>,
    /// What `initialize` receives.
    pub settings: Map<String, Value>,
    /// The table's bound, which can only lower the profile's.
    pub max_concurrent: Option<u32>,
}

impl Adapter {
    /// Loads, initialises and asks for capabilities and health; whatever fails becomes its health.
    pub(super) async fn start(
        plan: Plan,
        config: &Config,
        relay: mpsc::Sender<Relayed>,
        tracker: &TaskTracker,
    ) -> Self {
        let provider = plan.id;
        let monitor = Arc::new(Monitor::new(provider.clone(), relay.clone()));
        let ended = CancellationToken::new();
        crash::point("adapter.load.before");
        let booted = match plan.boot {
            Ok(boot) => Handle::boot(boot).await,
            Err(error) => Err(error),
        };
        crash::point("adapter.load.after");
        let (loaded, load_error) = match booted {
            Err(error) => {
                if let LoadError::Layout { full, .. } = &error {
                    tracing::debug!(adapter.id = provider, "layout check: {full}");
                }
                let line = chain(&error);
                monitor.record(Health::offline(&line), Timestamp::now());
                (None, Some(line))
            }
            Ok((handle, facts)) => {
                let initialised = Arc::new(AtomicBool::new(false));
                let attendant = Attendant {
                    handle: handle.clone(),
                    monitor: Arc::clone(&monitor),
                    relay,
                    provider: provider.clone(),
                    patience: config.start_patience,
                    health_timeout: config.health_timeout,
                    ready: Arc::clone(&initialised),
                };
                let stop = ended.clone();
                tracker.spawn(async move {
                    stop.run_until_cancelled(attendant.run()).await;
                    attendant.handle.write_rest_of_logs();
                });
                let ready =
                    match initialize(&handle, plan.settings, plan.max_concurrent, config).await {
                        Ok(ready) => {
                            initialised.store(true, Ordering::Release);
                            let health = ask(&handle, config.health_timeout).await;
                            monitor.record(health, Timestamp::now());
                            Some(ready)
                        }
                        Err(why) => {
                            monitor.record(Health::offline(why), Timestamp::now());
                            None
                        }
                    };
                crash::point("adapter.initialize.after");
                let loaded = Loaded {
                    facts,
                    handle,
                    ready,
                };
                (Some(loaded), None)
            }
        };
        Self {
            shared: Arc::new(Shared {
                provider,
                monitor,
                loaded,
                load_error,
                ended,
            }),
        }
    }

    pub fn provider(&self) -> &str {
        &self.shared.provider
    }

    fn facts(&self) -> Option<&Facts> {
        self.shared.loaded.as_ref().map(|loaded| &loaded.facts)
    }

    /// The library's own version.
    pub fn version(&self) -> Option<&str> {
        self.facts().map(|facts| facts.manifest.version.as_str())
    }

    /// The library's own name, which differs from the provider where a table says so.
    pub fn library(&self) -> Option<&str> {
        self.facts().map(|facts| facts.manifest.provider.as_str())
    }

    /// The file that was named; what runs is a private copy of it.
    pub fn path(&self) -> Option<&Path> {
        self.facts().map(|facts| facts.path.as_path())
    }

    /// The file's SHA-256 in hexadecimal digits.
    pub fn digest(&self) -> Option<&str> {
        self.facts().map(|facts| facts.digest.as_str())
    }

    /// Why the library was not loaded, in one line.
    pub fn load_error(&self) -> Option<&str> {
        self.shared.load_error.as_deref()
    }

    fn ready(&self) -> Option<&Ready> {
        self.shared.loaded.as_ref()?.ready.as_ref()
    }

    /// Absent when it was never loaded or initialised.
    pub fn profile(&self) -> Option<Arc<Profile>> {
        self.ready().map(|ready| Arc::clone(&ready.profile))
    }

    /// As last heard.
    pub fn health(&self) -> HealthReport {
        self.shared.monitor.current()
    }

    /// The last changes, the newest last.
    pub fn history(&self) -> Vec<HealthReport> {
        self.shared.monitor.history()
    }

    /// As the manifest lists them: `execution@1`, `agents@1.2`.
    pub fn interfaces(&self) -> Vec<String> {
        self.facts()
            .map(|facts| facts.manifest.interfaces.clone())
            .unwrap_or_default()
    }

    /// Whether an interface is there in any version: `agents`.
    pub fn has_interface(&self, name: &str) -> bool {
        self.facts().is_some_and(|facts| {
            let mut interfaces = facts.manifest.interfaces.iter();
            interfaces.any(|interface| interface.split('@').next() == Some(name))
        })
    }

    /// 0 when it cannot serve.
    pub fn max_concurrent(&self) -> usize {
        self.ready().map_or(0, |ready| ready.max_concurrent)
    }

    pub fn running(&self) -> usize {
        self.ready().map_or(0, |ready| {
            ready.max_concurrent - ready.slots.available_permits()
        })
    }

    /// One running execution, or none when as many run as may.
    pub fn reserve(&self) -> Option<Permit> {
        let slots = Arc::clone(&self.ready()?.slots);
        let slot = slots.try_acquire_owned().ok()?;
        Some(Permit { _slot: slot })
    }

    /// Starts an execution; `request` is an `ExecutionRequest` as JSON.
    pub fn execute(&self, request: Vec<u8>) -> Result<Call, AdapterError> {
        self.handle()?.call(EXECUTE, request)
    }

    /// Asks the adapter to stop an execution; false when it knows none of that name.
    pub async fn cancel(&self, execution_id: &str, task_id: &str) -> Result<bool, AdapterError> {
        let payload = json!({"executionId": execution_id, "taskId": task_id});
        let payload = payload.to_string().into_bytes();
        let answer = self.call("cancel", payload, CANCEL_TIMEOUT).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| {
            AdapterError::new(
                "protocol_violation",
                format!("cancel was not answered with JSON: {error}"),
            )
        })?;
        let cancelled = answer.get("cancelled").unwrap_or(&answer);
        cancelled.as_bool().ok_or_else(|| {
            AdapterError::new(
                "protocol_violation",
                "cancel was not answered with {\"cancelled\": true or false}",
            )
        })
    }

    /// One management op; its events, if any, are left out.
    pub async fn call(
        &self,
        op: &str,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, AdapterError> {
        answer(self.handle()?, op, payload, timeout).await
    }

    fn handle(&self) -> Result<&Handle, AdapterError> {
        match &self.shared.loaded {
            Some(loaded) if loaded.ready.is_some() => Ok(&loaded.handle),
            Some(_) | None => {
                let why = self.health().message;
                let why = why.as_deref().unwrap_or("it was never initialised");
                Err(AdapterError::new(
                    "adapter_unavailable",
                    format!("adapter {} cannot serve: {why}", self.provider()),
                ))
            }
        }
    }

    /// Asks for its health when the last answer is old; at most one question is under way.
    pub(super) async fn refresh_health(&self, config: &Config) {
        let Ok(handle) = self.handle() else {
            return;
        };
        if let Some(_asking) = self.shared.monitor.ask(config.health_age, Timestamp::now()) {
            let health = ask(handle, config.health_timeout).await;
            self.shared.monitor.record(health, Timestamp::now());
        }
    }

    /// Lets it send events outside executions.
    pub(super) async fn start_relay(&self) {
        let Ok(handle) = self.handle() else {
            return;
        };
        if let Err(error) = answer(handle, "events.start", empty(), RELAY_TIMEOUT).await
            && error.code != "unsupported_op"
        {
            tracing::warn!(
                adapter.id = self.provider(),
                "adapter {} does not relay events: {error}",
                self.provider()
            );
        }
    }

    /// Ends it in order, and without order when it does not answer in time.
    pub(super) async fn shutdown(&self, grace: Duration) {
        let Some(loaded) = &self.shared.loaded else {
            self.shared.ended.cancel();
            return;
        };
        let deadline = Instant::now() + grace;
        let left = || deadline.saturating_duration_since(Instant::now());
        if loaded.ready.is_some() {
            for (op, timeout) in [
                ("events.stop", left().min(RELAY_TIMEOUT)),
                ("shutdown", grace),
            ] {
                let timeout = timeout.min(left());
                if let Err(error) = answer(&loaded.handle, op, empty(), timeout).await
                    && error.code != "unsupported_op"
                {
                    tracing::warn!(
                        adapter.id = self.provider(),
                        "{op} of adapter {}: {error}",
                        self.provider()
                    );
                }
            }
        }
        if !loaded.handle.end(left().max(DESTROY_TIMEOUT)).await {
            tracing::warn!(
                adapter.id = self.provider(),
                "adapter {} did not end in time and is left behind",
                self.provider()
            );
        }
        self.shared.ended.cancel();
    }
}

/// The adapter's start; the error says why it is offline.
async fn initialize(
    handle: &Handle,
    settings: Map<String, Value>,
    bound: Option<u32>,
    config: &Config,
) -> Result<Ready, String> {
    let settings = Value::Object(settings).to_string().into_bytes();
    answer(handle, "initialize", settings, config.initialize_timeout)
        .await
        .map_err(|error| format!("initialize failed: {error}"))?;
    let profile = answer(handle, "capabilities", empty(), CAPABILITIES_TIMEOUT)
        .await
        .map_err(|error| format!("capabilities failed: {error}"))?;
    let profile: Profile = serde_json::from_slice(&profile)
        .map_err(|error| format!("capabilities answered no profile: {error}"))?;
    if profile.max_concurrent == 0 {
        return Err("its profile says maxConcurrent 0; wanted at least 1".to_owned());
    }
    let bound = bound.unwrap_or(u32::MAX).min(profile.max_concurrent);
    let max_concurrent = (bound as usize).min(Semaphore::MAX_PERMITS);
    Ok(Ready {
        profile: Arc::new(profile),
        max_concurrent,
        slots: Arc::new(Semaphore::new(max_concurrent)),
    })
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}
