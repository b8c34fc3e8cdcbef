//! One call of an adapter: records its events; stops on completion, timeout, budget or cancellation. Limits are
//! enforced by the bridge.

use std::pin::pin;
use std::time::Duration;

use forge_adapter_api::{AdapterError, ExecutionRequest};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use forge_base::failpoint;
use forge_base::time::Clock;
use forge_plugin_host::{Call, Item, Permit};
use forge_signals::ledger::Admission;
use forge_store as store;
use forge_store::record::Lease;
use forge_store::retry::RetryDelays;
use forge_store::roles::Executions;

use super::accumulator::Change;
use super::assemble::execution_id;
use super::event_batcher::EventBatcher;
use super::gate::Charges;
use super::request::DispatchRequest;
use super::running::Stop;

/// Time that events wait for others to share their write. An answer that follows within it needs no second commit.
const BATCH_DELAY: Duration = Duration::from_millis(1);

/// Context of one attempt.
pub(super) struct Attempt<'a> {
    pub(super) executions: &'a dyn Executions,
    pub(super) clock: &'a Clock,
    /// Permit for the generation of the adapter that executes the attempt to its end.
    pub(super) adapter: &'a Permit,
    pub(super) lease: &'a Lease,
    pub(super) dispatch: &'a DispatchRequest,
    pub(super) deadline: Instant,
    pub(super) idle_timeout: Option<Duration>,
    /// Time that the adapter has to end after it was asked to stop.
    pub(super) grace: Duration,
    pub(super) stop: &'a Stop,
    pub(super) charges: &'a Charges<'a>,
    pub(super) admission: &'a Admission,
}

/// Reason why the bridge stopped an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    Cancelled,
    TimedOut,
    Stalled,
    OverBudget,
    /// A rule over signals stops it.
    Blocked,
    /// The bridge is stopping.
    Halted,
}

/// End of an attempt.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The adapter returned an answer or an error.
    Answered(Result<Vec<u8>, AdapterError>),
    /// The bridge stopped the attempt; `answer` is the one that still came within the grace.
    Cut {
        why: StopReason,
        answer: Option<Vec<u8>>,
    },
    /// Another owner holds the dispatch: nothing more may be written.
    Lost,
}

impl Attempt<'_> {
    /// Waits until the bridge has to stop the attempt. The idle timeout counts from this call, or from `busy_until` if
    /// the adapter announced to wait until then.
    pub(super) async fn stop_requested(&self, busy_until: Option<Instant>) -> StopReason {
        let from = busy_until.map_or_else(Instant::now, |busy| busy.max(Instant::now()));
        let idle = self.idle_timeout.map(|idle| from + idle);
        let (until, late) = match idle {
            Some(idle) if idle < self.deadline => (idle, StopReason::Stalled),
            Some(_) | None => (self.deadline, StopReason::TimedOut),
        };
        tokio::select! {
            biased;
            () = self.stop.cancel.cancelled() => StopReason::Cancelled,
            () = self.admission.stopped().cancelled() => StopReason::Blocked,
            () = self.stop.halt.cancelled() => StopReason::Halted,
            () = sleep_until(until) => late,
        }
    }

    /// Writes the batch. While the store is unavailable, retries until `until`; the adapter's full queue slows it
    /// down meanwhile. After `Stopped` or `Late` the batch stays in the batcher.
    pub(super) async fn write(&self, batcher: &mut EventBatcher, until: Instant) -> WriteOutcome {
        let mut delays = RetryDelays::default();
        while !batcher.is_empty() {
            let mut progress = batcher.take();
            if progress.spent.is_some() {
                progress.charge = self.charges.of(&batcher.accumulator.meter.spent());
            }
            let again = progress.clone();
            failpoint::point("execute.append.before");
            let appended = self.executions.append(self.lease, progress).await;
            failpoint::point("execute.append.after");
            match appended {
                Ok(()) => return WriteOutcome::Yes,
                Err(store::Error::Unavailable(_)) => batcher.put_back(again),
                Err(
                    store::Error::Stale(_)
                    | store::Error::NotFound
                    | store::Error::InvalidState(_)
                    | store::Error::Unreadable(_),
                ) => {
                    return WriteOutcome::Lost;
                }
            }
            // Boxed: retries are rare and must not enlarge this future.
            if let Some(unwritten) = Box::pin(self.rest(delays.next_delay(), until)).await {
                return unwritten;
            }
        }
        WriteOutcome::Yes
    }

    /// Waits before the next retry; returns the outcome if there is to be none.
    async fn rest(&self, pause: Duration, until: Instant) -> Option<WriteOutcome> {
        tokio::select! {
            () = sleep_until(until) => Some(WriteOutcome::Late),
            () = self.stop.cancel.cancelled() => Some(WriteOutcome::Stopped),
            () = self.stop.halt.cancelled() => Some(WriteOutcome::Stopped),
            () = sleep(pause) => None,
        }
    }
}

/// Encodes the request as the JSON that the adapter receives.
pub(super) fn encoded(request: &ExecutionRequest) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request has only text keys")
}

