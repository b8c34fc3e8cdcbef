//! The plugin host: finds adapter libraries, loads them, calls them and bounds what they can do to us.
//! Knows the boundary of `forge-adapter-abi` and nothing of dispatches, the store or HTTP.

mod adapter;
mod backend;
mod backpressure;
mod call;
mod call_id;
mod call_stream;
pub mod conform;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod generation;
mod health;
mod instance;
mod instance_monitor;
mod load;
mod loaded_images;
mod log;
mod manifest;
pub mod meters;
mod pause;
pub mod process;
mod queue;
mod resolve;
mod settings;
mod spec;
mod staging;
mod truncated_answer;
mod trust;
mod watchdog;

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
pub use call_stream::{Call, Item};
pub use generation::Permit;
pub use health::{HealthReport, Quarantine};
pub use load::LoadError;
pub use settings::AdapterTable;
pub use trust::Trust;

use generation::AdapterContext;
use health::Monitor;
use loaded_images::LoadedImages;
use pause::Mark;
use process::Restart;
use spec::AdapterSpec;

/// Events and health changes that wait for whoever records them.
const RELAYED: usize = 256;
/// What the bridge serves when nothing is named.
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
    /// Folders that are searched, in order, before the binary's own (`BRIDGE_PLUGIN_PATH`).
    pub path: Vec<PathBuf>,
    /// Refuse to start when an adapter cannot be loaded. The configuration has it at its top.
    #[serde(skip)]
    pub strict: bool,
    /// What to do with libraries that others could have written.
    pub trust: Trust,
    /// When not empty, only these libraries are loaded.
    pub allow: Vec<Allowed>,
    /// For loading and for `initialize`, each.
    #[serde(with = "forge_base::duration")]
    pub initialize_timeout: Duration,
    #[serde(with = "forge_base::duration")]
    pub health_timeout: Duration,
    /// An answer younger than this is not asked for again.
    #[serde(with = "forge_base::duration")]
    pub health_age: Duration,
    /// An adapter that keeps our thread longer is blocked.
    #[serde(with = "forge_base::duration")]
    pub call_timeout: Duration,
    /// What runs on an edition that was replaced has this long; then it is ended.
    #[serde(with = "forge_base::duration")]
    pub reload_drain: Duration,
    /// The largest answer that is taken.
    pub payload_bytes: usize,
    /// The largest event; longer ones are dropped and counted.
    pub event_bytes: usize,
    /// Events of one execution that wait to be recorded; beyond it the adapter is slowed.
    pub queue_bytes: usize,
    /// All events of one execution; beyond it the execution ends as `output_too_large`.
    pub execution_bytes: usize,
    /// For adapters with a process of their own.
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

/// A library that may be loaded.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// The library's name.
    pub name: String,
    /// Its SHA-256 in hexadecimal digits; absent: any file of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// What a registry is started from.
pub struct Setup {
    pub config: Config,
    /// `[adapters.<id>]`.
    pub tables: BTreeMap<String, AdapterTable>,
    /// The process environment; the bridge's own secrets in it are not passed on.
    pub env: BTreeMap<String, String>,
    pub store_id: String,
    /// Of the store; 0 where it does not last.
    pub epoch: u64,
    /// Where private copies of libraries lie, and which adapters are paused.
    pub state_dir: PathBuf,
    /// The command that starts a child process under our supervisor.
    pub supervisor: Vec<String>,
    /// The command that joins its stdin and stdout with the Unix socket that is named behind it.
    pub relay: Vec<String>,
    pub tracker: Tasks,
}

/// An event outside any execution: `adapter.event`, `adapter.health`, `events.dropped`.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    pub provider: String,
    pub event: AdapterEvent,
}

/// Every adapter that was named, loaded or not.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    adapters: Vec<Adapter>,
}

/// Why there is no registry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is no adapter name; wanted 1 to 64 lower-case letters, digits, \"-\" and \"_\"")]
    BadName(String),
    #[error("the adapter ids {first:?} and {second:?} are the same; keep one of them")]
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
    /// Loads and initialises all adapters at once. The receiver gets what they tell outside executions;
    /// it has to be read, or instance events wait and health changes are lost.
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

    /// Keeps only the copies that its adapters run from.
    async fn clear(&self, copies: PathBuf) {
        let adapters = self.shared.adapters.iter();
        let digests: BTreeSet<_> = adapters.filter_map(Adapter::digest).collect();
        let cleared = spawn_blocking(move || staging::clear(&copies, &digests)).await;
        // A panic there has said why; what was left stays.
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

    /// In the configured order.
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

    /// Asks those whose last answer is old, all at once; returns when all have answered or had their time.
    pub async fn refresh_health(&self) {
        let adapters = self.shared.adapters.iter();
        join_all(adapters.map(Adapter::refresh_health)).await;
    }

    /// Lets adapters send events outside executions; called once the bridge listens.
    pub async fn start_relays(&self) {
        join_all(self.shared.adapters.iter().map(Adapter::start_relay)).await;
    }

    /// Ends all adapters at once; what runs in them ends as `adapter_unavailable`.
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

/// Absolute, in order; last `plugins` beside the binary, as a release has it, and the binary's own folder.
fn folders(config: &Config) -> Result<Vec<PathBuf>, Error> {
    let mut folders = Vec::new();
    for path in &config.path {
        let absolute = std::path::absolute(path).map_err(|source| Error::PluginPath {
            path: path.clone(),
            source,
        })?;
        folders.push(absolute);
    }
    // Without a path of our own there is nothing beside it.
    if let Ok(binary) = std::env::current_exe()
        && let Some(beside) = binary.parent()
    {
        folders.extend([beside.join("plugins"), beside.to_owned()]);
    }
    Ok(folders)
}

/// What outlives the process; the dynamic loader wants an absolute path.
fn state(setup: &Setup) -> Result<PathBuf, Error> {
    let path = setup.state_dir.clone();
    std::path::absolute(&path).map_err(|source| Error::StateFolder { path, source })
}
