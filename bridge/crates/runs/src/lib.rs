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
mod config;
mod context;
pub mod decide;
mod draft;
mod driver;
pub mod event;
pub mod files;
mod fold;
pub mod git;
pub mod greeting;
mod live;
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

use std::sync::Arc;
use std::time::Duration;

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
use forge_store::record::{KeyOwner, NewRun, RunKey, RunOpened, RunRecord, RunStatus};
use forge_store::{self as store, Store};

use agent::Place;
pub use check::Checks;
use command::{Command, NotNow};
pub use config::Config;
use driver::Driver;
use event::{Entry, Event};
use git::Git;
pub use git::{LocalHooks, Push};
pub use greeting::FirstWord;
use live::LiveRuns;
pub use live::TooManyRuns;
use meters::Meters;
use request::{FieldError, RunRequest};
pub use space::REMOVED_FOR_ROOM;
use space::Space;
use state::State;
use step::{Outcome, ToolCall};
use wait::Wait;

/// Time in which a request about a run is answered.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

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
    live: LiveRuns,
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
    #[error(transparent)]
    TooMany(#[from] TooManyRuns),
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
        let live = LiveRuns::new(config.max, config.max_per_token);
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
            live,
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
    pub async fn recover(&self) -> Result<(), Error> {
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

    /// Records a new run of a caller; on disk when it returns. The same key and request give the same run, also when no
    /// further one is admitted.
    pub async fn create(
        &self,
        body: &serde_json::Value,
        owner: KeyOwner,
        key: Option<String>,
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
        request.owner = owner;
        check_hooks(git, &request).await?;
        let id = RunId::new();
        let admission = inner.live.reserve(id, owner);
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
        let request = driver::raw(&request);
        let new = NewRun {
            id,
            key: key.map(|value| RunKey { owner, value }),
            fingerprint,
            trace_id: Trace::from_header(None).trace_id,
            created_at: now,
            request,
            projection: driver::raw(&state),
            events: entries.iter().map(driver::stored).collect(),
            is_admitted: admission.is_ok(),
        };
        match inner.store.open_run(new).await? {
            RunOpened::NotAdmitted => Err(admission.err().map_or(Error::Stopping, Error::from)),
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
        let live = self.0.live.commands(id)?;
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
    /// Starts the driver of a run, with a first request if it has ended. A run that is reopened is admitted like a new one.
    fn drive(self: &Arc<Self>, record: &RunRecord, first: Option<Asked>) -> Result<(), Error> {
        let (sender, asked) = mpsc::channel(16);
        let driver = Driver::new(Arc::clone(self), record, asked)?;
        let is_reopened = first.is_some();
        if let Some(first) = first {
            // It has places for more.
            let _ = sender.try_send(first);
        }
        // Of two retries at the same time one is faster.
        if self
            .live
            .enter(record.id, driver.owner(), sender, is_reopened)?
        {
            self.tracker.spawn(driver.run());
        }
        Ok(())
    }
}
