//! Handle of one adapter: profile, health, calls, reload, pause. An adapter that cannot serve has one too, with the
//! reason.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::{AdapterError, Health, HealthStatus, Profile};
use futures_util::future::join_all;
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::boundary::load_error::{LoadError, chain};
use crate::instance::boot::Boot;
use crate::instance::health::{HealthReport, Quarantine};
use crate::instance::isolation::Isolation;
use crate::instance::meters::Meters;
use crate::registry::agents::AgentDirectory;
use crate::registry::generation::{AdapterContext, Generation, Permit, Ready, Start};
use crate::registry::pause::Mark;
use crate::registry::settings::Sessions;
use crate::registry::spec::AdapterSpec;
use forge_base::failpoint;

/// Handle; clones refer to the same adapter.
#[derive(Clone)]
pub struct Adapter {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) post: AdapterContext,
    pub(super) plan: AdapterSpec,
    pub(super) agents: AgentDirectory,
    board: Mutex<Board>,
    /// Held during a reload; a second reload is refused.
    pub(super) reloading: tokio::sync::Mutex<()>,
    pub(super) closing: CancellationToken,
}

/// The generations. One lock guards all of them, so that an execution is admitted to the generation that serves.
#[derive(Default)]
pub(super) struct Board {
    pub(super) serving: Option<Arc<Generation>>,
    /// Reason why `serving` is `None`.
    pub(super) load_error: Option<String>,
    /// Replaced generations that are still draining.
    pub(super) leaving: Vec<Arc<Generation>>,
    /// Start of the pause; no execution starts while it is set.
    paused: Option<Timestamp>,
}

impl Board {
    /// Executions on all generations: the limit of an adapter holds across a reload.
    fn running(&self) -> usize {
        let generations = self.serving.iter().chain(&self.leaving);
        generations.map(|generation| generation.executions()).sum()
    }

    fn max_concurrent(&self) -> usize {
        let ready = self
            .serving
            .as_ref()
            .and_then(|generation| generation.ready());
        ready.map_or(0, Ready::max_concurrent)
    }

    /// The generation that could begin an execution now.
    fn with_room(&self) -> Option<&Arc<Generation>> {
        if self.paused.is_some() || self.running() >= self.max_concurrent() {
            return None;
        }
        self.serving
            .as_ref()
            .filter(|generation| generation.is_there())
    }
}

/// A replaced generation that is still draining.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    pub version: String,
    pub digest: String,
    pub running: usize,
}

/// The pause marker was not written or removed.
#[derive(Debug, thiserror::Error)]
#[error("the pause marker in {folder} cannot be written or removed")]
pub struct PauseError {
    folder: PathBuf,
    source: std::io::Error,
}

impl Adapter {
    /// Opens the first generation; a failure becomes the adapter's health.
    pub(crate) async fn start(
        plan: AdapterSpec,
        boot: Result<(Boot, Start), LoadError>,
        post: AdapterContext,
    ) -> Self {
        let opened = match boot {
            Ok((boot, start)) => Generation::open(boot, start, &post).await,
            Err(error) => Err(error),
        };
        let mut board = Board {
            paused: plan.mark.since(),
            ..Board::default()
        };
        if let Some(since) = board.paused {
            tracing::warn!(
                adapter.id = post.provider,
                "adapter {} is paused since {since}: its dispatches stay queued",
                post.provider
            );
        }
        match opened {
            Ok((generation, health)) => {
                post.monitor.set_active(generation.source, health);
                board.serving = Some(generation);
            }
            Err(error) => {
                if let LoadError::Layout { full, .. } = &error {
                    tracing::debug!(adapter.id = post.provider, "layout check: {full}");
                }
                let line = chain(&error);
                let source = post.monitor.new_source();
                post.monitor.set_active(source, Health::offline(&line));
                board.load_error = Some(line);
            }
        }
        Self {
            shared: Arc::new(Shared {
                post,
                plan,
                agents: AgentDirectory::default(),
                board: Mutex::new(board),
                reloading: tokio::sync::Mutex::new(()),
                closing: CancellationToken::new(),
            }),
        }
    }

    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        let board = self.shared.board.lock();
        board.unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> Option<Arc<Generation>> {
        self.board().serving.clone()
    }

    pub fn provider(&self) -> &str {
        &self.shared.post.provider
    }

    pub fn version(&self) -> Option<String> {
        Some(self.generation()?.facts.manifest.version.clone())
    }

    /// The library's own name; differs from the provider id if the adapter's table sets `library`.
    pub fn library(&self) -> Option<String> {
        Some(self.generation()?.facts.manifest.provider.clone())
    }

    /// Path of the file that was found; a library runs from a private copy.
    pub fn path(&self) -> Option<PathBuf> {
        Some(self.generation()?.facts.path.clone())
    }

    /// SHA-256 of the file, in hexadecimal digits.
    pub fn digest(&self) -> Option<String> {
        Some(self.generation()?.facts.digest.clone())
    }

    /// Isolation of the serving generation; the default if none is loaded.
    pub fn isolation(&self) -> Isolation {
        self.generation()
            .map_or_else(Isolation::default, |generation| generation.facts.isolation)
    }

    /// True if the sessions of the runtime are in one place for all bridges that share the store.
    pub fn shares_sessions(&self) -> bool {
        self.shared.plan.table.sessions == Sessions::Shared
    }

    /// Reason why the library was not loaded, in one line.
    pub fn load_error(&self) -> Option<String> {
        self.board().load_error.clone()
    }

    /// As of the last health check; `None` if the adapter was never loaded or initialised.
    pub fn profile(&self) -> Option<Arc<Profile>> {
        let generation = self.generation()?;
        generation.ready().map(Ready::profile)
    }

