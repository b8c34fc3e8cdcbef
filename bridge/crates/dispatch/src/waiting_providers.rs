//! Adapters at which dispatches wait for room. A new one may start at once only where nobody waits, so
//! that it never goes before those that came earlier.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the scheduler saw in its last round.
#[derive(Debug, Default)]
pub(super) struct WaitingProviders(Mutex<Option<BTreeSet<String>>>);

impl WaitingProviders {
    /// Whether somebody may wait there. Before the first round, and after the last, everybody does.
    pub(super) fn is_at(&self, provider: &str) -> bool {
        self.lock()
            .as_ref()
            .is_none_or(|waiting| waiting.contains(provider))
    }

    pub(super) fn set(&self, waiting: BTreeSet<String>) {
        *self.lock() = Some(waiting);
    }

    /// One found no room there. Until the next round looks, nobody goes before it.
    pub(super) fn add(&self, provider: &str) {
        if let Some(waiting) = self.lock().as_mut() {
            waiting.insert(provider.to_owned());
        }
    }

    /// Nothing starts at once any more.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_may_wait_unless_a_round_saw_nobody() {
        let backlog = WaitingProviders::default();
        backlog.add("a");
        assert!(backlog.is_at("a") && backlog.is_at("b"), "no round yet");
        backlog.set(BTreeSet::from(["a".to_owned()]));
        assert!(backlog.is_at("a") && !backlog.is_at("b"));
        backlog.add("b");
        assert!(backlog.is_at("b"));
        backlog.set(BTreeSet::new());
        assert!(!backlog.is_at("a") && !backlog.is_at("b"));
        backlog.close();
        backlog.add("a");
        assert!(backlog.is_at("a") && backlog.is_at("b"));
    }
}