/// Calls the adapter and follows the call to its end. All events are then on disk except a last batch, which
/// stays in the batcher.
pub(super) async fn execute(
    attempt: &Attempt<'_>,
    request: Vec<u8>,
    batcher: &mut EventBatcher,
) -> AttemptEnd {
    failpoint::point("execute.call.before");
    let call = attempt.adapter.execute(request);
    failpoint::point("execute.call.after");
    match call {
        Ok(call) => {
            let secrets = call.secrets();
            let drive = Execution {
                attempt,
                batcher: &mut *batcher,
                call,
            };
            let end = drive.run().await;
            // A secret can be split over two of the texts.
            secrets.hide(&mut batcher.accumulator.text);
            end
        }
        Err(error) => AttemptEnd::Answered(Err(error)),
    }
}

struct Execution<'a> {
    attempt: &'a Attempt<'a>,
    batcher: &'a mut EventBatcher,
    call: Call,
}

impl Execution<'_> {
    async fn run(mut self) -> AttemptEnd {
        let deadline = self.attempt.deadline;
        let why = 'until_cut: loop {
            let item = tokio::select! {
                biased;
                why = self.attempt.stop_requested(self.batcher.retries.until) => break why,
                item = self.call.next() => item,
            };
            failpoint::point("execute.item");
            let lingered = Instant::now() + BATCH_DELAY;
            let mut next = Some(item);
            while let Some(item) = next {
                match self.take(item) {
                    Step::Done(answer) => {
                        failpoint::point("execute.answered");
                        return AttemptEnd::Answered(answer);
                    }
                    Step::OverBudget => break 'until_cut StopReason::OverBudget,
                    Step::More => {}
                }
                next = if self.batcher.is_full() {
                    None
                } else {
                    timeout_at(lingered, self.call.next()).await.ok()
                };
            }
            match self.attempt.write(self.batcher, deadline).await {
                // The next `stop_requested` returns the reason.
                WriteOutcome::Yes | WriteOutcome::Stopped => {}
                WriteOutcome::Lost => return AttemptEnd::Lost,
                WriteOutcome::Late => break StopReason::TimedOut,
            }
        };
        // Boxed: most attempts end by themselves and need no space for it.
        Box::pin(self.wind_down(why)).await
    }

    /// Adds one item of the call to the batch.
    fn take(&mut self, item: Item) -> Step {
        let now = self.attempt.clock.now();
        match item {
            Item::Event(event) => {
                let noticed = self.batcher.event(event, now);
                let over = || {
                    self.batcher
                        .accumulator
                        .meter
                        .exceeded(self.attempt.dispatch.budget.as_ref())
                        .is_some()
                };
                if noticed == Change::Usage && over() {
                    Step::OverBudget
                } else {
                    Step::More
                }
            }
            Item::Dropped(count) => {
                self.batcher.dropped(count, now);
                Step::More
            }
            Item::Done(answer) => Step::Done(answer),
        }
    }

    /// Asks the adapter to stop, collects its items during the grace, then drops the call. After a cancellation
    /// the grace always applies; for other reasons only if the adapter confirmed that it stops.
    async fn wind_down(mut self, why: StopReason) -> AttemptEnd {
        let adapter = self.attempt.adapter;
        let execution = execution_id(self.attempt.lease.id, self.attempt.lease.attempt);
        let task_id = self.attempt.dispatch.task_id.clone();
        let cancel = async move {
            failpoint::point("cancel.adapter.before");
            let agreed = adapter.cancel(&execution, &task_id).await;
            failpoint::point("cancel.adapter.after");
            agreed
        };
        let mut cancel = pin!(cancel.fuse());
        let mut asked = false;
        let end = Instant::now() + self.attempt.grace;
        let answer = loop {
            let item = tokio::select! {
                () = sleep_until(end) => break None,
                agreed = &mut cancel, if !asked => {
                    asked = true;
                    if !matches!(agreed, Ok(true)) && why != StopReason::Cancelled {
                        break None;
                    }
                    continue;
                }
                item = self.call.next() => item,
            };
            match self.take(item) {
                Step::Done(answer) => break answer.ok(),
                Step::OverBudget | Step::More => {}
            }
            if self.batcher.is_full() {
                match self.attempt.write(self.batcher, end).await {
                    WriteOutcome::Yes => {}
                    WriteOutcome::Lost => return AttemptEnd::Lost,
                    // Bounds memory: further events of a stopped call are dropped.
                    WriteOutcome::Stopped | WriteOutcome::Late => break None,
                }
            }
        };
        AttemptEnd::Cut { why, answer }
    }
}

enum Step {
    More,
    OverBudget,
    Done(Result<Vec<u8>, AdapterError>),
}

/// Outcome of writing a batch.
pub(super) enum WriteOutcome {
    Yes,
    /// Not written: the attempt was asked to stop.
    Stopped,
    /// Not written: another owner holds the dispatch.
    Lost,
    /// Not written in time.
    Late,
}
