//! Registry of the executions of this process, with the signals that stop them and the way to steer them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use forge_base::id::DispatchId;
use forge_store::record::Lease;

use super::steer::Target;

/// Stop signals of one execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// A client cancelled the dispatch; the result is `cancelled`.
    pub(crate) cancel: CancellationToken,
    /// The bridge is stopping or has lost its lease; the recovery policy decides about the dispatch.
    pub(crate) halt: CancellationToken,
}

/// The executions of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Running {
    entries: Arc<Mutex<Entries>>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Entries {
    /// The newest execution of each dispatch: the former one of a dispatch that was requeued can still be ending.
    by_id: HashMap<DispatchId, Entry>,
    /// Executions and open claims.
    count: usize,
    open_claims: usize,
    /// Dispatches that were cancelled while claims were open and that were not registered, perhaps not yet.
    cancelled: HashSet<DispatchId>,
    /// Stops the executions until now.
    halt: CancellationToken,
    /// The bridge is stopping: nothing is claimed or accepted to run any more.
    closed: bool,
}

struct Entry {
    attempt: u32,
    cancel: CancellationToken,
    /// `None` until the start is recorded.
    target: Option<Target>,
}

impl Running {
    pub(crate) fn new() -> Self {
        let count = watch::Sender::new(0);
        Self {
            entries: Arc::default(),
            count,
        }
    }

    /// Registers the first execution of a new dispatch before its start is recorded, so that a cancellation always
    /// finds its signal. `None` if the registry is closed.
    pub(crate) fn register(&self, id: DispatchId) -> Option<ExecutionGuard> {
        let mut entries = self.lock();
        (!entries.closed).then(|| self.insert(&mut entries, id, 1))
    }

    /// Opens a claim of queued dispatches, before it is asked of the store. `None` if the registry is closed.
    pub(crate) fn open_claim(&self) -> Option<OpenClaim> {
        let mut entries = self.lock();
        if entries.closed {
            return None;
        }
        entries.open_claims += 1;
        self.add(&mut entries, 1);
        Some(OpenClaim(self.clone()))
    }

    fn insert(&self, entries: &mut Entries, id: DispatchId, attempt: u32) -> ExecutionGuard {
        let cancel = CancellationToken::new();
        if entries.cancelled.remove(&id) {
            cancel.cancel();
        }
        let entry = Entry {
            attempt,
            cancel: cancel.clone(),
            target: None,
        };
        entries.by_id.insert(id, entry);
        self.add(entries, 1);
        let stop = Stop {
            cancel,
            halt: entries.halt.clone(),
        };
        ExecutionGuard {
            running: self.clone(),
            id,
            attempt,
            stop,
        }
    }

    fn add(&self, entries: &mut Entries, by: isize) {
        entries.count = entries.count.saturating_add_signed(by);
        self.count.send_replace(entries.count);
    }

    /// Signals an attempt that its dispatch is cancelled. If an open claim has it, the signal is set when it is
    /// registered.
    pub(crate) fn cancel(&self, id: DispatchId, attempt: u32) {
        let mut entries = self.lock();
        match entries.by_id.get(&id) {
            Some(entry) if entry.attempt == attempt => entry.cancel.cancel(),
            _ if entries.open_claims > 0 => {
                entries.cancelled.insert(id);
            }
            // It has ended.
            Some(_) | None => {}
        }
    }

    /// The way to the execution of a dispatch; `None` if none runs.
    pub(crate) fn target(&self, id: DispatchId) -> Option<Target> {
        self.lock().by_id.get(&id)?.target.clone()
    }

    /// Refuses further registrations and claims, so that an idle registry stays idle.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Stops all executions until now: the bridge is stopping, or its lease is about to end.
    pub(crate) fn halt(&self) {
        let mut entries = self.lock();
        entries.halt.cancel();
        // While the bridge stops, what a claim still brings ends as well.
        if !entries.closed {
            entries.halt = CancellationToken::new();
        }
    }

