//! One loaded generation of an adapter: facts of its library, instance, profile and calls in flight. After a reload an
//! adapter has several for a while, each with executions of its own.

use forge_adapter_api::foreign_json;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use forge_adapter_api::{AdapterError, CancelRequest, Health, Profile};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::boundary::load_error::LoadError;
use crate::instance::backend::Facts;
use crate::instance::boot::Boot;
use crate::instance::call_stream::Call;
use crate::instance::handle::Handle;
use crate::instance::health::{Monitor, SourceId};
use crate::instance::instance_monitor::{InstanceMonitor, answer, ask, empty};
use crate::instance::meters::Meters;
use crate::instance::relayed::Relayed;
use crate::registry::config::Config;
use crate::registry::settings::Settings;
use forge_base::failpoint;
use forge_base::tasks::Tasks;

/// The op that runs an execution.
const EXECUTE: &str = "execute";
/// Limit for the op `cancel`, which reports whether the adapter knows the execution.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
const CAPABILITIES_TIMEOUT: Duration = Duration::from_secs(5);
const RELAY_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time for `destroy`, even if the grace period is used up.
const DESTROY_TIMEOUT: Duration = Duration::from_millis(500);

/// Context of an adapter, shared by all its generations.
pub(crate) struct AdapterContext {
    pub provider: String,
    pub config: Arc<Config>,
    pub monitor: Arc<Monitor>,
    pub relay: mpsc::Sender<Relayed>,
    pub tracker: Tasks,
}

pub(crate) struct Generation {
    pub provider: String,
    pub facts: Facts,
    pub source: SourceId,
    handle: Handle,
    /// `None` if `initialize` or `capabilities` failed; no further op is then called.
    ready: Option<Ready>,
    traffic: watch::Sender<Traffic>,
    ended: OnceCell<()>,
    /// Stops the background tasks of the instance, at the latest when the generation is dropped.
    attended: CancellationToken,
    _guard: DropGuard,
}

pub(crate) struct Ready {
    profile: RwLock<Arc<Profile>>,
    /// Limit from the adapter's table, which can only lower the profile's.
    bound: u32,
}

impl Ready {
    pub(crate) fn profile(&self) -> Arc<Profile> {
        Arc::clone(&self.profile.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn max_concurrent(&self) -> usize {
        self.bound.min(self.profile().max_concurrent) as usize
    }
}

/// Calls in flight on a generation.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Traffic {
    executions: usize,
    /// Calls of management ops.
    calls: usize,
}

/// Inputs for initialising a generation.
pub(crate) struct Start {
    /// Source of the `initialize` payload.
    pub settings: Settings,
    /// Limit from the adapter's table, which can only lower the profile's.
    pub max_concurrent: Option<u32>,
}

impl Generation {
    /// Loads and initialises an instance, then asks for capabilities and health. If `initialize` or `capabilities`
    /// fails, the generation is not ready and its health says why.
    pub(crate) async fn open(
        boot: Boot,
        start: Start,
        post: &AdapterContext,
    ) -> Result<(Arc<Self>, Health), LoadError> {
        let config = &post.config;
        failpoint::point("adapter.load.before");
        let booted = Handle::boot(boot).await;
        failpoint::point("adapter.load.after");
        let (handle, facts) = booted?;
        let source = post.monitor.new_source();
        let monitor_task = InstanceMonitor {
            handle: handle.clone(),
            source,
            monitor: Arc::clone(&post.monitor),
            relay: post.relay.clone(),
            provider: post.provider.clone(),
            call_timeout: config.call_timeout,
            health_timeout: config.health_timeout,
            initialize_timeout: config.initialize_timeout,
            restart: config.restart.clone(),
        };
        let attended = CancellationToken::new();
        let guard = attended.clone().drop_guard();
        let stop = attended.clone();
        post.tracker.spawn(async move {
            stop.run_until_cancelled(monitor_task.run()).await;
            monitor_task.handle.write_rest_of_logs();
        });
        let settings = start.settings.object(&facts.manifest.env);
        let initialized = initialize(&handle, settings, start.max_concurrent, config);
        let (ready, health) = match initialized.await {
            Ok(ready) => {
                handle.settle();
                (Some(ready), ask(&handle, config.health_timeout).await)
            }
            Err(why) => (None, Health::offline(why)),
        };
        failpoint::point("adapter.initialize.after");
        let generation = Self {
            provider: post.provider.clone(),
            facts,
            source,
            handle,
            ready,
            traffic: watch::Sender::default(),
            ended: OnceCell::new(),
            attended,
            _guard: guard,
        };
        Ok((Arc::new(generation), health))
    }

