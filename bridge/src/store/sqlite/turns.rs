//! What waits for its turn, what is promised and not in the tables yet, and what is to be done next, by whom and when.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use tokio::sync::oneshot;

use super::ahead::Ahead;
use super::op::{Haste, Op};
use super::shared::Shared;
use super::writer::{Unwritable, Writer};

const BATCH_OPS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;
/// Under load a commit begins at the earliest so long after the one before: what comes meanwhile shares
/// it, and all of it costs less. A batch of fewer than `CROWD` is no load: then nobody is kept waiting, and after
/// so many of them in a row what can be is promised. A crowd goes to the tables at once: it shares their commit.
const PACE: Duration = Duration::from_micros(400);
const CROWD: usize = 8;
const QUIET_COMMITS: u32 = 8;
/// How long a change for which nobody waits looks for others to share its commit.
const RIDE: Duration = Duration::from_millis(5);
/// After so long without a write the WAL is folded into the file, and the next write begins it anew. It keeps its
/// length: where a file has to grow, a sync takes twice as long.
const IDLE: Duration = Duration::from_secs(1);
/// It is calm after so many commits in a row of so few changes that took no longer than this. Whoever comes then with
/// no more bytes than these writes himself: nothing else is done on his thread meanwhile.
const CALM_COMMITS: u32 = 8;
const CALM_OPS: usize = 3;
const CALM: Duration = Duration::from_millis(1);
pub(super) const LIGHT_BYTES: usize = 64 << 10;
/// How long what is promised looks for more to share a transaction with while nobody reads, and while somebody follows
/// the log, who learns of it from the tables.
const LINGER: Duration = Duration::from_millis(20);
const LINGER_FOLLOWED: Duration = Duration::from_millis(2);
/// So many changes may be promised and not in the tables.
const MOST_AHEAD: usize = 512;
/// Between two attempts to open the file anew, at most.
const LONG_DELAY: Duration = Duration::from_secs(5);

/// Whose task it is: of the thread that promises what waits, or of the one that is at the tables.
#[derive(Clone, Copy)]
pub(super) enum Hand {
    Promises,
    Tables,
}

pub(super) const HANDS: [Hand; 2] = [Hand::Promises, Hand::Tables];

pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) waiting: VecDeque<Op>,
    /// Since when the first of them waits.
    pub(super) since: Instant,
    /// Whether one of them may not wait for others.
    pub(super) hurried: bool,
    /// Away while somebody promises, or changes the tables otherwise than was promised.
    pub(super) ahead: Option<Box<Ahead>>,
    /// Away while somebody writes to the tables.
    pub(super) writer: Option<Box<Writer>>,
    /// What is promised and not in the tables yet, and since when.
    pub(super) promised: VecDeque<Op>,
    pub(super) promised_at: Instant,
    /// The first of what waits cannot be decided ahead.
    pub(super) by_tables: bool,
    /// How many commits in a row were of no crowd.
    pub(super) quiet: u32,
    /// How many commits in a row it has been calm.
    pub(super) calm: u32,
    /// Under load, when the next commit may begin.
    pub(super) not_before: Instant,
    /// When the last commit was, unless the WAL has been folded since.
    pub(super) written_at: Option<Instant>,
    /// Why nothing can be written before the file is opened anew.
    pub(super) failure: Option<Failure>,
    pub(super) closing: Closing,
    /// When each hand looks again if nobody calls it; past while it is at work.
    pub(super) wakes_at: [Option<Instant>; 2],
}

pub(super) struct Failure {
    pub(super) why: Unwritable,
    pub(super) since: Instant,
    pub(super) delays: ExponentialBackoff,
    pub(super) again_at: Instant,
}

pub(super) enum Closing {
    No,
    /// And who waits for it.
    Asked(Vec<oneshot::Sender<()>>),
    Done,
}

/// What is for a hand to do.
#[derive(Clone, Copy)]
pub(super) enum Task {
    Promise,
    Write,
    Make,
    Look,
    Fold,
    Reopen,
    Close,
}

pub(super) enum Done {
    Written { ops: usize, begun: Instant },
    Made,
    Looked,
    Folded,
    Reopened,
}

impl State {
    pub(super) fn new(ahead: Ahead, writer: Writer) -> Self {
        let now = Instant::now();
        Self {
            shared: Arc::clone(&writer.shared),
            waiting: VecDeque::new(),
            since: now,
            hurried: false,
            ahead: Some(Box::new(ahead)),
            writer: Some(Box::new(writer)),
            promised: VecDeque::new(),
            promised_at: now,
            by_tables: false,
            quiet: QUIET_COMMITS,
            calm: CALM_COMMITS,
            not_before: now,
            written_at: Some(now),
            failure: None,
            closing: Closing::No,
            wakes_at: [Some(now); 2],
        }
    }

    /// Whether who comes with this may write himself.
    pub(super) fn is_calm_for(&self, op: &Op) -> bool {
        let is_light = op.haste == Haste::Now && op.bytes <= LIGHT_BYTES;
        is_light && self.calm >= CALM_COMMITS
    }