    /// The last health report, from the cache.
    pub fn health(&self) -> HealthReport {
        self.shared.post.monitor.current()
    }

    /// Start and reason of the quarantine; a reload ends it.
    pub fn quarantined(&self) -> Option<Quarantine> {
        self.shared.post.monitor.quarantined()
    }

    /// Recent health changes, newest last.
    pub fn history(&self) -> Vec<HealthReport> {
        self.shared.post.monitor.history()
    }

    /// Interfaces of the manifest, such as `execution@1` and `agents@1.2`.
    pub fn interfaces(&self) -> Vec<String> {
        self.generation()
            .map(|generation| generation.facts.manifest.interfaces.clone())
            .unwrap_or_default()
    }

    /// True if the manifest lists the interface, such as `agents`, in any version.
    pub fn has_interface(&self, name: &str) -> bool {
        self.generation().is_some_and(|generation| {
            let mut interfaces = generation.facts.manifest.interfaces.iter();
            interfaces.any(|interface| interface.split('@').next() == Some(name))
        })
    }

    /// Limit of concurrent executions; 0 if the adapter cannot serve.
    pub fn max_concurrent(&self) -> usize {
        self.board().max_concurrent()
    }

    /// Executions on the serving and the draining generations.
    pub fn running(&self) -> usize {
        self.board().running()
    }

    /// Call counters of the serving generation; `None` if there is none.
    pub fn meters(&self) -> Option<&'static Meters> {
        let board = self.board();
        board.serving.as_ref().map(|generation| generation.meters())
    }

    /// Bytes of output not yet read, and bytes of requests that wait for the adapter's thread.
    pub fn buffered(&self) -> (usize, usize) {
        let board = self.board();
        let generations = board.leaving.iter().chain(&board.serving);
        generations.fold((0, 0), |(said, waiting), generation| {
            let (more_said, more_waiting) = generation.buffered();
            (said + more_said, waiting + more_waiting)
        })
    }

    /// Draining generations, oldest first.
    pub fn leaving(&self) -> Vec<Draining> {
        let board = self.board();
        let leaving = board.leaving.iter().map(|generation| Draining {
            version: generation.facts.manifest.version.clone(),
            digest: generation.facts.digest.clone(),
            running: generation.executions(),
        });
        leaving.collect()
    }

    /// Reserves one execution; `None` at the limit, during a pause, or if the instance cannot be reached.
    pub fn reserve(&self) -> Option<Permit> {
        Some(self.board().with_room()?.admit())
    }

    /// True if an execution could be reserved now.
    pub fn has_room(&self) -> bool {
        self.board().with_room().is_some()
    }

    pub fn paused(&self) -> Option<Timestamp> {
        self.board().paused
    }

    /// Stops starting executions, also after a restart; running ones continue. Durable on return.
    pub async fn pause(&self) -> Result<(), PauseError> {
        failpoint::point("pause.before");
        let since = self.mark(Mark::set).await?;
        failpoint::point("pause.after");
        self.board().paused = Some(since);
        tracing::warn!(
            adapter.id = self.provider(),
            "adapter {} is paused",
            self.provider()
        );
        Ok(())
    }

    /// Lets executions start again. The caller must notify the scheduler.
    pub async fn resume(&self) -> Result<(), PauseError> {
        failpoint::point("resume.before");
        self.mark(Mark::remove).await?;
        failpoint::point("resume.after");
        self.board().paused = None;
        tracing::info!(
            adapter.id = self.provider(),
            "adapter {} is resumed",
            self.provider()
        );
        Ok(())
    }

    async fn mark<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Mark) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, PauseError> {
        let mark = self.shared.plan.mark.clone();
        let changed = tokio::task::spawn_blocking(move || change(&mark)).await;
        // After a panic the state of the marker is unknown.
        let changed = changed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        changed.map_err(|source| PauseError {
            folder: self.shared.plan.mark.folder().to_owned(),
            source,
        })
    }

    /// Runs one management op; its events are discarded.
    pub async fn call(
        &self,
        op: &str,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, AdapterError> {
        match self.ready() {
            Some(generation) => generation.call(op, payload, timeout).await,
            None => {
                let why = self.health().message;
                let why = why.as_deref().unwrap_or("it was never initialised");
                Err(AdapterError::new(
                    "adapter_unavailable",
                    format!("adapter {} cannot serve: {why}", self.provider()),
                ))
            }
        }
    }

    fn ready(&self) -> Option<Arc<Generation>> {
        self.generation()
            .filter(|generation| generation.ready().is_some())
    }

    /// Asks for health if the cached report is stale, then for the profile; at most one request is in flight.
    pub(crate) async fn refresh_health(&self) {
        let Some(generation) = self.ready() else {
            return;
        };
        let AdapterContext {
            config, monitor, ..
        } = &self.shared.post;
        if let Some(_asking) = monitor.ask(config.health_age, Timestamp::now()) {
            let health = generation.health(config.health_timeout).await;
            if health.status != HealthStatus::Offline {
                generation.refresh_profile(config.health_timeout).await;
            }
            monitor.record(generation.source, health, Timestamp::now());
        }
    }

    /// Enables events outside executions.
    pub(crate) async fn start_relay(&self) {
        if let Some(generation) = self.ready() {
            generation.start_relay().await;
        }
    }

    /// Shuts all generations down; an instance that takes longer than `grace` is abandoned.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.shared.closing.cancel();
        let generations: Vec<_> = {
            let board = self.board();
            board
                .serving
                .iter()
                .chain(&board.leaving)
                .cloned()
                .collect()
        };
        join_all(generations.iter().map(|generation| generation.end(grace))).await;
    }
}
