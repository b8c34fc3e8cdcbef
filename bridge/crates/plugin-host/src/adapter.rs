//! One adapter as the rest of the bridge sees it: what it can do, how it is, calls to it, and which edition
//! of it serves. An adapter that cannot serve is still here, with the reason.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::{AdapterError, Health, HealthStatus, Profile};
use futures_util::future::join_all;
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::generation::{AdapterContext, Generation, Permit, Start};
use super::health::{HealthReport, Quarantine};
use super::instance::Boot;
use super::load::LoadError;
use super::meters::Meters;
use super::pause::Mark;
use super::process::Isolation;
use super::spec::AdapterSpec;
use forge_base::failpoint;

/// What an edition gets for its own `shutdown` once nothing runs on it.
const END_GRACE: Duration = Duration::from_secs(10);

const CUT_OFF: &str =
    "the adapter was reloaded, and this did not end within plugin.reload_drain after it";

/// A handle; clones are the same adapter.
#[derive(Clone)]
pub struct Adapter {
    shared: Arc<Shared>,
}

struct Shared {
    post: AdapterContext,
    plan: AdapterSpec,
    board: Mutex<Board>,
    /// One reload at a time.
    reloading: tokio::sync::Mutex<()>,
    closing: CancellationToken,
}

/// Which editions there are. Changed as one, so that whoever is let in runs on the one that serves.
#[derive(Default)]
struct Board {
    serving: Option<Arc<Generation>>,
    /// Why there is none.
    load_error: Option<String>,
    /// Earlier ones, on which something still runs.
    leaving: Vec<Arc<Generation>>,
    /// Nothing starts since then.
    paused: Option<Timestamp>,
}

impl Board {
    /// On all editions: the bound of an adapter holds across a reload.
    fn running(&self) -> usize {
        let editions = self.serving.iter().chain(&self.leaving);
        editions.map(|generation| generation.executions()).sum()
    }

    fn max_concurrent(&self) -> usize {
        let ready = self
            .serving
            .as_ref()
            .and_then(|generation| generation.ready());
        ready.map_or(0, |ready| ready.max_concurrent)
    }
}

/// An edition that was replaced and on which something still runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    pub version: String,
    pub digest: String,
    pub running: usize,
}

/// Why an adapter was not reloaded: it serves on as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("it is being reloaded already")]
    UnderWay,
    #[error("the bridge is shutting down")]
    Closing,
    #[error(transparent)]
    Find(#[from] super::Error),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// In its own words.
    #[error("{0}")]
    Offline(String),
    #[error("the bridge itself failed while it was loaded; the log says more")]
    Failed,
}

impl ReloadError {
    /// With its causes, in one line.
    pub fn line(&self) -> String {
        chain(self)
    }
}

/// Why a pause, or its end, is not on disk.
#[derive(Debug, thiserror::Error)]
#[error("the mark of a pause cannot be written or removed below {folder}")]
pub struct PauseError {
    folder: PathBuf,
    source: std::io::Error,
}

