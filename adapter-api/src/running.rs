//! Registry of an adapter's running executions: by the handle passed to `cancel`, and by the id passed to `steer`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::SteerRequest;

/// Interval between two counts in [`Running::drain`].
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Running executions, for `cancel`, `steer` and `shutdown`. Clones share the set.
///
/// Register an execution with [`Running::start`], keep the [`Run`] while it lasts, and await
/// [`Run::cancelled`] beside the work.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Set>>);

#[derive(Default)]
struct Set {
    /// Number of the last started execution.
    last: u64,
    runs: BTreeMap<u64, Entry>,
}

struct Entry {
    handle: String,
    token: CancellationToken,
    /// Execution id and inbox of a run that takes messages.
    inbox: Option<(String, mpsc::Sender<Message>)>,
}

struct Message {
    text: String,
    taken: oneshot::Sender<()>,
}

/// The messages that an execution is steered with, in their order.
pub struct Messages(mpsc::Receiver<Message>);

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
        let entry = Entry {
            handle: task_handle.to_owned(),
            token: token.clone(),
            inbox: None,
        };
        set.runs.insert(number, entry);
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

    /// Passes a message to the execution that takes messages under this id, and waits until it has taken it. False if
    /// there is no such execution, or it ended before.
    pub async fn steer(&self, request: SteerRequest) -> bool {
        let inbox = {
            let set = self.set();
            let mut inboxes = set.runs.values().filter_map(|entry| entry.inbox.as_ref());
            inboxes
                .find(|(id, _)| *id == request.execution_id)
                .map(|(_, inbox)| inbox.clone())
        };
        let Some(inbox) = inbox else {
            return false;
        };
        let (taken, is_taken) = oneshot::channel();
        let text = request.message;
        inbox.send(Message { text, taken }).await.is_ok() && is_taken.await.is_ok()
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
            .filter(|entry| matches(&entry.handle) && !entry.token.is_cancelled())
            .map(|entry| entry.token.clone())
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

    /// Takes messages under this execution id, for [`Running::steer`], until the returned inbox or this run is dropped.
    pub fn messages(&self, execution_id: &str) -> Messages {
        // One: a message is taken when the execution is ready for it, so further senders wait.
        let (inbox, messages) = mpsc::channel(1);
        if let Some(entry) = self.running.set().runs.get_mut(&self.number) {
            entry.inbox = Some((execution_id.to_owned(), inbox));
        }
        Messages(messages)
    }

    /// True if this execution was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }
}

impl Messages {
    /// Takes the next message; waits for ever if none comes. Safe to drop: a message is either returned or left. One
    /// whose sender no longer waits is skipped.
    pub async fn next(&mut self) -> String {
        while let Some(Message { text, taken }) = self.0.recv().await {
            if taken.send(()).is_ok() {
                return text;
            }
        }
        std::future::pending().await
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

    fn message(execution_id: &str, message: &str) -> SteerRequest {
        SteerRequest {
            execution_id: execution_id.to_owned(),
            task_id: "task-1".to_owned(),
            message: message.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_message_reaches_the_execution_with_its_id_only() {
        let running = Running::default();
        let (first, second) = (running.start("task-1"), running.start("task-1"));
        assert!(!running.steer(message("dsp_1/1", "early")).await);
        let mut inbox = first.messages("dsp_1/1");
        let mut other = second.messages("dsp_1/2");
        assert!(!running.steer(message("dsp_2/1", "unknown")).await);
        let (steered, taken) =
            tokio::join!(running.steer(message("dsp_1/1", "wrap up")), inbox.next());
        assert!(steered);
        assert_eq!(taken, "wrap up");
        assert!(other.0.try_recv().is_err(), "the other one has no message");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_not_taken_is_reported_and_withdrawn() {
        let running = Running::default();
        let run = running.start("task-1");
        let mut inbox = run.messages("dsp_1/1");
        let second = Duration::from_secs(1);
        let given_up = tokio::time::timeout(second, running.steer(message("dsp_1/1", "old")));
        given_up.await.unwrap_err();
        let (steered, taken) = tokio::join!(running.steer(message("dsp_1/1", "new")), inbox.next());
        assert!(steered);
        assert_eq!(taken, "new");
        let ended = async {
            tokio::time::sleep(second).await;
            drop(inbox);
        };
        let (steered, ()) = tokio::join!(running.steer(message("dsp_1/1", "late")), ended);
        assert!(!steered);
        drop(run);
        assert!(!running.steer(message("dsp_1/1", "later")).await);
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
