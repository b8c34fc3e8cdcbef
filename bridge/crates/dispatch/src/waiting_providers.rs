//! Adapters whose queue has waiting dispatches. A new dispatch starts at once only on an adapter without any, so
//! that it never overtakes earlier ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adapters with waiting dispatches, as of the scheduler's last round. `None` before the first round and after the
/// last one.
#[derive(Debug, Default)]
pub(super) struct WaitingProviders(Mutex<Option<BTreeSet<String>>>);

impl WaitingProviders {
    /// Returns true if dispatches might be waiting on this adapter; true for all adapters before the first round and
    /// after the last one.
    pub(super) fn is_at(&self, provider: &str) -> bool {
        self.lock()
            .as_ref()
            .is_none_or(|waiting| waiting.contains(provider))
    }

    pub(super) fn set(&self, waiting: BTreeSet<String>) {
        *self.lock() = Some(waiting);
    }

    /// Marks an adapter because a dispatch found no free slot. No new dispatch overtakes it until the next round.
    pub(super) fn add(&self, provider: &str) {
        if let Some(waiting) = self.lock().as_mut() {
            waiting.insert(provider.to_owned());
        }
    }

    /// Ends direct starts: every adapter counts as having waiting dispatches.
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
    fn a_dispatch_may_wait_unless_a_round_saw_none() {
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
