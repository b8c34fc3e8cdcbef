//! The plugin host: finds, loads and calls adapter libraries, and bounds the harm that they can do to the bridge.
//! Depends on `forge-adapter-abi`; knows nothing of dispatches, the store or HTTP.

mod adapter;
mod boundary;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod generation;
mod instance;
mod pause;
mod resolve;
mod settings;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::AdapterEvent;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use forge_base::tasks::Tasks;

pub use adapter::{Adapter, Draining, PauseError, ReloadError};
pub use boundary::load::LoadError;
pub use boundary::trust::Trust;
pub use generation::Permit;
pub use instance::call_stream::{Call, Item};
pub use instance::health::{HealthReport, Quarantine};
pub use instance::{conform, meters, process};
pub use settings::AdapterTable;

use boundary::loaded_images::LoadedImages;
use boundary::staging;
use generation::AdapterContext;
use instance::health::Monitor;
use instance::process::Restart;
use pause::Mark;
use spec::AdapterSpec;

/// Capacity of the relay channel: events and health changes that its receiver has not recorded yet.
const RELAYED: usize = 256;
/// The adapter to load when the configuration names none.
pub const DEFAULT_ADAPTER: &str = "echo";

/// `[plugin]` of the configuration.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The adapters to load (`BRIDGE_ADAPTERS`). Empty: the default provider alone, else `echo`.
    pub adapters: Vec<String>,
    /// The provider of dispatches that name none (`GATEWAY_PROVIDER`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_provider: Option<String>,
    /// Folders searched in order, before those beside the binary (`BRIDGE_PLUGIN_PATH`). Default: `plugins`.
    pub path: Vec<PathBuf>,
    /// Refuse to start when an adapter cannot be loaded. Set by the top-level setting `strict`.
    #[serde(skip)]
    pub strict: bool,
    /// Policy for libraries that other users can write. Default: refuse them.
    pub trust: Trust,
    /// Allow-list: unless empty, only these libraries are loaded.
    pub allow: Vec<Allowed>,
    /// Limit for loading and for `initialize`, each. Default: 30 s.
    #[serde(with = "forge_base::duration")]
    pub initialize_timeout: Duration,
    #[serde(with = "forge_base::duration")]
    pub health_timeout: Duration,
    /// Age below which the cached health is used without asking again. Default: 5 s.
    #[serde(with = "forge_base::duration")]
    pub health_age: Duration,
    /// Time that an adapter function can hold a bridge thread before the adapter counts as blocked. Default: 1 s.
    #[serde(with = "forge_base::duration")]
    pub call_timeout: Duration,
    /// Time for calls on a replaced generation to finish before they are ended. Default: 24 h.
    #[serde(with = "forge_base::duration")]
    pub reload_drain: Duration,
    /// The largest answer that is accepted. Default: 32 MiB.
    pub payload_bytes: usize,
    /// The largest event; larger ones are dropped and counted. Default: 1 MiB.
    pub event_bytes: usize,
    /// Limit of an execution's events that wait to be recorded; beyond it the adapter is slowed. Default: 4 MiB.
    pub queue_bytes: usize,
    /// Limit of all events of one execution; beyond it the execution ends as `output_too_large`. Default: 256 MiB.
    pub execution_bytes: usize,
    /// Restart policy of adapters that have a process of their own.
    pub restart: Restart,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            adapters: Vec::new(),
            default_provider: None,
            path: vec![PathBuf::from("plugins")],
            strict: false,
            trust: Trust::Enforce,
            allow: Vec::new(),
            initialize_timeout: Duration::from_secs(30),
            health_timeout: Duration::from_secs(2),
            health_age: Duration::from_secs(5),
            call_timeout: Duration::from_secs(1),
            reload_drain: Duration::from_secs(86_400),
            payload_bytes: 32 * 1024 * 1024,
            event_bytes: 1024 * 1024,
            queue_bytes: 4 * 1024 * 1024,
            execution_bytes: 256 * 1024 * 1024,
            restart: Restart::default(),
        }
    }
}

