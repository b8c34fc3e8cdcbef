//! Adapters at which dispatches wait for room. A new one may start at once only where nobody waits, so
//! that it never goes before those that came earlier.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the scheduler saw in its last round.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Option<BTreeSet<String>>>);

impl Backlog {
    /// Whether somebody may wait there. Before the first round, and after the last, everybody does.
    pub(super) fn is_at(&self, provider: &str) -> bool {
        self.lock()
            .as_ref()
            .is_none_or(|waiting| waiting.contains(provider))
    }

    pub(super) fn set(&self, waiting: BTreeSet<String>) {
        *self.lock() = Some(waiting);
    }

    /// Nothing starts at once any more.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
