//! Write queue: changes wait here for the writer thread, which takes all of them as one batch. Bounded by number and
//! bytes; a caller waits for room before its change is queued.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::change::{Failure, QueuedChange, Urgency};
use super::{closed, lock};
use forge_store::Result;

const BATCH_OPS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;
/// Memory of a queued change besides its bodies.
const CHANGE_BYTES: usize = 512;
/// Longest wait of changes that are not urgent for others to share a commit with.
const SHARE_DELAY: Duration = Duration::from_millis(5);

pub(super) struct WriteQueue<S> {
    state: Mutex<State<S>>,
    /// Wakes the writer thread.
    wake: Condvar,
    ops: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    capacity_bytes: u32,
}

struct State<S> {
    waiting: VecDeque<QueuedChange<S>>,
    /// Arrival of the first of `waiting`.
    since: Instant,
    /// At least one of `waiting` is urgent.
    is_urgent: bool,
    /// Reason for refusing every change, while the file cannot be written.
    unavailable: Option<String>,
    sleep: Sleep,
    close: Close,
}

/// Changes for which a sleeping writer thread is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    No,
    UntilUrgent,
    UntilAny,
}

enum Close {
    No,
    /// Requested, with the callers that wait for it.
    Requested(Vec<oneshot::Sender<()>>),
    Done,
}

/// Work for the writer thread.
pub(super) enum Next<S> {
    Batch(Vec<QueuedChange<S>>),
    /// No change came until the given time.
    Idle,
    /// The queue is empty and the store is to be closed.
    Close,
}

impl<S> WriteQueue<S> {
    pub(super) fn new(ops: usize, bytes: usize) -> Self {
        let capacity_bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        let permits = (capacity_bytes as usize).min(Semaphore::MAX_PERMITS);
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                since: Instant::now(),
                is_urgent: false,
                unavailable: None,
                sleep: Sleep::No,
                close: Close::No,
            }),
            wake: Condvar::new(),
            ops: Arc::new(Semaphore::new(ops.clamp(1, Semaphore::MAX_PERMITS))),
            bytes: Arc::new(Semaphore::new(permits)),
            capacity_bytes,
        }
    }

    pub(super) fn bytes_in_use(&self) -> u64 {
        let free = self.bytes.available_permits() as u64;
        u64::from(self.capacity_bytes).saturating_sub(free)
    }

    /// Waits for room, then for the answer of the writer thread.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        change: impl Fn(&Connection, &mut S) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let bytes = bytes.saturating_add(CHANGE_BYTES);
        // One change larger than the queue takes all of it.
        let share = u32::try_from(bytes).unwrap_or(u32::MAX);
        let share = share.min(self.capacity_bytes);
        let ops = Arc::clone(&self.ops).acquire_owned().await;
        let room = Arc::clone(&self.bytes).acquire_many_owned(share).await;
        let (Ok(ops), Ok(room)) = (ops, room) else {
            return Err(closed());
        };
        let (change, answer) = QueuedChange::new(change, urgency, bytes, (ops, room));
        self.push(change);
        answer.await.map_err(|_| closed())?
    }

    /// Refused at once while the store is closed or cannot be written.
    fn push(&self, change: QueuedChange<S>) {
        let mut state = lock(&self.state);
        if !matches!(state.close, Close::No) {
            drop(state);
            return change.answer(Err(closed()));
        }
        if let Some(reason) = state.unavailable.clone() {
            drop(state);
            return change.refuse(&reason);
        }
        if state.waiting.is_empty() {
            state.since = Instant::now();
        }
        let is_urgent = change.urgency == Urgency::Now;
        state.is_urgent |= is_urgent;
        state.waiting.push_back(change);
        let wakes = match state.sleep {
            Sleep::No => false,
            Sleep::UntilUrgent => is_urgent,
            Sleep::UntilAny => true,
        };
        if wakes {
            state.sleep = Sleep::No;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Sleeps until there is a batch, which does not start before `not_before`, or until `idle_at`.
    pub(super) fn next(&self, not_before: Instant, idle_at: Option<Instant>) -> Next<S> {
        let mut state = lock(&self.state);
        loop {
            let is_closing = !matches!(state.close, Close::No);
            let (until, sleep) = match (state.waiting.is_empty(), is_closing) {
                (true, true) => return Next::Close,
                (true, false) => (idle_at, Sleep::UntilAny),
                (false, true) => return Next::Batch(state.batch()),
                (false, false) if state.is_urgent => (Some(not_before), Sleep::No),
                (false, false) => (Some(state.since + SHARE_DELAY), Sleep::UntilUrgent),
            };
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return match state.waiting.is_empty() {
                    true => Next::Idle,
                    false => Next::Batch(state.batch()),
                };
            }
            state = self.sleep(state, sleep, until.map(|until| until - now));
        }
    }

    /// Sleeps through a pause between two attempts to reopen the file; returns false at once when the store is to be
    /// closed. Without an end it waits for the close only.
    pub(super) fn pause(&self, end: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        loop {
            if !matches!(state.close, Close::No) {
                return false;
            }
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                return true;
            }
            state = self.sleep(state, Sleep::No, end.map(|end| end - now));
        }
    }

    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        sleep: Sleep,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, State<S>> {
        state.sleep = sleep;
        let mut state = match at_most {
            None => self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let woken = self.wake.wait_timeout(state, time);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleep = Sleep::No;
        state
    }

    /// Refuses every change from now on, and returns those that wait.
    pub(super) fn set_unavailable(&self, reason: &str) -> VecDeque<QueuedChange<S>> {
        let mut state = lock(&self.state);
        state.unavailable = Some(reason.to_owned());
        state.is_urgent = false;
        mem::take(&mut state.waiting)
    }

    pub(super) fn set_available(&self) {
        lock(&self.state).unavailable = None;
    }

    /// Returns after the writer thread has closed the file.
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        match &mut lock(&self.state).close {
            close @ Close::No => *close = Close::Requested(vec![done]),
            Close::Requested(all) => all.push(done),
            Close::Done => return,
        }
        self.wake.notify_one();
        // An error means that it is closed.
        let _ = closed.await;
    }

    pub(super) fn request_close(&self) {
        let mut state = lock(&self.state);
        if let close @ Close::No = &mut state.close {
            *close = Close::Requested(Vec::new());
            drop(state);
            self.wake.notify_one();
        }
    }

    /// The writer thread has closed the file.
    pub(super) fn set_closed(&self) {
        let close = mem::replace(&mut lock(&self.state).close, Close::Done);
        if let Close::Requested(all) = close {
            for done in all {
                // The caller can have gone away.
                let _ = done.send(());
            }
        }
    }
}

impl<S> State<S> {
    fn batch(&mut self) -> Vec<QueuedChange<S>> {
        let mut bytes = 0;
        let fits = |change: &&QueuedChange<S>| {
            let before = bytes;
            bytes += change.bytes;
            before < BATCH_BYTES
        };
        let count = self.waiting.iter().take(BATCH_OPS).take_while(fits).count();
        let batch = self.waiting.drain(..count).collect();
        self.is_urgent = !self.waiting.is_empty();
        batch
    }
}
