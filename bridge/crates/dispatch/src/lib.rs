//! The dispatch pipeline, one file per stage: `request → validate → route → record → assemble → execute
//! → normalise → finish`. Independent of HTTP, SQL and the plugin boundary.
#![forbid(unsafe_code)]

pub mod accumulator;
pub mod assemble;
pub mod attachments;
mod attempt;
pub mod budget;
mod cancel;
pub mod capture;
mod event_batcher;
mod execute;
mod external;
mod external_tools;
pub mod finish;
mod gate;
pub mod idempotency;
pub mod mcp;
pub mod meters;
mod model_retries;
pub mod model_usage;
mod next_wakeup;
pub mod nodes;
pub mod normalise;
pub mod output_files;
pub mod recover;
mod repair;
pub mod request;
mod retraction;
pub mod roles;
pub mod route;
mod running;
mod schedule;
mod spans;
mod start;
mod steer;
pub mod submit;
#[cfg(test)]
mod tests;
mod tool_calls;
mod tool_loop;
pub mod trace;
pub mod validate;
pub mod wait;
mod waiting_providers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::mcp::Servers;
use forge_adapter_api::Profile;
use forge_base::id::DispatchId;
use forge_base::tasks::Tasks;
use forge_base::trace::Spans;
use forge_base::vault::Vault;
use forge_delivery::Deliverer;
use forge_external::External;
use forge_net as net;
use forge_plugin_host::Registry;
pub use forge_plugin_host::Steered;
use forge_process::ownership::UserId;
use forge_store as store;

use finish::Finisher;
use next_wakeup::NextWakeup;
use nodes::Offers;
use running::Running;
use validate::FieldError;
use waiting_providers::WaitingProviders;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const MIB: usize = 1024 * 1024;

/// Event data that names the adapter of a dispatch.
#[derive(Serialize)]
struct At<'a> {
    provider: &'a str,
}

/// Limits and defaults of dispatches.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Timeout of one attempt when the dispatch sets none.
    #[serde(with = "forge_base::duration")]
    pub default_timeout: Duration,
    /// Upper bound of the timeout and idle timeout that a dispatch sets.
    #[serde(with = "forge_base::duration")]
    pub max_timeout: Duration,
    /// Longest time in the queue when the dispatch sets none.
    #[serde(with = "forge_base::duration")]
    pub queue_timeout: Duration,
    /// Upper bound of the queue timeout that a dispatch sets.
    #[serde(with = "forge_base::duration")]
    pub max_queue_timeout: Duration,
    /// Maximum number of queued dispatches; further ones are answered with 429.
    pub queue_limit: u64,
    /// Maximum number of attempts under `recovery: retry` and `resume`, the first one included.
    pub max_attempts: u32,
    /// Folders below which `workspace.dir` is allowed, at acceptance and at each start. Empty: no dispatch may name a folder.
    pub workspace_roots: Vec<PathBuf>,
    /// True if `workspace.dir` names the same folder on all bridges that share the store; otherwise such a dispatch runs on
    /// the bridge that accepted it.
    pub shared_workspaces: bool,
    /// Folder of the checkouts of runs. Only their own steps may name folders below it, whatever the roots are.
    #[serde(skip)]
    pub checkouts: Option<PathBuf>,
    /// Users of the programs that adapters start, who are given the checkouts.
    #[serde(skip)]
    pub program_users: ProgramUsers,
    /// Bytes of an output included in the result and the callback; the whole output has its own route.
    pub output_inline_bytes: usize,
    /// Maximum bytes of an output; a longer one ends the dispatch as `output_too_large`.
    pub output_limit_bytes: usize,
    /// Maximum bytes of `outputSchema` as compact JSON.
    pub schema_limit_bytes: usize,
    /// Time that an adapter has to end an execution after a cancellation or a timeout.
    #[serde(with = "forge_base::duration")]
    pub cancel_grace: Duration,
    /// Maximum number of repeated calls in one attempt to an adapter that returns tool calls.
    pub max_tool_rounds: u32,
    /// Maximum bytes of all tool calls and their results in one attempt, as compact JSON.
    pub tool_limit_bytes: usize,
    /// Keep a dispatch queued while its adapter has been offline for less than this (adapter pinned, or the only
    /// candidate).
    #[serde(with = "forge_base::duration")]
    pub offline_grace: Duration,
}

/// Users of the programs that adapters start, where these are other users than the bridge's.
#[derive(Clone, Debug, Default)]
pub struct ProgramUsers {
    pub default: Option<UserId>,
    /// Adapters with a setting of their own.
    pub of_adapters: BTreeMap<String, Option<UserId>>,
}

