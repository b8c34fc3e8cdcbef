//! Event listeners within the adapter's process, isolated from the execution and from each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::AdapterEvent;
use crate::guard::caught;

type Listener = Arc<dyn Fn(&AdapterEvent) + Send + Sync>;

/// A set of listeners. A panic in one is logged and affects neither the other listeners nor the emitting
/// task. Clones share the set.
#[derive(Clone, Default)]
pub struct EventListeners(Arc<Shared>);

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    listeners: Mutex<Vec<(ListenerId, Listener)>>,
}

/// Identifies a listener for [`EventListeners::off_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerId(u64);

impl EventListeners {
    /// Calls `listener` with every later event, on the emitting task: it must not block.
    pub fn on_event(&self, listener: impl Fn(&AdapterEvent) + Send + Sync + 'static) -> ListenerId {
        let id = ListenerId(self.0.next.fetch_add(1, Ordering::Relaxed));
        self.0
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((id, Arc::new(listener)));
        id
    }

    /// Removes a listener; false if it was already removed.
    pub fn off_event(&self, id: ListenerId) -> bool {
        let mut listeners = self
            .0
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = listeners.len();
        listeners.retain(|(other, _)| *other != id);
        listeners.len() < before
    }

    /// Calls each listener in order of registration.
    pub fn emit(&self, event: &AdapterEvent) {
        // Iterates over a copy, because a listener can add or remove listeners.
        let listeners = self
            .0
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for (_, listener) in listeners {
            if let Err(panicked) = caught(|| listener(event)) {
                tracing::warn!(event.kind = %event.kind, "an event listener panicked: {panicked}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_listener_keeps_nothing_from_the_others() {
        let listeners = EventListeners::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        listeners.on_event(|_| panic!("boom"));
        let recorder = Arc::clone(&seen);
        listeners.on_event(move |event| recorder.lock().unwrap().push(event.kind.clone()));
        listeners.emit(&AdapterEvent::new("execution.completed"));
        assert_eq!(*seen.lock().unwrap(), ["execution.completed"]);
    }

    #[test]
    fn a_removed_listener_hears_nothing() {
        let listeners = EventListeners::default();
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let id = listeners.on_event(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        listeners.emit(&AdapterEvent::new("a"));
        assert!(listeners.off_event(id));
        assert!(!listeners.off_event(id));
        listeners.emit(&AdapterEvent::new("b"));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
