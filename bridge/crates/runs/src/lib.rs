//! Runs: a repository, an interview, a plan, isolated agents, and a proved merge. A step of a run is a dispatch; the
//! state of a run is a fold of its events, and nothing else changes it.
#![forbid(unsafe_code)]

pub mod agent;
mod artifact;
mod attempt;
mod captain;
pub mod change;
mod check;
mod checkouts;
pub mod command;
mod context;
pub mod decide;
mod draft;
mod driver;
pub mod event;
pub mod files;
mod fold;
pub mod git;
pub mod greeting;
pub mod meters;
mod pause;
pub mod plan;
mod refinery;
mod repository;
pub mod request;
mod settlement;
mod space;
pub mod state;
mod step;
mod takeover;
pub mod tools;
mod trace;
pub mod verify;
pub mod wait;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use forge_base::digest::sha256;
use forge_base::id::{DispatchId, RunId};
use forge_base::reloadable::Reloadable;
use forge_base::tasks::Tasks;
use forge_base::time::Clock;
use forge_dispatch::Dispatcher;
use forge_dispatch::trace::Trace;
use forge_process::ownership::UserId;
use forge_process::program::Launcher;
use forge_store::record::{NewRun, RunKey, RunOpened, RunRecord, RunStatus};
use forge_store::{self as store, Store};

use agent::Place;
pub use check::Checks;
use command::{Command, NotNow};
use driver::Driver;
use event::{Entry, Event};
use git::Git;
pub use git::{LocalHooks, Push};
pub use greeting::FirstWord;
use meters::Meters;
use request::{FieldError, RunRequest};
pub use space::REMOVED_FOR_ROOM;
use space::Space;
use state::State;
use step::{Outcome, ToolCall};
use wait::Wait;

/// Time in which a request about a run is answered.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Adapter of runs that name none; without one, routing chooses.
    pub provider: Option<String>,
    /// Model of runs that name none; without one, that of the adapter.
    pub model: Option<String>,
    /// `agentId` of all steps.
    pub agent_id: String,
    /// First message of the Captain, before one of the user: `agent` asks it, `static` is a text of the bridge, `none`
    /// waits for the user. `auto` is `agent` if the adapter of the run reports low costs, else `static`.
    pub greeting: FirstWord,
    /// Attempts that run at once, in each run.
    pub max_parallel: usize,
    /// Timeout of one turn of the Captain, and of one dispatch of an attempt.
    #[serde(with = "forge_base::duration")]
    pub step_timeout: Duration,
    /// Repositories that are allowed, and no other remote ones: URLs, which stand for all below them too, or their
    /// beginnings up to a `*`. Empty: those at `https://` addresses that pass the guard, which applies to named ones,
    /// too. All keys of repositories are compared by their meaning.
    pub repositories: Vec<String>,
    /// Folders below which `file:` repositories are allowed.
    pub local_roots: Vec<PathBuf>,
    /// Treatment of hooks of `file:` repositories: `refuse` refuses a repository with an active one, `run` runs them as
    /// the user of the bridge, `ignore` does neither.
    pub local_hooks: LocalHooks,
    /// `always` pushes branches and results to the repository; `never` keeps them in the bridge.
    pub push: Push,
    /// Value of the header `authorization` for the repositories of the key; the narrowest key counts. Sent over https
    /// only.
    #[serde(with = "forge_base::secret::map")]
    pub authorization: BTreeMap<String, SecretString>,
    /// Commands that must succeed on a merged commit before it is pushed, for the repositories of the key; the
    /// narrowest key counts. `file://` stands for all repositories of this machine.
    pub checks: BTreeMap<String, Vec<Vec<String>>>,
    /// Timeout of one check.
    #[serde(with = "forge_base::duration")]
    pub check_timeout: Duration,
    /// Time for which trouble that no agent causes is waited for: a remote or an adapter that is away, a rate limit.
    #[serde(with = "forge_base::duration")]
    pub patience: Duration,
    /// Folder of the repositories and checkouts of runs; default: `runs` in `data_dir`.
    pub folder: Option<PathBuf>,
    /// Limit of the bytes of one attempt's checkout, with those of the agents that it has started.
    pub attempt_bytes: u64,
    /// Bytes that stay free on the disk of the runs. While fewer are, nothing new starts, and the largest attempt is
    /// ended.
    pub free_bytes: u64,
    /// Time for one command of git.
    #[serde(with = "forge_base::duration")]
    pub git_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            provider: None,
            model: None,
            agent_id: "default".to_owned(),
            greeting: FirstWord::Auto,
            max_parallel: 8,
            step_timeout: Duration::from_secs(3600),
            repositories: Vec::new(),
            local_roots: Vec::new(),
            local_hooks: LocalHooks::Refuse,
            push: Push::Always,
            authorization: BTreeMap::new(),
            checks: BTreeMap::new(),
            check_timeout: Duration::from_secs(1800),
            patience: Duration::from_secs(24 * 3600),
            folder: None,
            attempt_bytes: 20 << 30,
            free_bytes: 1 << 30,
            git_timeout: Duration::from_secs(600),
        }
    }
}

