//! Write queue: changes wait here for the writer thread, which takes all of them as one batch. Bounded by bytes; a caller
//! waits for room before its change is queued.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::change::{Failure, QueuedChange, Urgency};
use super::{CLOSED, closed, lock};
use forge_store::Result;
use forge_store::progress::WriteProgress;

const BATCH_BYTES: usize = 4 << 20;
/// Size of a change besides its bodies, in memory and in the file.
const CHANGE_BYTES: usize = 4096;
/// Longest wait of changes that are not urgent for others to share a commit with.
const SHARE_DELAY: Duration = Duration::from_millis(5);

pub(super) struct WriteQueue<S> {
    state: Mutex<State<S>>,
    /// Wakes the writer thread.
    wake: Condvar,
    room: Arc<Semaphore>,
    capacity_bytes: u32,
    progress: Arc<WriteProgress>,
}

struct State<S> {
    waiting: VecDeque<QueuedChange<S>>,
    /// Of the most urgent of `waiting`.
    urgency: Urgency,
    /// Reason why nothing can be written.
    failure: Option<String>,
    /// Least urgency of a change for which the writer thread, which sleeps, is woken.
    wakes_for: Option<Urgency>,
    is_closing: bool,
}

impl<S> WriteQueue<S> {
    pub(super) fn new(bytes: usize, progress: Arc<WriteProgress>) -> Self {
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let capacity_bytes = u32::try_from(bytes).unwrap_or(most).clamp(1, most);
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                urgency: Urgency::Soon,
                failure: None,
                wakes_for: None,
                is_closing: false,
            }),
            wake: Condvar::new(),
            room: Arc::new(Semaphore::new(capacity_bytes as usize)),
            capacity_bytes,
            progress,
        }
    }

    pub(super) fn bytes_in_use(&self) -> u64 {
        let free = self.room.available_permits() as u64;
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
        let room = Arc::clone(&self.room).acquire_many_owned(share).await;
        let room = room.map_err(|_| closed())?;
        let (change, answer) = QueuedChange::new(change, urgency, bytes, room);
        self.push(change);
        answer.await.map_err(|_| closed())?
    }

    /// Refused at once while the store is closed or stalled, or cannot be written.
    fn push(&self, change: QueuedChange<S>) {
        let stalled = self.progress.refusal();
        let mut state = lock(&self.state);
        if let Some(reason) = state.refusal().or(stalled) {
            drop(state);
            return change.refuse(&reason);
        }
        let wakes = state.wakes_for.is_some_and(|least| change.urgency >= least);
        if state.waiting.is_empty() {
            self.progress.set_waiting(Some(change.arrived));
            state.urgency = change.urgency;
        }
        state.urgency = state.urgency.max(change.urgency);
        state.waiting.push_back(change);
        if wakes {
            state.wakes_for = None;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Sleeps until there is a batch, which does not start before `not_before`, or until `idle_at`; the batch is empty
    /// then. `None` if the queue is empty and the store is to be closed.
    pub(super) fn next(
        &self,
        not_before: Instant,
        idle_at: Instant,
    ) -> Option<Vec<QueuedChange<S>>> {
        let mut state = lock(&self.state);
        self.progress.set_batch(None);
        self.progress.set_waiting(state.oldest());
        loop {
            let (until, wakes_for) = match (state.oldest(), state.urgency) {
                (None, _) if state.is_closing => return None,
                (Some(_), _) if state.is_closing => return Some(self.batch(&mut state)),
                (None, _) => (idle_at, Some(Urgency::Soon)),
                (Some(oldest), Urgency::Soon) => (oldest + SHARE_DELAY, Some(Urgency::Now)),
                (Some(_), Urgency::Now) => (not_before, None),
            };
            if until <= Instant::now() {
                return Some(self.batch(&mut state));
            }
            state.wakes_for = wakes_for;
            state = self.sleep(state, until);
        }
    }

    fn batch(&self, state: &mut State<S>) -> Vec<QueuedChange<S>> {
        self.progress.set_batch(state.oldest());
        let batch = state.batch();
        self.progress.set_waiting(state.oldest());
        batch
    }

    /// Sleeps through a pause between two attempts to write again; returns false at once when the store is to be closed.
    pub(super) fn pause(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.is_closing && Instant::now() < until {
            state = self.sleep(state, until);
        }
        !state.is_closing
    }

    fn sleep<'a>(
        &'a self,
        state: MutexGuard<'a, State<S>>,
        until: Instant,
    ) -> MutexGuard<'a, State<S>> {
        let at_most = until.saturating_duration_since(Instant::now());
        let woken = self.wake.wait_timeout(state, at_most);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner).0;
        state.wakes_for = None;
        state
    }

    /// Refuses every change from now on, and those that wait.
    pub(super) fn set_unavailable(&self, reason: &str) {
        let waiting = {
            let mut state = lock(&self.state);
            state.failure = Some(reason.to_owned());
            mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|change| change.refuse(reason));
    }

    /// Refuses the changes that wait for a writer thread that makes no progress; they are never made.
    pub(super) fn refuse_waiting(&self, reason: &str) {
        let waiting = mem::take(&mut lock(&self.state).waiting);
        waiting.into_iter().for_each(|change| change.refuse(reason));
    }

    pub(super) fn set_available(&self) {
        lock(&self.state).failure = None;
    }

    /// Reason for which changes are refused at present.
    pub(super) fn refusal(&self) -> Option<String> {
        lock(&self.state).refusal()
    }

    /// Refuses further changes; the writer thread closes the file after those that wait.
    pub(super) fn close(&self) {
        lock(&self.state).is_closing = true;
        self.wake.notify_one();
    }
}

impl<S> State<S> {
    fn refusal(&self) -> Option<String> {
        match self.is_closing {
            true => Some(CLOSED.to_owned()),
            false => self.failure.clone(),
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|change| change.arrived)
    }

    fn batch(&mut self) -> Vec<QueuedChange<S>> {
        let mut bytes = 0;
        let fits = |change: &&QueuedChange<S>| {
            let before = bytes;
            bytes += change.bytes;
            before < BATCH_BYTES
        };
        let count = self.waiting.iter().take_while(fits).count();
        // The rest has waited long enough.
        self.urgency = Urgency::Now;
        self.waiting.drain(..count).collect()
    }
}
