//! Queue of changes for the writer, which takes all that wait as one batch. Bounded by bytes; a caller waits for room
//! before its change is queued.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::change::{Decide, QueuedChange};
use super::doubt::Touched;
use super::{CLOSED, closed, lock};
use crate::batch::{Needs, Placed};
use forge_store::Result;
use forge_store::progress::WriteProgress;

const BATCH_BYTES: usize = 4 << 20;
/// Size of a change besides its bodies.
const CHANGE_BYTES: usize = 4096;
/// Longest wait of changes that can wait for others to share a transaction with.
const SHARE_DELAY: Duration = Duration::from_millis(5);

pub(crate) struct WriteQueue {
    state: Mutex<State>,
    /// Wakes the writer.
    wake: Notify,
    room: Arc<Semaphore>,
    capacity_bytes: u32,
    progress: Arc<WriteProgress>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<QueuedChange>,
    /// Reason why nothing can be written.
    failure: Option<String>,
    /// Reason why nothing may be written: this node has no lease.
    lapse: Option<String>,
    /// Rows of batches whose outcome is not known. Changes of them wait.
    in_doubt: Vec<Touched>,
    is_closing: bool,
}

impl WriteQueue {
    pub(crate) fn new(bytes: usize, progress: Arc<WriteProgress>) -> Self {
        let most = u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX);
        let capacity_bytes = u32::try_from(bytes).unwrap_or(most).clamp(1, most);
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            room: Arc::new(Semaphore::new(capacity_bytes as usize)),
            capacity_bytes,
            progress,
        }
    }

    pub(crate) fn bytes_in_use(&self) -> u64 {
        let free = self.room.available_permits() as u64;
        u64::from(self.capacity_bytes).saturating_sub(free)
    }

    /// Waits for room, then for the commit. Refused at once while the store is closed or stalled, or cannot be written.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        bytes: usize,
        needs: Needs,
        decide: impl Decide<T>,
    ) -> Result<(T, Placed)> {
        let bytes = bytes.saturating_add(CHANGE_BYTES);
        // One change larger than the queue takes all of it.
        let share = u32::try_from(bytes).unwrap_or(u32::MAX);
        let share = share.min(self.capacity_bytes);
        let room = Arc::clone(&self.room).acquire_many_owned(share).await;
        let room = room.map_err(|_| closed())?;
        let (change, answer) = QueuedChange::new(bytes, needs, decide, room);
        let stalled = self.progress.refusal();
        {
            let mut state = lock(&self.state);
            match state.refusal().or(stalled) {
                Some(reason) => change.refuse(&reason),
                None => {
                    if state.waiting.is_empty() {
                        self.progress.set_waiting(Some(change.arrived.into_std()));
                    }
                    state.waiting.push_back(change);
                }
            }
        }
        self.wake.notify_one();
        answer.await.map_err(|_| closed())?
    }

    /// Waits for the next batch. `None` if nothing waits and the store is to be closed.
    pub(crate) async fn next(&self) -> Option<Vec<QueuedChange>> {
        self.end_batch();
        loop {
            let due = {
                let mut state = lock(&self.state);
                match state.due() {
                    None if state.is_closing && state.waiting.is_empty() => return None,
                    Some(due) if state.is_closing || due <= Instant::now() => {
                        self.progress.set_batch(state.oldest());
                        let batch = state.batch();
                        self.progress.set_waiting(state.oldest());
                        return Some(batch);
                    }
                    due => due,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    /// Publishes that no batch is under way.
    pub(crate) fn end_batch(&self) {
        self.progress.set_batch(None);
        self.progress.set_waiting(lock(&self.state).oldest());
    }

    /// Puts changes back, before all others.
    pub(crate) fn put_back(&self, changes: Vec<QueuedChange>) {
        let mut state = lock(&self.state);
        for change in changes.into_iter().rev() {
            state.waiting.push_front(change);
        }
    }

    /// Makes changes of these rows wait.
    pub(crate) fn hold(&self, touched: Touched) {
        lock(&self.state).in_doubt.push(touched);
    }

    /// Ends what `hold` began for this slot.
    pub(crate) fn release(&self, slot: usize) {
        let mut state = lock(&self.state);
        state.in_doubt.retain(|touched| touched.slot != slot);
        drop(state);
        self.wake.notify_one();
    }

    /// Puts changes back, behind all others. Each goes alone.
    pub(crate) fn put_behind(&self, changes: Vec<QueuedChange>) {
        let alone = changes.into_iter().map(QueuedChange::alone);
        lock(&self.state).waiting.extend(alone);
    }

    /// Refuses every change from now on, and those that wait.
    pub(crate) fn set_unavailable(&self, reason: &str) {
        let waiting = {
            let mut state = lock(&self.state);
            state.failure = Some(reason.to_owned());
            mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|change| change.refuse(reason));
    }

    /// Refuses the changes that wait for a writer that makes no progress; they are never made.
    pub(crate) fn refuse_waiting(&self, reason: &str) {
        let waiting = mem::take(&mut lock(&self.state).waiting);
        waiting.into_iter().for_each(|change| change.refuse(reason));
    }

    /// Refuses changes while this node has no lease, and those that wait.
    pub(crate) fn set_lapsed(&self, reason: Option<&str>) {
        let mut state = lock(&self.state);
        state.lapse = reason.map(str::to_owned);
        let waiting = match reason {
            Some(_) => mem::take(&mut state.waiting),
            None => VecDeque::new(),
        };
        drop(state);
        let reason = reason.unwrap_or_default();
        waiting.into_iter().for_each(|change| change.refuse(reason));
    }

    pub(crate) fn set_available(&self) {
        lock(&self.state).failure = None;
    }

    /// Reason for which changes are refused at present.
    pub(crate) fn refusal(&self) -> Option<String> {
        lock(&self.state).refusal()
    }

    /// Refuses further changes; the writer ends after those that wait.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closing = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.state).is_closing
    }
}

impl State {
    fn refusal(&self) -> Option<String> {
        match self.is_closing {
            true => Some(CLOSED.to_owned()),
            false => self.lapse.clone().or_else(|| self.failure.clone()),
        }
    }

    fn oldest(&self) -> Option<std::time::Instant> {
        let arrived = self.waiting.iter().map(|change| change.arrived);
        arrived.min().map(Instant::into_std)
    }

    /// Time of the next batch: at once if a change cannot wait. `None` if nothing waits.
    fn due(&self) -> Option<Instant> {
        let mut free = self.waiting.iter().filter(|change| !self.is_held(change));
        let first = free.next()?;
        match first.needs().can_wait && free.all(|change| change.needs().can_wait) {
            true => Some(first.arrived + SHARE_DELAY),
            false => Some(first.arrived),
        }
    }

    fn is_held(&self, change: &QueuedChange) -> bool {
        let mut doubts = self.in_doubt.iter();
        doubts.any(|touched| touched.holds_up(change.needs()))
    }

    /// Takes changes up to the bound, or to the first that must not share a transaction with an earlier one. Those that
    /// wait for an outcome stay.
    fn batch(&mut self) -> Vec<QueuedChange> {
        let mut batch: Vec<QueuedChange> = Vec::new();
        let (mut bytes, mut held) = (0, Vec::new());
        while let Some(next) = self.waiting.front() {
            if self.is_held(next) {
                held.extend(self.waiting.pop_front());
                continue;
            }
            let is_apart = batch
                .iter()
                .any(|change| change.needs().excludes(next.needs()));
            if is_apart || bytes >= BATCH_BYTES {
                break;
            }
            bytes += next.bytes;
            batch.extend(self.waiting.pop_front());
        }
        for change in held.into_iter().rev() {
            self.waiting.push_front(change);
        }
        batch
    }
}