/// Components that runs are built from.
pub struct Setup {
    pub config: Config,
    /// The checks of `config`.
    pub checks: Checks,
    pub store: Arc<dyn Store>,
    pub dispatcher: Dispatcher,
    pub clock: Clock,
    /// Time that a run is kept after its end.
    pub retention: Reloadable<Duration>,
    /// The program, or the reason why runs are not available.
    pub git: Result<Git, String>,
    /// Starts the checks.
    pub launcher: Launcher,
    /// User that the launcher starts programs as, if it is another one than the bridge's.
    pub check_user: Option<UserId>,
    pub tracker: Tasks,
    /// Stops all work on runs; the next start continues it.
    pub shutdown: CancellationToken,
}

/// All runs. Cheap to clone.
#[derive(Clone)]
pub struct Runs(Arc<Inner>);

struct Inner {
    config: Config,
    checks: Checks,
    store: Arc<dyn Store>,
    dispatcher: Dispatcher,
    clock: Clock,
    retention: Reloadable<Duration>,
    git: Result<Git, String>,
    launcher: Launcher,
    check_user: Option<UserId>,
    tracker: Tasks,
    shutdown: CancellationToken,
    live: Mutex<HashMap<RunId, mpsc::Sender<Asked>>>,
    meters: Arc<Meters>,
    space: Space,
}

/// A request of a client, with the place for its answer: the status after it.
struct Asked {
    command: Command,
    answer: oneshot::Sender<Result<RunStatus, Error>>,
}

/// Report of a piece of work to the driver of its run.
enum Report {
    /// Events of a dispatch, up to a position.
    Events(Vec<Entry>, TakenOver),
    /// An action has ended.
    Done(decide::Action, Box<Work>),
    /// Effects of a pause.
    Acknowledged(Vec<Entry>),
}

/// Position up to which the events of a dispatch are in the log of the run.
struct TakenOver {
    dispatch: DispatchId,
    position: u64,
}

/// Result of an action.
#[derive(Default)]
struct Work {
    entries: Vec<(u32, Event)>,
    artifacts: Vec<Artifact>,
    /// A dispatch whose events are taken over completely.
    ended: Option<DispatchId>,
    /// Calls to carry out on the state of the moment at which the rest is written.
    asks: Option<Asks>,
}

/// Calls of tools of the bridge.
enum Asks {
    Captain(Outcome),
    Agent { place: Place, calls: Vec<ToolCall> },
}

impl Work {
    /// Events of an attempt; 0 stands for those of the run.
    fn of(attempt: u32, events: impl IntoIterator<Item = Event>) -> Self {
        let entries = events.into_iter().map(|event| (attempt, event));
        Self {
            entries: entries.collect(),
            ..Self::default()
        }
    }

    /// Nothing was done; it is decided again.
    fn is_none(&self) -> bool {
        self.entries.is_empty() && self.asks.is_none()
    }
}

/// A document of the run.
struct Artifact {
    path: String,
    kind: event::ArtifactType,
    content: String,
}

impl Artifact {
    fn walkthrough(path: String, content: String) -> Self {
        Self {
            path,
            kind: event::ArtifactType::Walkthrough,
            content: attempt::clip(content),
        }
    }
}