/// An entry of the allow-list.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// The library's name.
    pub name: String,
    /// SHA-256 in hexadecimal digits; absent: any file of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Inputs of [`Registry::start`].
pub struct Setup {
    pub config: Config,
    /// The tables `[adapters.<id>]`, by id.
    pub tables: BTreeMap<String, AdapterTable>,
    /// The process environment; the bridge's own secrets in it are not passed on.
    pub env: BTreeMap<String, String>,
    pub store_id: String,
    /// Epoch of the store; 0 if the store is not persistent.
    pub epoch: u64,
    /// Folder of the private copies of libraries and of the pause markers.
    pub state_dir: PathBuf,
    /// The command that starts a child process under the supervisor.
    pub supervisor: Vec<String>,
    /// The command that connects its stdin and stdout to the Unix socket given as its argument.
    pub relay: Vec<String>,
    pub tracker: Tasks,
}

/// An event outside any execution: `adapter.event`, `adapter.health`, `events.dropped`.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    pub provider: String,
    pub event: AdapterEvent,
}

/// All configured adapters, loaded or not.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    adapters: Vec<Adapter>,
}

/// Reason why the registry cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid adapter name {0:?}; use 1 to 64 lower-case letters, digits, \"-\" and \"_\"")]
    BadName(String),
    #[error("the adapter ids {first:?} and {second:?} collide; keep one of them")]
    DuplicateId { first: String, second: String },
    #[error("two files serve the adapter {id:?}: {first} and {second}; keep one of them")]
    DuplicateFile {
        id: String,
        first: PathBuf,
        second: PathBuf,
    },
    #[error("the default provider {0:?} is not among the adapters; add it to BRIDGE_ADAPTERS")]
    UnknownDefault(String),
    #[error("the plugin path {path} cannot be made absolute")]
    PluginPath { path: PathBuf, source: io::Error },
    #[error("the state folder {path} cannot be made absolute")]
    StateFolder { path: PathBuf, source: io::Error },
    #[error("no adapter can be loaded: {}", .0.join("; "))]
    NothingLoadable(Vec<String>),
    #[error("strict is set and not every adapter can be loaded: {}", .0.join("; "))]
    NotEveryLoadable(Vec<String>),
}

impl Registry {
    /// Loads and initialises all adapters concurrently. The receiver yields events outside executions and health
    /// changes; unless it is read, the former wait and the latter are lost.
    pub async fn start(setup: Setup) -> Result<(Self, mpsc::Receiver<Relayed>), Error> {
        let config = Arc::new(setup.config.clone());
        let ids = ids(&config);
        if let Some(default) = &config.default_provider
            && !ids.contains(default)
        {
            return Err(Error::UnknownDefault(default.clone()));
        }
        let named = resolve::names(&ids, &setup.tables)?;
        let folders: Arc<[PathBuf]> = folders(&config)?.into();
        let state = state(&setup)?;
        let copies = state.join("adapters");
        let (relay, relayed) = mpsc::channel(RELAYED);
        let mut starts = Vec::new();
        for named in named {
            let table = setup.tables.get(&named.id).cloned().unwrap_or_default();
            let post = AdapterContext {
                provider: named.id.clone(),
                config: Arc::clone(&config),
                monitor: Arc::new(Monitor::new(named.id.clone(), relay.clone())),
                relay: relay.clone(),
                tracker: setup.tracker.clone(),
            };
            let plan = AdapterSpec {
                config: Arc::clone(&config),
                folders: Arc::clone(&folders),
                copies: copies.clone(),
                store_id: setup.store_id.clone(),
                epoch: setup.epoch,
                supervisor: setup.supervisor.clone(),
                relay: setup.relay.clone(),
                env: setup.env.clone(),
                table,
                images: Arc::new(LoadedImages::default()),
                mark: Mark::of(&named.id, &state.join("paused")),
                named,
            };
            let boot = plan.boot()?;
            starts.push(Adapter::start(plan, boot, post));
        }
        let registry = Self {
            shared: Arc::new(Shared {
                adapters: join_all(starts).await,
                config,
            }),
        };
        match registry.load_failure() {
            None => {
                registry.clear(copies).await;
                Ok((registry, relayed))
            }
            Some(error) => {
                registry.shutdown(Duration::from_secs(5)).await;
                Err(error)
            }
        }
    }