impl Adapter {
    /// Loads, initialises and asks for capabilities and health; whatever fails becomes its health.
    pub(super) async fn start(
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
                "adapter {} is paused since {since}: what is dispatched to it waits",
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
                let nobody = post.monitor.new_source();
                post.monitor.set_active(nobody, Health::offline(&line));
                board.load_error = Some(line);
            }
        }
        Self {
            shared: Arc::new(Shared {
                post,
                plan,
                board: Mutex::new(board),
                reloading: tokio::sync::Mutex::new(()),
                closing: CancellationToken::new(),
            }),
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        let board = self.shared.board.lock();
        board.unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> Option<Arc<Generation>> {
        self.board().serving.clone()
    }

    pub fn provider(&self) -> &str {
        &self.shared.post.provider
    }

    /// The library's own version.
    pub fn version(&self) -> Option<String> {
        Some(self.generation()?.facts.manifest.version.clone())
    }

    /// The library's own name, which differs from the provider where a table says so.
    pub fn library(&self) -> Option<String> {
        Some(self.generation()?.facts.manifest.provider.clone())
    }

    /// The file that was named; what runs is a private copy of it.
    pub fn path(&self) -> Option<PathBuf> {
        Some(self.generation()?.facts.path.clone())
    }

    /// The file's SHA-256 in hexadecimal digits.
    pub fn digest(&self) -> Option<String> {
        Some(self.generation()?.facts.digest.clone())
    }

    /// Where it runs, once it is loaded.
    pub fn isolation(&self) -> Isolation {
        self.generation()
            .map_or_else(Isolation::default, |generation| generation.facts.isolation)
    }

    /// Why the library was not loaded, in one line.
    pub fn load_error(&self) -> Option<String> {
        self.board().load_error.clone()
    }

    /// Absent when it was never loaded or initialised.
    pub fn profile(&self) -> Option<Arc<Profile>> {
        let generation = self.generation()?;
        generation.ready().map(|ready| Arc::clone(&ready.profile))
    }

    /// As last heard.
    pub fn health(&self) -> HealthReport {
        self.shared.post.monitor.current()
    }

    /// Since when it is not started again, and why; until a reload.
    pub fn quarantined(&self) -> Option<Quarantine> {
        self.shared.post.monitor.quarantined()
    }

    /// The last changes, the newest last.
    pub fn history(&self) -> Vec<HealthReport> {
        self.shared.post.monitor.history()
    }

    /// As the manifest lists them: `execution@1`, `agents@1.2`.
    pub fn interfaces(&self) -> Vec<String> {
        self.generation()
            .map(|generation| generation.facts.manifest.interfaces.clone())
            .unwrap_or_default()
    }

    /// Whether an interface is there in any version: `agents`.
    pub fn has_interface(&self, name: &str) -> bool {
        self.generation().is_some_and(|generation| {
            let mut interfaces = generation.facts.manifest.interfaces.iter();
            interfaces.any(|interface| interface.split('@').next() == Some(name))
        })
    }

    /// 0 when it cannot serve.
    pub fn max_concurrent(&self) -> usize {
        self.board().max_concurrent()
    }

    /// Executions on the edition that serves and on those that it replaced.
    pub fn running(&self) -> usize {
        self.board().running()
    }

    /// How calls into the edition that serves went; `None` when there is none.
    pub fn meters(&self) -> Option<&'static Meters> {
        let board = self.board();
        board.serving.as_ref().map(|generation| generation.meters())
    }

    /// Bytes of what it said and nobody has read, and of what waits for its thread.
    pub fn buffered(&self) -> (usize, usize) {
        let board = self.board();
        let editions = board.leaving.iter().chain(&board.serving);
        editions.fold((0, 0), |(said, waiting), generation| {
            let (more_said, more_waiting) = generation.buffered();
            (said + more_said, waiting + more_waiting)
        })
    }

    /// Editions that were replaced and on which something still runs, the oldest first.
    pub fn leaving(&self) -> Vec<Draining> {
        let board = self.board();
        let leaving = board.leaving.iter().map(|generation| Draining {
            version: generation.facts.manifest.version.clone(),
            digest: generation.facts.digest.clone(),
            running: generation.executions(),
        });
        leaving.collect()
    }

    /// One running execution; none when as many run as may, or when nothing may start.
    pub fn reserve(&self) -> Option<Permit> {
        let board = self.board();
        if board.paused.is_some() || board.running() >= board.max_concurrent() {
            return None;
        }
        let serving = board.serving.as_ref()?;
        serving.is_there().then(|| serving.admit())
    }

    /// Since when nothing starts.
    pub fn paused(&self) -> Option<Timestamp> {
        self.board().paused
    }

    /// Starts nothing more, after a restart neither; what runs goes on. On disk when it returns.
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

    /// Lets executions start again. Whoever starts them has to be told.
    pub async fn resume(&self) -> Result<(), PauseError> {
        failpoint::point("resume.before");
        self.mark(Mark::remove).await?;
        failpoint::point("resume.after");
        self.board().paused = None;
        tracing::info!(
            adapter.id = self.provider(),
            "adapter {} goes on",
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
        // A task that panicked has changed nothing that is known of.
        let changed = changed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        changed.map_err(|source| PauseError {
            folder: self.shared.plan.mark.folder().to_owned(),
            source,
        })
    }

    /// One management op; its events, if any, are left out.
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

    /// Asks for its health when the last answer is old; at most one question is under way.
    pub(super) async fn refresh_health(&self) {
        let Some(generation) = self.ready() else {
            return;
        };
        let AdapterContext {
            config, monitor, ..
        } = &self.shared.post;
        if let Some(_asking) = monitor.ask(config.health_age, Timestamp::now()) {
            let health = generation.health(config.health_timeout).await;
            monitor.record(generation.source, health, Timestamp::now());
        }
    }

    /// Lets it send events outside executions.
    pub(super) async fn start_relay(&self) {
        if let Some(generation) = self.ready() {
            generation.start_relay().await;
        }
    }

    /// Puts another edition in the place of the one that serves: of the file as it is now. What runs ends
    /// on the edition that it began on. One that cannot be loaded, is not initialised or is offline
    /// changes nothing. Goes on to its end even when nobody waits for it any more.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        let adapter = self.clone();
        let reload = async move {
            let _alone = adapter.shared.reloading.try_lock();
            let _alone = _alone.map_err(|_| ReloadError::UnderWay)?;
            let closing = &adapter.shared.closing;
            let replaced = closing.run_until_cancelled(adapter.replace()).await;
            replaced.unwrap_or(Err(ReloadError::Closing))
        };
        let tracker = &self.shared.post.tracker;
        tracker
            .spawn(reload)
            .await
            .unwrap_or(Err(ReloadError::Failed))
    }

    async fn replace(&self) -> Result<(), ReloadError> {
        let Shared { plan, post, .. } = &*self.shared;
        let (next, health) = {
            let (boot, start) = plan.boot()??;
            Generation::open(boot, start, post).await?
        };
        if health.status == HealthStatus::Offline {
            next.end(END_GRACE).await;
            let why = health.message.unwrap_or_else(|| "it is offline".to_owned());
            return Err(ReloadError::Offline(why));
        }
        failpoint::point("adapter.swap.before");
        let before = self.swap(Arc::clone(&next), health)?;
        failpoint::point("adapter.swap.after");
        let (provider, version) = (self.provider(), &next.facts.manifest.version);
        tracing::info!(
            adapter.id = provider,
            adapter.digest = next.facts.digest,
            "adapter {provider} was reloaded and is {version} now"
        );
        let adapter = self.clone();
        post.tracker.spawn(async move {
            // The new one first: an event may come twice, none is missed.
            next.start_relay().await;
            if let Some(before) = before {
                adapter.drain(&before).await;
            }
        });
        Ok(())
    }

    fn swap(
        &self,
        next: Arc<Generation>,
        health: Health,
    ) -> Result<Option<Arc<Generation>>, ReloadError> {
        let mut board = self.board();
        // From here on it is seen by whoever shuts down.
        if self.shared.closing.is_cancelled() {
            return Err(ReloadError::Closing);
        }
        self.shared.post.monitor.set_active(next.source, health);
        board.load_error = None;
        let before = board.serving.replace(next);
        board.leaving.extend(before.clone());
        Ok(before)
    }

    /// Ends an edition when nothing runs on it any more, or when that takes too long.
    async fn drain(&self, generation: &Arc<Generation>) {
        let Shared { post, closing, .. } = &*self.shared;
        if generation.ready().is_some() {
            generation.stop_relay().await;
        }
        let limit = post.config.reload_drain;
        let idle = tokio::select! {
            () = closing.cancelled() => return,
            idle = tokio::time::timeout(limit, generation.idle()) => idle.is_ok(),
        };
        if !idle {
            tracing::warn!(
                adapter.id = post.provider,
                "{} executions on the earlier generation of adapter {} did not end within {limit:?} \
                 (plugin.reload_drain) and are ended",
                generation.executions(),
                post.provider,
            );
            generation.cut_off(CUT_OFF);
        }
        failpoint::point("adapter.drained");
        generation.end(END_GRACE).await;
        failpoint::point("adapter.ended");
        let mut board = self.board();
        board
            .leaving
            .retain(|other| !Arc::ptr_eq(other, generation));
    }

    /// Ends all its editions in order, and without order those that do not answer in time.
    pub(super) async fn shutdown(&self, grace: Duration) {
        self.shared.closing.cancel();
        let editions: Vec<_> = {
            let board = self.board();
            board
                .serving
                .iter()
                .chain(&board.leaving)
                .cloned()
                .collect()
        };
        join_all(editions.iter().map(|generation| generation.end(grace))).await;
    }
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}