/// Reason why a request about a run is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no run {0}, or its retention is over")]
    NotFound(RunId),
    #[error("invalid fields of the request: {}", .0.len())]
    Invalid(Vec<FieldError>),
    #[error("the idempotency key was used for another run, {0}")]
    Conflict(RunId),
    #[error(transparent)]
    NotNow(#[from] NotNow),
    /// This bridge cannot execute runs.
    #[error("{0}")]
    Unavailable(String),
    #[error("the bridge stops")]
    Stopping,
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Runs {
    pub fn new(setup: Setup) -> Self {
        let Setup {
            config,
            checks,
            store,
            dispatcher,
            clock,
            retention,
            git,
            launcher,
            check_user,
            tracker,
            shutdown,
        } = setup;
        Self(Arc::new(Inner {
            config,
            checks,
            store,
            dispatcher,
            clock,
            retention,
            git,
            launcher,
            check_user,
            tracker,
            shutdown,
            live: Mutex::default(),
            meters: Arc::default(),
            space: Space::new(),
        }))
    }

    /// Wait of all runs for space on the disk; `None` while there is enough.
    pub fn disk_wait(&self) -> Option<Wait> {
        self.0.space.shortage()
    }

    pub fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// Continues all runs that have not ended, and removes folders of those that have.
    pub async fn recover(&self) -> store::Result<()> {
        let tidying = checkouts::tidy(Arc::clone(&self.0));
        let watching = space::watch(Arc::clone(&self.0));
        let until_shutdown = self.0.shutdown.clone();
        self.0.tracker.spawn(async move {
            let both = async { tokio::join!(tidying, watching) };
            until_shutdown.run_until_cancelled_owned(both).await
        });
        let mut after = None;
        loop {
            let page = self.0.store.live_runs(after, 100).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = Some(*last);
            for id in page {
                if let Some(record) = self.0.store.run(id).await? {
                    self.0.drive(&record, None)?;
                }
            }
        }
    }

    /// Records a new run; on disk when it returns. The same key and request give the same run.
    pub async fn create(
        &self,
        body: &serde_json::Value,
        key: Option<RunKey>,
    ) -> Result<RunRecord, Error> {
        let inner = &self.0;
        let git = inner
            .git
            .as_ref()
            .map_err(|text| Error::Unavailable(text.clone()))?;
        let mut request = RunRequest::read(body, git).map_err(Error::Invalid)?;
        let fingerprint = sha256(driver::raw(&request).get());
        // What applies is what is shown and kept, also if the settings change.
        request.model = request.model.or_else(|| inner.config.model.clone());
        request.provider = request.provider.or_else(|| inner.config.provider.clone());
        request.greeting = inner.config.greeting.resolve(|| {
            let profile = inner.dispatcher.profile(request.provider.as_deref()?)?;
            Some(profile.cost_tier)
        });
        check_hooks(git, &request).await?;
        let now = inner.clock.now();
        let mut state = request.first_state(now);
        let started = Event::RunStarted {
            repo_url: request.repo_url.clone(),
        };
        // Kept in the log only.
        let message = request.message.take();
        let message = message.map(|content| Event::UserMessage { content });
        let entries = [Some(started), message].into_iter().flatten();
        let entries = entries.map(|event| Entry {
            at: now,
            attempt: 0,
            event,
        });
        let entries: Vec<_> = entries.collect();
        for entry in &entries {
            state.fold(entry);
        }
        let id = RunId::new();
        let request = driver::raw(&request);
        let new = NewRun {
            id,
            key,
            fingerprint,
            trace_id: Trace::from_header(None).trace_id,
            created_at: now,
            request,
            projection: driver::raw(&state),
            events: entries.iter().map(driver::stored).collect(),
        };
        match inner.store.open_run(new).await? {
            RunOpened::New => {
                let record = inner.store.run(id).await?.ok_or(Error::NotFound(id))?;
                inner.drive(&record, None)?;
                Ok(record)
            }
            RunOpened::Known(record) => Ok(record),
            RunOpened::Conflict(id) => Err(Error::Conflict(id)),
        }
    }

    /// Carries out a request; its events are on disk when it returns the status after it.
    pub async fn command(&self, id: RunId, command: Command) -> Result<RunStatus, Error> {
        if let Some(answer) = self.ask(id, &command).await {
            return answer;
        }
        let record = self.0.store.run(id).await?.ok_or(Error::NotFound(id))?;
        if !record.status.is_ended() || self.0.shutdown.is_cancelled() {
            return Err(Error::Stopping);
        }
        let state = State::stored(&record)?;
        let events = command.events(&state, self.0.clock.now())?;
        if events.is_empty() {
            return Ok(record.status);
        }
        // Only a retry has an effect on a run that has ended. Its driver is there again for it.
        self.0
            .git
            .as_ref()
            .map_err(|text| Error::Unavailable(text.clone()))?;
        let (answer, answered) = oneshot::channel();
        self.0.drive(&record, Some(Asked { command, answer }))?;
        answered.await.unwrap_or(Err(Error::Stopping))
    }

    /// Answer of the driver of a run; `None` without one.
    async fn ask(&self, id: RunId, command: &Command) -> Option<Result<RunStatus, Error>> {
        let live = self.0.live().get(&id).cloned()?;
        let (answer, answered) = oneshot::channel();
        let command = command.clone();
        let answering = async {
            live.send(Asked { command, answer }).await.ok()?;
            answered.await.ok()
        };
        timeout(COMMAND_TIMEOUT, answering).await.unwrap_or_else(|_| {
            // The driver repeats a write until the store takes it.
            let text = "the request is carried out once the store can be written; send it again to see the result";
            Some(Err(store::Error::Unavailable(text.to_owned()).into()))
        })
    }
}

/// Refuses a repository whose hooks would not be asked.
async fn check_hooks(git: &Git, request: &RunRequest) -> Result<(), Error> {
    let refused = |message: String| {
        let field = "repoUrl".to_owned();
        Error::Invalid(vec![FieldError { field, message }])
    };
    let url = git.check(&request.repo_url);
    let url = url.map_err(|error| refused(error.to_string()))?;
    let checked = git.check_hooks(&url).await;
    checked.map_err(|error| refused(error.to_string()))
}

impl Inner {
    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, mpsc::Sender<Asked>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the driver of a run with a first request.
    fn drive(self: &Arc<Self>, record: &RunRecord, first: Option<Asked>) -> store::Result<()> {
        let mut live = self.live();
        // One of two retries at the same time was faster.
        if live.contains_key(&record.id) {
            return Ok(());
        }
        let (sender, asked) = mpsc::channel(16);
        if let Some(first) = first {
            // It has places for more.
            let _ = sender.try_send(first);
        }
        let driver = Driver::new(Arc::clone(self), record, asked)?;
        live.insert(record.id, sender);
        self.tracker.spawn(driver.run());
        Ok(())
    }
}
