//! Watchdog of one thread: records since when it is inside the adapter. A thread that does not return in time counts as
//! blocked until it does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Watchdog {
    state: Mutex<State>,
    entered: Notify,
    left: Notify,
}

#[derive(Default)]
struct State {
    inside: Option<Inside>,
    /// Number of entries so far, to tell one from the next.
    entries: u64,
    blocked: Option<&'static str>,
}

#[derive(Clone, Copy)]
struct Inside {
    what: &'static str,
    since: Instant,
    entry: u64,
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the thread enters the adapter's function `what`.
    pub(crate) fn enter(&self, what: &'static str) {
        let mut state = self.lock();
        state.entries += 1;
        state.inside = Some(Inside {
            what,
            since: Instant::now(),
            entry: state.entries,
        });
        drop(state);
        self.entered.notify_one();
    }

    /// Records that the thread has returned.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.inside = None;
        let was_blocked = state.blocked.take().is_some();
        drop(state);
        if was_blocked {
            self.left.notify_one();
        }
    }

    /// The adapter's function that the thread is blocked in.
    pub(crate) fn blocked(&self) -> Option<&'static str> {
        self.lock().blocked
    }

    /// Resolves with the name of the function that kept the thread longer than `call_timeout`.
    pub(crate) async fn overdue(&self, call_timeout: Duration) -> &'static str {
        loop {
            let Some(inside) = self.lock().inside else {
                self.entered.notified().await;
                continue;
            };
            let left = call_timeout.saturating_sub(inside.since.elapsed());
            if !left.is_zero() {
                tokio::time::sleep(left).await;
                continue;
            }
            // After a stop of the whole process the time is up before the thread could continue: wait a little more.
            tokio::time::sleep(call_timeout / 10).await;
            let mut state = self.lock();
            if state.inside.is_some_and(|now| now.entry == inside.entry) {
                state.blocked = Some(inside.what);
                return inside.what;
            }
        }
    }

    /// Resolves when a blocked thread has returned.
    pub(crate) async fn back(&self) {
        self.left.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_stays_is_blocked_until_it_returns() {
        let watchdog = Watchdog::default();
        watchdog.enter("cancel");
        watchdog.leave();
        watchdog.enter("start");
        assert_eq!(watchdog.overdue(Duration::ZERO).await, "start");
        assert_eq!(watchdog.blocked(), Some("start"));
        watchdog.leave();
        watchdog.back().await;
        assert_eq!(watchdog.blocked(), None);
    }
}