    pub(crate) fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// True if a call would reach the instance, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        self.handle.is_there()
    }

    pub(crate) fn executions(&self) -> usize {
        self.traffic.borrow().executions
    }

    /// Counts one more execution. The caller checks the limit.
    pub(crate) fn admit(self: &Arc<Self>) -> Permit {
        self.traffic.send_modify(|traffic| traffic.executions += 1);
        Permit {
            generation: Arc::clone(self),
        }
    }

    /// Waits until no call is in flight.
    pub(crate) async fn idle(&self) {
        let mut traffic = self.traffic.subscribe();
        // Cannot fail: the sender is a field of `self`.
        let _ = traffic.wait_for(|now| *now == Traffic::default()).await;
    }

    pub(crate) async fn call(
        &self,
        op: &str,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, AdapterError> {
        self.traffic.send_modify(|traffic| traffic.calls += 1);
        let _visit = CallGuard(&self.traffic);
        answer(&self.handle, op, payload, timeout).await
    }

    /// Calls an op that answers `{member: true or false}`, or the bare value.
    pub(super) async fn flag(
        &self,
        op: &str,
        arguments: &impl Serialize,
        member: &str,
        timeout: Duration,
    ) -> Result<bool, AdapterError> {
        let payload = serde_json::to_vec(arguments).expect("arguments are plain JSON");
        let answer = self.call(op, payload, timeout).await?;
        let violation = |text| AdapterError::new("protocol_violation", text);
        let answer: Value = foreign_json::from_slice(&answer)
            .map_err(|error| violation(format!("{op} was not answered with JSON: {error}")))?;
        let flag = answer.get(member).unwrap_or(&answer).as_bool();
        flag.ok_or_else(|| {
            violation(format!(
                "{op} was not answered with {{\"{member}\": true or false}}"
            ))
        })
    }

    /// Call counters of the instance.
    pub(crate) fn meters(&self) -> &'static Meters {
        self.handle.meters()
    }

    /// Bytes of output not yet read, and bytes of requests that wait for the instance's thread.
    pub(crate) fn buffered(&self) -> (usize, usize) {
        (self.handle.said_bytes(), self.handle.waiting_bytes())
    }

    pub(crate) async fn health(&self, timeout: Duration) -> Health {
        ask(&self.handle, timeout).await
    }

    /// Asks for the profile again, since settings of the runtime can decide it. After a failure the known one stays.
    pub(crate) async fn refresh_profile(&self, timeout: Duration) {
        let Some(ready) = &self.ready else {
            return;
        };
        match profile(&self.handle, timeout).await {
            Ok(profile) if profile != *ready.profile() => {
                tracing::info!(
                    adapter.id = self.provider,
                    "adapter {} has another profile: {}",
                    self.provider,
                    profile.capabilities.join(", ")
                );
                *ready
                    .profile
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = Arc::new(profile);
            }
            Ok(_) => {}
            Err(why) => tracing::debug!(adapter.id = self.provider, "the profile is kept: {why}"),
        }
    }

    /// Enables events outside executions.
    pub(crate) async fn start_relay(&self) {
        failpoint::point("adapter.relay.before");
        let answered = answer(&self.handle, "events.start", empty(), RELAY_TIMEOUT).await;
        failpoint::point("adapter.relay.after");
        if let Err(error) = answered
            && error.code != "unsupported_op"
        {
            tracing::warn!(
                adapter.id = self.provider,
                "adapter {} does not relay events: {error}",
                self.provider
            );
        }
    }

    /// Disables events outside executions.
    pub(crate) async fn stop_relay(&self) {
        self.tell("events.stop", RELAY_TIMEOUT).await;
    }

