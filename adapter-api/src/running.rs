//! The executions an adapter has running, by the handle that `cancel` is given.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Which executions run, so that `cancel` and `shutdown` find them. Clones share the set.
///
/// Begin an execution with [`Running::start`], keep the [`Run`] while it lasts, and watch
/// [`Run::cancelled`] beside the work.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Set>>);

#[derive(Default)]
struct Set {
    /// The number of the last one that was started.
    last: u64,
    runs: BTreeMap<u64, (String, CancellationToken)>,
}

/// One running execution; it leaves the set when dropped.
pub struct Run {
    running: Running,
    number: u64,
    token: CancellationToken,
}

impl Running {
    /// Enters an execution under its task id.
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

    /// Tells the executions of this task to end; false when there is none.
    pub fn cancel(&self, task_handle: &str) -> bool {
        self.cancel_where(|handle| handle == task_handle)
    }

    /// Tells all executions to end; false when there is none.
    pub fn cancel_all(&self) -> bool {
        self.cancel_where(|_| true)
    }

    /// How many run.
    pub fn count(&self) -> usize {
        self.set().runs.len()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel_where(&self, matches: impl Fn(&str) -> bool) -> bool {
        // Waking the tasks is their runtime's business, so it happens after the lock is gone.
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
    /// Waits until somebody cancels this execution.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether somebody has cancelled this execution.
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
}
