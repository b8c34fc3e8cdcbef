//! Commits of unknown outcome. Each is asked for by a task of its own, while the writer continues with the changes that
//! do not depend on it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::change::QueuedChange;
use super::outcome::{self, Outcome, Sent};
use super::{Shared, lock};
use crate::batch::{Needs, Placed, Rows};
use forge_base::id::{DispatchId, RunId};

pub(super) const LOST: &str = "the connection to the database was lost";
const UNKNOWN: &str = "the outcome of a commit is not known";
/// Commits in doubt at a time; the writer waits for the end of one of them.
const MAX_DOUBTS: usize = 4;

/// Slots of batches. A batch keeps its own while it is in doubt, so that no other overwrites its proof.
#[derive(Default)]
pub(super) struct Slots {
    taken: Mutex<[bool; MAX_DOUBTS]>,
    freed: Notify,
}

impl Slots {
    /// Waits for a free slot.
    pub(super) async fn free(&self) -> usize {
        loop {
            let free = lock(&self.taken).iter().position(|taken| !taken);
            match free {
                Some(slot) => return slot,
                None => self.freed.notified().await,
            }
        }
    }

    fn take(&self, slot: usize) {
        lock(&self.taken)[slot] = true;
    }

    fn give_back(&self, slot: usize) {
        lock(&self.taken)[slot] = false;
        self.freed.notify_one();
    }
}

/// Rows that a batch in doubt can have changed.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) slot: usize,
    keys: HashSet<String>,
    sessions: HashSet<String>,
    dispatches: HashSet<DispatchId>,
    runs: HashSet<RunId>,
    signal_sessions: HashSet<String>,
    apart: HashSet<String>,
}

impl Touched {
    fn of<'a>(slot: usize, needs: impl Iterator<Item = &'a Needs>) -> Self {
        let mut all = Self {
            slot,
            ..Self::default()
        };
        for needs in needs {
            all.keys.extend(needs.keys.iter().cloned());
            all.sessions.extend(needs.sessions.iter().cloned());
            all.dispatches.extend(&needs.dispatches);
            all.runs.extend(&needs.runs);
            all.signal_sessions
                .extend(needs.signal_sessions.iter().cloned());
            all.apart.extend(needs.apart.clone());
        }
        all
    }

    /// True if a change must wait until the outcome is known. One that is alone can depend on anything.
    pub(super) fn holds_up(&self, needs: &Needs) -> bool {
        needs.is_alone
            || needs.keys.iter().any(|one| self.keys.contains(one))
            || needs.sessions.iter().any(|one| self.sessions.contains(one))
            || needs
                .dispatches
                .iter()
                .any(|one| self.dispatches.contains(one))
            || needs.runs.iter().any(|one| self.runs.contains(one))
            || needs
                .signal_sessions
                .iter()
                .any(|one| self.signal_sessions.contains(one))
            || needs
                .apart
                .as_ref()
                .is_some_and(|one| self.apart.contains(one))
    }
}

/// A batch whose commit was sent and not answered.
pub(super) struct Doubt {
    pub(super) batch: Vec<QueuedChange>,
    pub(super) rows: Box<Rows>,
    pub(super) sent: Sent,
}

impl Doubt {
    /// Holds up the changes that depend on the outcome. Called before the writer takes another batch.
    pub(super) fn begin(&self, shared: &Shared) {
        let slot = self.sent.proof.slot;
        shared.slots.take(slot);
        let needs = self.batch.iter().map(QueuedChange::needs);
        shared.queue.hold(Touched::of(slot, needs));
    }

    /// Asks for the outcome and answers the changes.
    pub(super) async fn settle(self, shared: Arc<Shared>) {
        let Self {
            batch,
            mut rows,
            sent,
        } = self;
        let outcome = outcome::resolve(&shared, &sent, &rows).await;
        shared.meters.shared.lost_answers[outcome.place()].inc();
        let reason = match outcome {
            Outcome::Committed { base } => {
                let placed = Placed { base };
                shared.progress.committed();
                shared.published.apply(&mut rows, placed);
                for change in batch {
                    change.answer(Ok(placed));
                }
                return Self::end(&shared, sent.proof.slot);
            }
            Outcome::RolledBack => LOST,
            Outcome::Unknown => {
                if rows.owned_event().is_some() {
                    shared.doubted_epoch.store(rows.epoch, Ordering::Release);
                }
                UNKNOWN
            }
        };
        rows.roll_back();
        shared.meters.failures.inc();
        tracing::warn!(reason, "a batch was not written");
        batch.into_iter().for_each(|change| change.refuse(reason));
        Self::end(&shared, sent.proof.slot);
    }

    fn end(shared: &Shared, slot: usize) {
        shared.queue.release(slot);
        shared.slots.give_back(slot);
    }
}