    /// Ends all calls in flight as `adapter_unavailable`.
    pub(crate) fn cut_off(&self, why: &str) {
        self.handle.cut_off(why);
    }

    /// Calls `events.stop` and `shutdown`, then destroys the instance; one that takes longer than `grace` is abandoned.
    /// Calls in flight end as `adapter_unavailable`. A second caller waits for the first.
    pub(crate) async fn end(&self, grace: Duration) {
        let end = async {
            let deadline = Instant::now() + grace;
            let left = || deadline.saturating_duration_since(Instant::now());
            if self.ready.is_some() {
                self.tell("events.stop", left().min(RELAY_TIMEOUT)).await;
                self.tell("shutdown", left()).await;
            }
            if !self.handle.end(left().max(DESTROY_TIMEOUT)).await {
                tracing::warn!(
                    adapter.id = self.provider,
                    "adapter {} did not shut down in time and is abandoned",
                    self.provider
                );
            }
            self.attended.cancel();
        };
        self.ended.get_or_init(|| end).await;
    }

    async fn tell(&self, op: &str, timeout: Duration) {
        if let Err(error) = answer(&self.handle, op, empty(), timeout).await
            && error.code != "unsupported_op"
        {
            tracing::warn!(
                adapter.id = self.provider,
                "{op} of adapter {}: {error}",
                self.provider
            );
        }
    }
}

/// The right to one running execution on one generation, even if a reload replaces that. Released on drop.
pub struct Permit {
    pub(super) generation: Arc<Generation>,
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permit({})", self.generation.provider)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let traffic = &self.generation.traffic;
        traffic.send_modify(|traffic| traffic.executions -= 1);
    }
}

impl Permit {
    pub fn provider(&self) -> &str {
        &self.generation.provider
    }

    pub fn profile(&self) -> Option<Arc<Profile>> {
        self.generation.ready.as_ref().map(Ready::profile)
    }

    /// Starts an execution; `request` is an `ExecutionRequest` as JSON.
    pub fn execute(&self, request: Vec<u8>) -> Result<Call, AdapterError> {
        self.generation.handle.call(EXECUTE, request)
    }

    /// Asks the adapter to stop an execution; false if it knows no such execution.
    pub async fn cancel(&self, execution_id: &str, task_id: &str) -> Result<bool, AdapterError> {
        let request = CancelRequest {
            execution_id: execution_id.to_owned(),
            task_id: task_id.to_owned(),
        };
        self.generation
            .flag("cancel", &request, "cancelled", CANCEL_TIMEOUT)
            .await
    }
}

/// Counts a management call as in flight until dropped.
struct CallGuard<'a>(&'a watch::Sender<Traffic>);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|traffic| traffic.calls -= 1);
    }
}

/// Calls `initialize` and `capabilities`; the error says why the adapter is offline.
async fn initialize(
    handle: &Handle,
    settings: Map<String, Value>,
    max_concurrent: Option<u32>,
    config: &Config,
) -> Result<Ready, String> {
    let settings = Value::Object(settings);
    handle.hide(&settings);
    let settings = settings.to_string().into_bytes();
    answer(handle, "initialize", settings, config.initialize_timeout)
        .await
        .map_err(|error| format!("initialize failed: {error}"))?;
    Ok(Ready {
        profile: RwLock::new(Arc::new(profile(handle, CAPABILITIES_TIMEOUT).await?)),
        bound: max_concurrent.unwrap_or(u32::MAX),
    })
}

/// Calls `capabilities`; the error says why there is no valid profile.
async fn profile(handle: &Handle, timeout: Duration) -> Result<Profile, String> {
    let profile = answer(handle, "capabilities", empty(), timeout)
        .await
        .map_err(|error| format!("capabilities failed: {error}"))?;
    let profile: Profile = foreign_json::from_slice(&profile)
        .map_err(|error| format!("capabilities returned no valid profile: {error}"))?;
    if profile.max_concurrent == 0 {
        return Err("its profile says maxConcurrent 0; wanted at least 1".to_owned());
    }
    Ok(profile)
}
