//! The upper floor: the configured adapters, their generations, settings and reloads. Starts them together and shuts
//! them down together.

#![forbid(unsafe_code)]

pub(crate) mod adapter;
pub(crate) mod agents;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod generation;
pub(crate) mod inspect;
pub(crate) mod pause;
pub(crate) mod reload;
mod resolve;
pub(crate) mod settings;
mod spec;
pub(crate) mod steering;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::User;
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::boundary::loaded_images::LoadedImages;
use crate::boundary::staging;
use crate::instance::built_in::BuiltIn;
use crate::instance::health::Monitor;
use crate::instance::relayed::Relayed;
use forge_base::spelling::nearest;
use forge_base::tasks::Tasks;

use adapter::Adapter;
use config::{Config, DEFAULT_ADAPTER};
use error::Error;
use generation::AdapterContext;
use pause::Mark;
use resolve::{Named, SearchPath};
use settings::AdapterTable;
use spec::AdapterSpec;

/// Capacity of the relay channel: events and health changes that its receiver has not recorded yet.
const RELAYED: usize = 256;

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
    /// Folder of the private copies of libraries, of the pause markers and of the adapters' own folders.
    pub state_dir: PathBuf,
    /// Folder in which adapters create the folders of executions; `None`: that of the system for temporary files.
    pub temp_dir: Option<PathBuf>,
    /// The command that starts a child process under the supervisor.
    pub supervisor: Vec<String>,
    /// The command that connects its stdin and stdout to the Unix socket given as its argument. Its program has a path
    /// that other processes can use.
    pub relay: Vec<String>,
    /// User of the programs that adapters start; `None`: that of the bridge.
    pub user: Option<ProgramUser>,
    /// The same for adapters that have their own, by id.
    pub users: BTreeMap<String, Option<ProgramUser>>,
    /// Adapter that is part of the bridge. Its id is reserved, and only dispatches that name it run on it.
    pub built_in: Option<Arc<dyn BuiltIn>>,
    pub tracker: Tasks,
}

/// User of the programs that an adapter starts.
#[derive(Clone)]
pub struct ProgramUser {
    pub user: User,
    /// The command that starts a program as this user, under the supervisor.
    pub supervisor: Vec<String>,
}

/// All configured adapters, loaded or not.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    adapters: Vec<Adapter>,
    built_in: Option<(Arc<dyn BuiltIn>, Adapter)>,
}

impl Registry {
    /// Loads and initialises all adapters concurrently. The receiver yields events outside executions and health
    /// changes; unless it is read, the former wait and the latter are lost.
    pub async fn start(setup: Setup) -> Result<(Self, mpsc::Receiver<Relayed>), Error> {
        let config = Arc::new(setup.config.clone());
        let (mut named, errors) = named(&config, &setup.tables);
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        named.extend(setup.built_in.as_ref().map(|adapter| {
            let id = adapter.manifest().provider;
            Named {
                library: id.clone(),
                id,
            }
        }));
        let path = Arc::new(SearchPath::new(&config.path)?);
        for warning in path.warnings() {
            tracing::warn!("{warning}");
        }
        let state = state(&setup)?;
        let copies = state.join("adapters");
        let (relay, relayed) = mpsc::channel(RELAYED);
        let mut starts = Vec::new();
        for named in named {
            let built_in = setup.built_in.clone();
            let built_in = built_in.filter(|adapter| adapter.manifest().provider == named.id);
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
                path: Arc::clone(&path),
                copies: copies.clone(),
                state_dir: state.join("adapter-data").join(&named.id),
                temp_dir: setup.temp_dir.clone(),
                store_id: setup.store_id.clone(),
                epoch: setup.epoch,
                supervisor: setup.supervisor.clone(),
                relay: setup.relay.clone(),
                user: setup.users.get(&named.id).unwrap_or(&setup.user).clone(),
                env: setup.env.clone(),
                table,
                images: Arc::new(LoadedImages::default()),
                mark: Mark::of(&named.id, &state.join(pause::FOLDER)),
                built_in: built_in.map(|adapter| (adapter, Handle::current())),
                named,
            };
            let boot = plan.boot()?;
            starts.push(Adapter::start(plan, boot, post));
        }
        let mut adapters = join_all(starts).await;
        let built_in = setup.built_in;
        let built_in = built_in.and_then(|built_in| Some((built_in, adapters.pop()?)));
        let registry = Self {
            shared: Arc::new(Shared {
                adapters,
                built_in,
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

    /// All adapters, in the configured order, then the one that is part of the bridge if it is listed.
    pub fn adapters(&self) -> Vec<Adapter> {
        let built_in = self.shared.built_in.as_ref();
        let built_in = built_in.filter(|(built_in, _)| built_in.is_listed());
        let configured = self.shared.adapters.iter();
        configured
            .chain(built_in.map(|(_, adapter)| adapter))
            .cloned()
            .collect()
    }

    /// Adapters that dispatches without a provider can run on.
    pub fn routable(&self) -> &[Adapter] {
        &self.shared.adapters
    }

    pub fn get(&self, provider: &str) -> Option<Adapter> {
        let mut adapters = self.all();
        adapters
            .find(|adapter| adapter.provider() == provider)
            .cloned()
    }

    fn all(&self) -> impl Iterator<Item = &Adapter> {
        let built_in = self.shared.built_in.as_ref();
        let built_in = built_in.map(|(_, adapter)| adapter);
        self.shared.adapters.iter().chain(built_in)
    }

    pub fn default_provider(&self) -> Option<&str> {
        self.shared.config.default_provider.as_deref()
    }

    /// Asks all adapters whose cached health is stale, concurrently; returns once each has answered or timed out.
    pub async fn refresh_health(&self) {
        join_all(self.all().map(Adapter::refresh_health)).await;
    }

    /// Enables events outside executions; called once the bridge listens.
    pub async fn start_relays(&self) {
        join_all(self.shared.adapters.iter().map(Adapter::start_relay)).await;
    }

    /// Shuts all adapters down concurrently; calls in flight end as `adapter_unavailable`.
    pub async fn shutdown(&self, grace: Duration) {
        join_all(self.all().map(|adapter| adapter.shutdown(grace))).await;
    }
}

/// The adapters to load, and everything wrong with their names.
fn named(config: &Config, tables: &BTreeMap<String, AdapterTable>) -> (Vec<Named>, Vec<Error>) {
    let mut ids = config.adapters.clone();
    if ids.is_empty() {
        let only = config.default_provider.as_deref();
        ids.push(only.unwrap_or(DEFAULT_ADAPTER).to_owned());
    }
    let (named, mut errors) = resolve::names(&ids, tables);
    if let Some(default) = &config.default_provider
        && !ids.contains(default)
    {
        errors.push(Error::UnknownDefault {
            name: default.clone(),
            nearest: nearest(default, ids.iter().map(String::as_str)).map(str::to_owned),
        });
    }
    (named, errors)
}

/// The state folder as an absolute path, which the dynamic loader requires.
fn state(setup: &Setup) -> Result<PathBuf, Error> {
    let path = setup.state_dir.clone();
    std::path::absolute(&path).map_err(|source| Error::StateFolder { path, source })
}