    pub(super) fn add(&mut self, op: Op) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.hurried |= op.haste == Haste::Now;
        self.waiting.push_back(op);
    }

    /// In front of all that waits.
    pub(super) fn put_back(&mut self, op: Op) {
        self.hurried |= op.haste == Haste::Now;
        self.waiting.push_front(op);
    }

    pub(super) fn batch(&mut self) -> Vec<Op> {
        let mut bytes = 0;
        let fits = |op: &&Op| {
            let before = bytes;
            bytes += op.bytes;
            before < BATCH_BYTES
        };
        let count = self.waiting.iter().take(BATCH_OPS).take_while(fits).count();
        let batch = self.waiting.drain(..count).collect();
        self.hurried = !self.waiting.is_empty();
        batch
    }

    /// Whether what waits may be decided ahead of the tables.
    pub(super) fn goes_ahead(&self) -> bool {
        let is_quiet = self.quiet >= QUIET_COMMITS && self.waiting.len() < CROWD;
        is_quiet && !self.by_tables && self.promised.len() < MOST_AHEAD
    }

    pub(super) fn add_promised(&mut self, promised: Vec<Op>) {
        if self.promised.is_empty() {
            self.promised_at = Instant::now();
        }
        self.promised.extend(promised);
    }

    /// What is to be made to the tables before anything else is.
    pub(super) fn take_promised(&mut self) -> Vec<Op> {
        self.promised.drain(..).collect()
    }

    /// What is for a hand to do, and when. Who is at work asks again when he is done.
    pub(super) fn next(&self, hand: Hand, now: Instant) -> Option<(Instant, Task)> {
        match hand {
            Hand::Promises if self.failure.is_none() && self.goes_ahead() => {
                self.ahead.as_ref()?;
                Some((self.waits_until()?, Task::Promise))
            }
            Hand::Promises => None,
            Hand::Tables => self.next_of_tables(now),
        }
    }

    /// Until when what waits may look for others to share its commit with.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        let may_ride = !self.hurried && matches!(self.closing, Closing::No);
        (!self.waiting.is_empty()).then(|| match may_ride {
            true => self.since + RIDE,
            false => self.not_before,
        })
    }

    pub(super) fn next_of_tables(&self, now: Instant) -> Option<(Instant, Task)> {
        let is_closing = matches!(self.closing, Closing::Asked(_));
        let both = self.ahead.is_some() && self.writer.is_some();
        if let Some(failure) = &self.failure {
            if !both {
                return None;
            }
            return match (is_closing, failure.why.is_damage) {
                (true, _) => Some((now, Task::Close)),
                (false, true) => None,
                (false, false) => Some((failure.again_at, Task::Reopen)),
            };
        }
        if self
            .writer
            .as_ref()
            .is_some_and(|writer| writer.is_to_look())
        {
            return Some((now, Task::Look));
        }
        let writes = both && !self.goes_ahead();
        let write = writes.then(|| self.waits_until()).flatten();
        let makes = self.writer.is_some() && !self.promised.is_empty();
        let make = makes.then(|| match self.shared.is_wanted() || is_closing {
            true => self.promised_at,
            false if self.shared.issued.receiver_count() > 0 => self.promised_at + LINGER_FOLLOWED,
            false => self.promised_at + LINGER,
        });
        let write = write.map(|at| (at, Task::Write));
        let make = make.map(|at| (at, Task::Make));
        if let Some(change) = write.into_iter().chain(make).min_by_key(|(at, _)| *at) {
            return Some(change);
        }
        if !both || !self.waiting.is_empty() {
            return None;
        }
        match is_closing {
            true => Some((now, Task::Close)),
            false => self.written_at.map(|at| (at + IDLE, Task::Fold)),
        }
    }

    /// After a failure, what was waiting and what it is to be told.
    pub(super) fn note(
        &mut self,
        done: Result<Done, Unwritable>,
    ) -> Option<(VecDeque<Op>, String)> {
        let now = Instant::now();
        match done {
            Ok(Done::Written { ops, begun }) => {
                self.quiet = match ops < CROWD {
                    true => self.quiet.saturating_add(1),
                    false => 0,
                };
                let is_calm = ops <= CALM_OPS && now - begun <= CALM;
                self.calm = match is_calm {
                    true => self.calm.saturating_add(1),
                    false => 0,
                };
                if ops >= CROWD {
                    self.not_before = begun + PACE;
                }
                self.written_at = Some(now);
            }
            Ok(Done::Looked | Done::Made) => {}
            Ok(Done::Folded) => self.written_at = None,
            Ok(Done::Reopened) => {
                if let Some(failure) = self.failure.take() {
                    tracing::info!("the store is back after {:.1?}", now - failure.since);
                }
            }
            Err(why) => {
                self.calm = 0;
                self.hurried = false;
                self.by_tables = false;
                // It is in the journal, from which the tables will have it.
                self.promised.clear();
                let reason = why.reason.clone();
                self.failure = Some(match self.failure.take() {
                    None => Failure::new(why, now),
                    Some(failure) => failure.again(why, now),
                });
                return Some((mem::take(&mut self.waiting), reason));
            }
        }
        None
    }
}

impl Failure {
    pub(super) fn new(why: Unwritable, now: Instant) -> Self {
        let then = match why.is_damage {
            true => {
                "nothing more is written to it: stop the bridge, look with `forge-bridge store check`, restore a backup"
            }
            false => "new work is refused until it can be written again",
        };
        tracing::error!("the store failed: {}; {then}", why.reason);
        let delays = ExponentialBackoffBuilder::new()
            .with_initial_interval(Duration::from_millis(50))
            .with_max_interval(LONG_DELAY)
            .with_max_elapsed_time(None)
            .build();
        Self {
            why,
            since: now,
            delays,
            again_at: now,
        }
    }

    pub(super) fn again(mut self, why: Unwritable, now: Instant) -> Self {
        let delay = self.delays.next_backoff().unwrap_or(LONG_DELAY);
        Self {
            why,
            again_at: now + delay,
            ..self
        }
    }
}
