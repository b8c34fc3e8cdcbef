//! Adapters whose queue has waiting dispatches. A new dispatch starts at once only on an adapter without any, so
//! that it never overtakes earlier ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adapters with waiting dispatches.
#[derive(Debug, Default)]
pub(super) struct WaitingProviders(Mutex<Marks>);

#[derive(Debug, Default)]
struct Marks {
    /// As of the scheduler's last round. `None` before the first round and after the last one.
    round: Option<BTreeSet<String>>,
    /// Marked since the current round began: it might not have seen their dispatches.
    since: BTreeSet<String>,
}

impl WaitingProviders {
    /// Returns true if dispatches might be waiting on this adapter; true for all adapters before the first round and
    /// after the last one.
    pub(super) fn is_at(&self, provider: &str) -> bool {
        let marks = self.lock();
        let seen = marks.round.as_ref();
        marks.since.contains(provider) || seen.is_none_or(|seen| seen.contains(provider))
    }

    /// Begins a round, whose result replaces the marks until now.
    pub(super) fn begin_round(&self) {
        let mut marks = self.lock();
        let since = std::mem::take(&mut marks.since);
        if let Some(round) = &mut marks.round {
            round.extend(since);
        }
    }

    /// Replaces the marks by the result of the round, except those made since it began.
    pub(super) fn set(&self, waiting: BTreeSet<String>) {
        self.lock().round = Some(waiting);
    }

    /// Marks an adapter because a dispatch found no free slot. No new dispatch overtakes it until a round that begins
    /// from now on has looked.
    pub(super) fn add(&self, provider: &str) {
        self.lock().since.insert(provider.to_owned());
    }

    /// Ends direct starts: every adapter counts as having waiting dispatches.
    pub(super) fn close(&self) {
        self.lock().round = None;
    }

    fn lock(&self) -> MutexGuard<'_, Marks> {
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
        backlog.begin_round();
        backlog.set(BTreeSet::from(["a".to_owned()]));
        assert!(backlog.is_at("a") && !backlog.is_at("b"));
        backlog.add("b");
        assert!(backlog.is_at("b"));
        backlog.begin_round();
        assert!(backlog.is_at("a") && backlog.is_at("b"), "not seen yet");
        backlog.add("a");
        backlog.set(BTreeSet::new());
        assert!(backlog.is_at("a") && !backlog.is_at("b"), "a came since");
        backlog.begin_round();
        backlog.set(BTreeSet::new());
        assert!(!backlog.is_at("a") && !backlog.is_at("b"));
        backlog.close();
        backlog.add("a");
        assert!(backlog.is_at("a") && backlog.is_at("b"));
    }
}
