//! Registry of an adapter's running executions, by the handle passed to `cancel`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Interval between two counts in [`Running::drain`].
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Running executions, for `cancel` and `shutdown`. Clones share the set.
///
/// Register an execution with [`Running::start`], keep the [`Run`] while it lasts, and await
/// [`Run::cancelled`] beside the work.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Set>>);

#[derive(Default)]
struct Set {
    /// Number of the last started execution.
    last: u64,
    runs: BTreeMap<u64, (String, CancellationToken)>,
}

/// A running execution; removed from the set when dropped.
pub struct Run {
    running: Running,
    number: u64,
    token: CancellationToken,
}

impl Running {
    /// Registers an execution under its task id.
    pub fn start(&self, task_handle: &str) -> Run {
        let token = CancellationToken::new();
        let mut set = self.set();
        set.last += 1;
        let number = set.last;
        set.runs
            .insert(number, (task_handle.to_owned(), token.clone()));
        drop(set);
        Run {
            running: self.clone(),
            number,
            token,
        }
    }

    /// Cancels the executions of this task; false if none was running or all were already cancelled.
    pub fn cancel(&self, task_handle: &str) -> bool {
        self.cancel_where(|handle| handle == task_handle)
    }

    /// Cancels all executions; false if none was running or all were already cancelled.
    pub fn cancel_all(&self) -> bool {
        self.cancel_where(|_| true)
    }

    /// Cancels all executions and waits until each has dropped its [`Run`], for at most `timeout`.
    ///
    /// For `shutdown`: the wait lets executions report what they have so far and end their work at the runtime.
    /// Returns true if none is left. With false the others continue, and the bridge drops them after `shutdown`
    /// has returned. An execution that starts during the wait is waited for but not cancelled.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.cancel_all();
        let ended = async {
            while self.count() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }

    /// Number of running executions.
    pub fn count(&self) -> usize {
        self.set().runs.len()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel_where(&self, matches: impl Fn(&str) -> bool) -> bool {
        // Tasks are woken after the lock is released.
        let tokens: Vec<CancellationToken> = self
            .set()
            .runs
            .values()
            .filter(|(handle, token)| matches(handle) && !token.is_cancelled())
            .map(|(_, token)| token.clone())
            .collect();
        for token in &tokens {
            token.cancel();
        }
        !tokens.is_empty()
    }
}

impl Run {
    /// Waits until this execution is cancelled.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// True if this execution was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.running.set().runs.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancel_finds_only_what_runs_under_its_handle() {
        let running = Running::default();
        let first = running.start("task-1");
        let second = running.start("task-2");
        assert!(!running.cancel("task-3"));
        assert!(running.cancel("task-1"));
        first.cancelled().await;
        assert!(!second.is_cancelled());
        assert!(!running.cancel("task-1"), "once is enough");
        assert_eq!(running.count(), 2, "it runs until it has ended");
        drop(first);
        assert_eq!(running.count(), 1);
        assert!(running.cancel_all());
        drop(second);
        assert_eq!(running.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_cancels_all_and_waits_until_they_have_ended() {
        let running = Running::default();
        assert!(running.drain(Duration::ZERO).await, "none was running");
        let run = running.start("task-1");
        let execution = async {
            run.cancelled().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(run);
        };
        let (drained, ()) = tokio::join!(running.drain(Duration::from_secs(5)), execution);
        assert!(drained);
        assert_eq!(running.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_gives_up_after_its_timeout() {
        let running = Running::default();
        let run = running.start("task-1");
        let started = tokio::time::Instant::now();
        assert!(!running.drain(Duration::from_secs(5)).await);
        assert_eq!(started.elapsed(), Duration::from_secs(5));
        assert!(run.is_cancelled());
        assert_eq!(running.count(), 1, "it has not ended");
    }
}