    /// Number of executions and open claims.
    pub(crate) fn len(&self) -> usize {
        self.lock().count
    }

    /// Waits until nothing runs and no claim is open.
    pub(crate) async fn idle(&self) {
        let mut count = self.count.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claim of queued dispatches until those that it got are registered. Their ids are not known before: a cancellation
/// that comes between the mark in the store and the registration is kept for it.
pub(crate) struct OpenClaim(Running);

impl OpenClaim {
    /// Registers a dispatch that was claimed, also while the bridge is stopping: its start is recorded.
    pub(crate) fn register(&self, lease: &Lease) -> ExecutionGuard {
        let mut entries = self.0.lock();
        self.0.insert(&mut entries, lease.id, lease.attempt)
    }
}

impl Drop for OpenClaim {
    fn drop(&mut self) {
        let mut entries = self.0.lock();
        entries.open_claims -= 1;
        if entries.open_claims == 0 {
            entries.cancelled.clear();
        }
        self.0.add(&mut entries, -1);
    }
}

/// Registration of one execution; removed on drop.
pub(crate) struct ExecutionGuard {
    running: Running,
    id: DispatchId,
    attempt: u32,
    pub(crate) stop: Stop,
}

impl ExecutionGuard {
    /// Registers the way to the execution that starts now.
    pub(crate) fn steer_by(&self, target: Target) {
        let mut entries = self.running.lock();
        let entry = entries.by_id.get_mut(&self.id);
        if let Some(entry) = entry.filter(|entry| entry.attempt == self.attempt) {
            entry.target = Some(target);
        }
    }
}

impl Drop for ExecutionGuard {
    fn drop(&mut self) {
        let mut entries = self.running.lock();
        let newest = entries.by_id.get(&self.id);
        if newest.is_some_and(|entry| entry.attempt == self.attempt) {
            entries.by_id.remove(&self.id);
        }
        self.running.add(&mut entries, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_found_until_it_is_given_back() {
        let running = Running::new();
        let id = DispatchId::new();
        let place = running.register(id).unwrap();
        running.cancel(id, 1);
        assert!(place.stop.cancel.is_cancelled());
        drop(place);
        running.idle().await;
        running.close();
        assert!(running.register(id).is_none() && running.open_claim().is_none());
    }

    fn lease(id: DispatchId, attempt: u32) -> Lease {
        Lease {
            id,
            attempt,
            epoch: 1,
        }
    }

    #[tokio::test]
    async fn a_cancellation_during_a_claim_is_kept_for_it() {
        let running = Running::new();
        let (wanted, cancelled) = (DispatchId::new(), DispatchId::new());
        let (one, other) = (running.open_claim().unwrap(), running.open_claim().unwrap());
        running.cancel(cancelled, 1);
        drop(other);
        running.close();
        let places = [wanted, cancelled].map(|id| one.register(&lease(id, 1)));
        assert_eq!(running.len(), 3);
        let stopped = places
            .each_ref()
            .map(|place| place.stop.cancel.is_cancelled());
        assert_eq!(stopped, [false, true]);
        drop((one, places));
        running.idle().await;
        assert!(running.lock().cancelled.is_empty());
        running.cancel(cancelled, 1);
        assert!(running.lock().cancelled.is_empty(), "it has ended");
    }

    #[test]
    fn an_attempt_that_still_ends_does_not_hide_the_next_one() {
        let running = Running::new();
        let id = DispatchId::new();
        let first = running.register(id).unwrap();
        let claim = running.open_claim().unwrap();
        // Requeued and claimed again, and not registered yet.
        running.cancel(id, 2);
        let second = claim.register(&lease(id, 2));
        assert!(second.stop.cancel.is_cancelled() && !first.stop.cancel.is_cancelled());
        drop(first);
        assert!(running.lock().by_id.contains_key(&id));
        drop(second);
        assert!(running.lock().by_id.is_empty());
    }
}
