//! What this process executes just now, and how each of it is told to stop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use forge_base::id::DispatchId;

/// How one execution is told to stop, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// Somebody asked for it; the result says `cancelled`.
    pub(crate) cancel: CancellationToken,
    /// The process ends; the recovery policy decides.
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
    by_id: HashMap<DispatchId, CancellationToken>,
    /// The process ends: nothing starts any more.
    closed: bool,
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

    /// Takes a place before the durable mark is written, so that a cancel request always finds
    /// whom to tell. `None` when the dispatch has one already, or nothing may start any more.
    pub(crate) fn register(&self, id: DispatchId) -> Option<ExecutionGuard> {
        let cancel = CancellationToken::new();
        let mut entries = self.lock();
        if entries.closed || entries.by_id.contains_key(&id) {
            return None;
        }
        entries.by_id.insert(id, cancel.clone());
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

    /// Tells an execution that it is cancelled.
    pub(crate) fn cancel(&self, id: DispatchId) {
        if let Some(token) = self.lock().by_id.get(&id) {
            token.cancel();
        }
    }

    /// Gives no place away any more, so that what is idle stays so.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Tells all of them that the process ends.
    pub(crate) fn halt(&self) {
        self.halt.cancel();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Waits until nothing runs.
    pub(crate) async fn idle(&self) {
        let mut count = self.count.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One execution's place; given back when dropped.
pub(crate) struct ExecutionGuard {
    running: Running,
    id: DispatchId,
    pub(crate) stop: Stop,
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
