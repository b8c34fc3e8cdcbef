//! Registry of the executions of this process, with the signals that stop them and the way to steer them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use forge_base::id::DispatchId;

use super::steer::Target;

/// Stop signals of one execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// A client cancelled the dispatch; the result is `cancelled`.
    pub(crate) cancel: CancellationToken,
    /// The bridge is stopping; the recovery policy decides about the dispatch.
    pub(crate) halt: CancellationToken,
}

/// The executions of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Running {
    entries: Arc<Mutex<Entries>>,
    count: watch::Sender<usize>,
    halt: CancellationToken,
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<DispatchId, Entry>,
    /// The bridge is stopping: nothing starts any more.
    closed: bool,
}

struct Entry {
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
            halt: CancellationToken::new(),
        }
    }

    /// Registers an execution before its start is recorded, so that a cancellation always finds its signal. `None`
    /// if the dispatch is registered already or the registry is closed.
    pub(crate) fn register(&self, id: DispatchId) -> Option<ExecutionGuard> {
        let cancel = CancellationToken::new();
        let mut entries = self.lock();
        if entries.closed || entries.by_id.contains_key(&id) {
            return None;
        }
        let entry = Entry {
            cancel: cancel.clone(),
            target: None,
        };
        entries.by_id.insert(id, entry);
        self.count.send_replace(entries.by_id.len());
        let stop = Stop {
            cancel,
            halt: self.halt.clone(),
        };
        Some(ExecutionGuard {
            running: self.clone(),
            id,
            stop,
        })
    }

    /// Signals an execution that its dispatch is cancelled.
    pub(crate) fn cancel(&self, id: DispatchId) {
        if let Some(entry) = self.lock().by_id.get(&id) {
            entry.cancel.cancel();
        }
    }

    /// The way to the execution of a dispatch; `None` if none runs.
    pub(crate) fn target(&self, id: DispatchId) -> Option<Target> {
        self.lock().by_id.get(&id)?.target.clone()
    }

    /// Refuses further registrations, so that an idle registry stays idle.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Signals all executions that the bridge is stopping.
    pub(crate) fn halt(&self) {
        self.halt.cancel();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Waits until nothing runs.
    pub(crate) async fn idle(&self) {
        let mut count = self.count.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of one execution; removed on drop.
pub(crate) struct ExecutionGuard {
    running: Running,
    id: DispatchId,
    pub(crate) stop: Stop,
}

impl ExecutionGuard {
    /// Registers the way to the execution that starts now.
    pub(crate) fn steer_by(&self, target: Target) {
        if let Some(entry) = self.running.lock().by_id.get_mut(&self.id) {
            entry.target = Some(target);
        }
    }
}

impl Drop for ExecutionGuard {
    fn drop(&mut self) {
        let mut entries = self.running.lock();
        entries.by_id.remove(&self.id);
        self.running.count.send_replace(entries.by_id.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_taken_once_and_given_back() {
        let running = Running::new();
        let id = DispatchId::new();
        let place = running.register(id).unwrap();
        assert!(running.register(id).is_none());
        running.cancel(id);
        assert!(place.stop.cancel.is_cancelled());
        drop(place);
        running.idle().await;
        assert!(running.register(id).is_some());
        running.close();
        assert!(running.register(id).is_none());
    }
}