    /// Removes the copies of libraries that no adapter runs from.
    async fn clear(&self, copies: PathBuf) {
        let adapters = self.shared.adapters.iter();
        let digests: BTreeSet<_> = adapters.filter_map(Adapter::digest).collect();
        let cleared = spawn_blocking(move || staging::clear(&copies, &digests)).await;
        // A panic was reported where it happened; the remaining copies stay until the next start.
        drop(cleared);
    }

    fn load_failure(&self) -> Option<Error> {
        let failed: Vec<String> = self
            .shared
            .adapters
            .iter()
            .filter_map(|adapter| {
                Some(format!("{}: {}", adapter.provider(), adapter.load_error()?))
            })
            .collect();
        if failed.is_empty() {
            None
        } else if failed.len() == self.shared.adapters.len() {
            Some(Error::NothingLoadable(failed))
        } else if self.shared.config.strict {
            Some(Error::NotEveryLoadable(failed))
        } else {
            None
        }
    }

    /// All adapters, in the configured order.
    pub fn adapters(&self) -> Vec<Adapter> {
        self.shared.adapters.clone()
    }

    pub fn get(&self, provider: &str) -> Option<Adapter> {
        let mut adapters = self.shared.adapters.iter();
        adapters
            .find(|adapter| adapter.provider() == provider)
            .cloned()
    }

    pub fn default_provider(&self) -> Option<&str> {
        self.shared.config.default_provider.as_deref()
    }

    /// Asks all adapters whose cached health is stale, concurrently; returns once each has answered or timed out.
    pub async fn refresh_health(&self) {
        let adapters = self.shared.adapters.iter();
        join_all(adapters.map(Adapter::refresh_health)).await;
    }

    /// Enables events outside executions; called once the bridge listens.
    pub async fn start_relays(&self) {
        join_all(self.shared.adapters.iter().map(Adapter::start_relay)).await;
    }

    /// Shuts all adapters down concurrently; calls in flight end as `adapter_unavailable`.
    pub async fn shutdown(&self, grace: Duration) {
        let adapters = self.shared.adapters.iter();
        join_all(adapters.map(|adapter| adapter.shutdown(grace))).await;
    }
}

fn ids(config: &Config) -> Vec<String> {
    if !config.adapters.is_empty() {
        return config.adapters.clone();
    }
    let only = config.default_provider.as_deref();
    vec![only.unwrap_or(DEFAULT_ADAPTER).to_owned()]
}

/// The search path, absolute and in order: the configured folders, `plugins` beside the binary (the layout of a
/// release), the binary's folder.
fn folders(config: &Config) -> Result<Vec<PathBuf>, Error> {
    let mut folders = Vec::new();
    for path in &config.path {
        let absolute = std::path::absolute(path).map_err(|source| Error::PluginPath {
            path: path.clone(),
            source,
        })?;
        folders.push(absolute);
    }
    // Without a known path of the binary there is no folder beside it.
    if let Ok(binary) = std::env::current_exe()
        && let Some(beside) = binary.parent()
    {
        folders.extend([beside.join("plugins"), beside.to_owned()]);
    }
    Ok(folders)
}

/// The state folder as an absolute path, which the dynamic loader requires.
fn state(setup: &Setup) -> Result<PathBuf, Error> {
    let path = setup.state_dir.clone();
    std::path::absolute(&path).map_err(|source| Error::StateFolder { path, source })
}
