//! Engine API: receives signals that adapters sign with their token, also of other machines, and stores them before
//! they are answered. While the store is away, signals are answered from memory as not logged.

mod arrival;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod sessions;
mod signal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use forge_base::digest::Digest;
use forge_base::event::kind;
use forge_base::tasks::Rounds;
use forge_base::time::{self, Clock};
use forge_store::record::{Severity, SignalSource};
use forge_store::roles::Signals;

use self::arrival::Arrival;
use self::sessions::{LONGEST_PAUSE, Newest, Sessions};
use self::signal::Signal;
use crate::FieldProblem;
use crate::config::Config;
use crate::ledger::Ledger;
use crate::meters::{Meters, Outcome};
use crate::record::{repeat_key, skewed};
use crate::session::{self, STORE_TIMEOUT, session_event};

/// Time without a heartbeat after which an adapter that sent one is taken for gone.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Dependencies of the engine.
pub struct Setup {
    pub config: Config,
    pub store: Arc<dyn Signals>,
    pub ledger: Ledger,
    pub clock: Clock,
}

/// Handle of the engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Arc<dyn Signals>,
    ledger: Ledger,
    clock: Clock,
    sessions: Sessions,
    meters: Meters,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Caller whose signature was right.
#[derive(Clone, Debug)]
pub struct Caller {
    /// SHA-256 of its token, which its sessions belong to.
    pub owner: Digest,
    pub user: Option<String>,
}

/// Reaction that the adapter is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Noop,
    /// Something was noted that needs no attention.
    Log,
    /// Show the message to the user.
    Intervention {
        id: String,
        message: String,
        severity: Severity,
    },
}

impl Action {
    pub fn as_str(&self) -> &'static str {
        match self {
            Action::Noop => "noop",
            Action::Log => "log",
            Action::Intervention { .. } => "intervention",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub action: Action,
    pub session_id: String,
    /// True if the record is on disk.
    pub logged: bool,
    /// Id of the signal, the same for its repeats, where the answer has it.
    pub signal_id: Option<String>,
}

/// Reason why a signal was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    #[error("the signal is not valid")]
    Invalid(Vec<FieldProblem>),
    #[error("there are {0} live sessions (signals.max_sessions)")]
    Full(usize),
}

impl Engine {
    /// Reads the sessions that can still be live.
    pub async fn open(setup: Setup) -> Result<Self, forge_store::Error> {
        let inner = Inner {
            config: setup.config,
            store: setup.store,
            ledger: setup.ledger,
            clock: setup.clock,
            sessions: Sessions::default(),
            meters: Meters::default(),
        };
        let since = inner.oldest();
        let restore = |session| inner.sessions.restore(session);
        session::recent(&*inner.store, SignalSource::Engine, since, restore).await?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Number of live sessions.
    pub fn sessions(&self) -> usize {
        let inner = &*self.inner;
        let timeout = inner.config.session_timeout;
        inner.sessions.live(inner.clock.now(), timeout)
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Stores a signal. `body` holds the bytes that the caller signed, `tree` is their JSON.
    pub async fn receive(
        &self,
        caller: &Caller,
        body: &[u8],
        tree: &Value,
    ) -> Result<Answer, ReceiveError> {
        let inner = &*self.inner;
        let read = Signal::read(tree).and_then(|signal| inner.check_strictly(signal));
        let signal = read.map_err(|problems| {
            inner.meters.count(Outcome::Invalid);
            ReceiveError::Invalid(problems)
        })?;
        let arrival = Arrival {
            signal: &signal,
            user: caller.user.as_deref().or(inner.config.user.as_deref()),
            repeat_key: repeat_key(signal.call_id.as_deref(), body, tree),
            at: inner.clock.now(),
            deadline: Instant::now() + STORE_TIMEOUT,
        };
        let places = inner.places(&caller.owner, &arrival)?;
        let stored = places.iter().map(|place| inner.store(place, &arrival));
        let mut judged = join_all(stored).await;
        let (place, judged) = (&places[0], judged.swap_remove(0));
        inner.meters.count(judged.outcome);
        Ok(inner.answer(place, &arrival, judged).await)
    }

    /// Ends idle sessions and notices heartbeats that stop, until the token is cancelled.
    pub async fn run(self, ending: CancellationToken) {
        let mut rounds = Rounds::every(LOOK_EVERY, ending);
        while rounds.due().await {
            rounds.work(self.look()).await;
        }
    }

    /// Ends idle sessions, records lost heartbeats, and forgets old sessions.
    pub(crate) async fn look(&self) {
        let inner = &*self.inner;
        if let Err(error) = inner.end_idle().await {
            tracing::warn!("idle sessions of signals are not ended: {error}");
        }
        if let Err(error) = inner.notice_lost_heartbeats().await {
            tracing::warn!("lost heartbeats of signals are not recorded: {error}");
        }
        let oldest = inner.oldest();
        inner
            .sessions
            .retain(|newest| newest.session.last_at >= oldest);
    }
}

impl Inner {
    /// Time before which a session without signals has ended.
    fn oldest(&self) -> Timestamp {
        let longest = LONGEST_PAUSE.max(self.config.session_timeout);
        let oldest = self.clock.now().checked_sub(longest);
        oldest.unwrap_or(Timestamp::MIN)
    }

    /// Applies `signals.strict`: known types only, and a time near the present one.
    fn check_strictly(&self, signal: Signal) -> Result<Signal, Vec<FieldProblem>> {
        if !self.config.strict {
            return Ok(signal);
        }
        let mut problems = Vec::new();
        if !signal.is_known {
            problems.push(FieldProblem::new("type", "is not known (signals.strict)"));
        }
        problems.extend(match signal.ts {
            None => Some(FieldProblem::new("ts", "is required (signals.strict)")),
            Some(ts) => skewed(ts, self.clock.now()),
        });
        match problems.is_empty() {
            true => Ok(signal),
            false => Err(problems),
        }
    }

    async fn end_idle(&self) -> forge_store::Result<()> {
        let (now, limit) = (self.clock.now(), self.config.session_timeout);
        let is_idle = |newest: &Newest| newest.is_idle(now, limit);
        for place in self.sessions.matching(now, is_idle) {
            let _writing = place.gate.write().await;
            let newest = place.newest().clone();
            if !newest.is_idle(now, limit) {
                continue;
            }
            let session = newest.session;
            let ended_at = session.last_at.max(session.started_at);
            let event = session_event(kind::SIGNAL_SESSION_ENDED, &session, ended_at);
            let ends = vec![(session.id.clone(), ended_at)];
            self.store.end_signal_sessions(ends, vec![event]).await?;
            place.newest().session.ended_at = Some(ended_at);
        }
        Ok(())
    }

    async fn notice_lost_heartbeats(&self) -> forge_store::Result<()> {
        let (now, limit) = (self.clock.now(), self.config.session_timeout);
        let is_lost = |newest: &Newest| {
            let since = newest.beat_at.map(|at| time::wall_age(at, now));
            since.is_some_and(|since| since >= HEARTBEAT_TIMEOUT) && newest.is_live(now, limit)
        };
        let lost = self.sessions.matching(now, is_lost);
        let events = lost
            .iter()
            .map(|place| session_event(kind::SIGNAL_HEARTBEAT_LOST, &place.newest().session, now));
        let events: Vec<_> = events.collect();
        if events.is_empty() {
            return Ok(());
        }
        // It ends no session, and appends the events.
        self.store.end_signal_sessions(Vec::new(), events).await?;
        for place in lost {
            place.newest().beat_at = None;
            self.meters.heartbeats_lost.inc();
        }
        Ok(())
    }
}