impl ProgramUsers {
    pub fn of(&self, adapter: &str) -> Option<UserId> {
        *self.of_adapters.get(adapter).unwrap_or(&self.default)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = UserId> {
        let all = self.of_adapters.values().chain([&self.default]);
        all.filter_map(|user| *user)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_timeout: 600 * SECOND,
            max_timeout: DAY,
            queue_timeout: DAY,
            max_queue_timeout: 30 * DAY,
            queue_limit: 1_000_000,
            max_attempts: 3,
            workspace_roots: Vec::new(),
            shared_workspaces: false,
            checkouts: None,
            program_users: ProgramUsers::default(),
            output_inline_bytes: MIB,
            output_limit_bytes: 16 * MIB,
            schema_limit_bytes: MIB / 4,
            cancel_grace: 5 * SECOND,
            max_tool_rounds: 32,
            tool_limit_bytes: 16 * MIB,
            offline_grace: 60 * SECOND,
        }
    }
}

/// Components that a dispatcher is built from.
pub struct Setup {
    pub finisher: Finisher,
    pub registry: Registry,
    pub deliverer: Deliverer,
    pub vault: Vault,
    pub client: net::Client,
    pub mcp: Servers,
    pub external: External,
    pub tracker: Tasks,
}

/// Accepts, schedules, executes, steers and cancels dispatches. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    inner: Arc<Inner>,
}

struct Inner {
    finisher: Finisher,
    config: Arc<Config>,
    /// `cancel_grace`, or less: what runs must have ended before the lease of this node does.
    cancel_grace: Duration,
    registry: Registry,
    deliverer: Deliverer,
    vault: Vault,
    client: net::Client,
    mcp: Servers,
    external: External,
    /// Descriptions of the MCP servers in the form that adapters receive.
    mcp_servers: BTreeMap<String, Value>,
    mcp_names: BTreeSet<String>,
    tracker: Tasks,
    running: Running,
    offers: Offers,
    next_wakeup: NextWakeup,
    waiting_providers: WaitingProviders,
    /// Time of the next attempt to reroute stranded dispatches.
    next_reroute: NextWakeup,
    wake: Notify,
}

/// Reason for which a dispatch was not accepted or a cancellation not recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid fields of the request: {}", .0.len())]
    Invalid(Vec<FieldError>),
    #[error("the idempotency key was used for another request, {0}")]
    Conflict(DispatchId),
    #[error("{0}")]
    NoCapableAdapter(String),
    #[error("{0}")]
    UnknownProvider(String),
    #[error("{0}")]
    AdapterUnavailable(String),
    /// A policy denies the call of an external service.
    #[error("{0}")]
    Forbidden(String),
    #[error("the queue is full")]
    QueueFull,
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Dispatcher {
    pub fn new(setup: Setup) -> Self {
        let Setup {
            finisher,
            registry,
            deliverer,
            vault,
            client,
            mcp,
            external,
            tracker,
        } = setup;
        let mcp_servers = mcp.described();
        let mcp_names = mcp_servers.keys().cloned().collect();
        let lease = finisher.store.nodes.node().lease;
        let inner = Inner {
            cancel_grace: lease.map_or(finisher.config.cancel_grace, |lease| {
                finisher.config.cancel_grace.min(lease / 4)
            }),
            config: Arc::clone(&finisher.config),
            finisher,
            registry,
            deliverer,
            vault,
            client,
            mcp,
            external,
            mcp_servers,
            mcp_names,
            tracker,
            running: Running::new(),
            offers: Offers::default(),
            next_wakeup: NextWakeup::new(schedule::MAX_POLL),
            waiting_providers: WaitingProviders::default(),
            next_reroute: NextWakeup::new(schedule::REROUTE_INTERVAL),
            wake: Notify::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Metrics of all dispatches since the start.
    pub fn meters(&self) -> &meters::Meters {
        &self.inner.finisher.meters
    }

    /// Profile of an adapter; `None` if it is unknown or was never loaded.
    pub fn profile(&self, provider: &str) -> Option<Arc<Profile>> {
        self.inner.registry.get(provider)?.profile()
    }

    /// Sink of the trace spans.
    pub fn spans(&self) -> &Spans {
        &self.inner.finisher.spans
    }

    /// Wakes the scheduler: there might be work to start.
    pub fn wake(&self) {
        self.inner.wake.notify_one();
    }

    /// Stops starting work and waits until nothing runs, at most until `until`; then stops the remaining executions
    /// and waits at most until `end` for their ends to be written.
    pub async fn drain(&self, until: Instant, end: Instant) {
        let running = &self.inner.running;
        running.close();
        if timeout_at(until, running.idle()).await.is_ok() {
            return;
        }
        tracing::warn!(
            "stopping {} executions because the bridge stops",
            running.len()
        );
        running.halt();
        if timeout_at(end, running.idle()).await.is_err() {
            tracing::error!(
                "{} executions did not end; the next start recovers them",
                running.len()
            );
        }
    }
}
