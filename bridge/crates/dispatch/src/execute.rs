//! One attempt: calls the adapter, records what it says, and ends it when it ends, when its time is
//! up, or when somebody says so. The bridge's bounds hold whatever the adapter does.

use std::pin::pin;
use std::time::Duration;

use forge_adapter_api::request::Budget;
use forge_adapter_api::{AdapterError, ExecutionRequest};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use forge_base::failpoint;
use forge_base::time::Clock;
use forge_plugin_host::{Call, Item, Permit};
use forge_store::record::Lease;
use forge_store::{self as store, Store};

use super::accumulator::Change;
use super::event_batcher::EventBatcher;
use super::running::Stop;

/// How long events wait for more to be written with them. An answer that follows at once then needs no commit
/// besides its own.
const BATCH_DELAY: Duration = Duration::from_millis(1);
/// The first pause before a batch is written again while the store is away.
const STORE_PAUSE: Duration = Duration::from_millis(50);
/// The longest one.
const STORE_PAUSE_MAX: Duration = Duration::from_secs(2);

/// What one attempt is given.
pub(super) struct Attempt<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) clock: &'a Clock,
    /// Where it runs, to its end.
    pub(super) adapter: &'a Permit,
    pub(super) lease: &'a Lease,
    pub(super) task_id: &'a str,
    pub(super) deadline: Instant,
    pub(super) idle_timeout: Option<Duration>,
    /// How long the adapter may take to end what it was told to end.
    pub(super) grace: Duration,
    pub(super) budget: Option<&'a Budget>,
    pub(super) stop: &'a Stop,
}

/// Why the bridge ended an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    Cancelled,
    TimedOut,
    Stalled,
    OverBudget,
    /// The process ends.
    Halted,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The adapter's own answer.
    Answered(Result<Vec<u8>, AdapterError>),
    /// The bridge ended it; the answer is what the adapter still said within its grace.
    Cut {
        why: StopReason,
        answer: Option<Vec<u8>>,
    },
    /// Somebody else owns the dispatch now: nothing more may be written.
    Lost,
}

impl Attempt<'_> {
    /// Waits until the bridge has to end the attempt. Without an event now begins its idle time.
    pub(super) async fn stop_requested(&self) -> StopReason {
        let idle = self.idle_timeout.map(|idle| Instant::now() + idle);
        let (until, late) = match idle {
            Some(idle) if idle < self.deadline => (idle, StopReason::Stalled),
            Some(_) | None => (self.deadline, StopReason::TimedOut),
        };
        tokio::select! {
            biased;
            () = self.stop.cancel.cancelled() => StopReason::Cancelled,
            () = self.stop.halt.cancelled() => StopReason::Halted,
            () = sleep_until(until) => late,
        }
    }

    /// Writes what was observed. While the store is away the adapter is held back by its full queue,
    /// and the deadline goes on counting. Whoever is told to stop keeps what was not written.
    pub(super) async fn write(&self, batcher: &mut EventBatcher, until: Instant) -> WriteOutcome {
        let mut pause = STORE_PAUSE;
        while !batcher.is_empty() {
            let progress = batcher.take();
            let again = progress.clone();
            failpoint::point("execute.append.before");
            let appended = self.store.append(self.lease, progress).await;
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
            // Seldom, so that it has no room in what waits.
            if let Some(unwritten) = Box::pin(self.rest(pause, until)).await {
                return unwritten;
            }
            pause = (pause * 2).min(STORE_PAUSE_MAX);
        }
        WriteOutcome::Yes
    }

    /// Waits before something is written again, unless it is not to be.
    async fn rest(&self, pause: Duration, until: Instant) -> Option<WriteOutcome> {
        tokio::select! {
            () = sleep_until(until) => Some(WriteOutcome::Late),
            () = self.stop.cancel.cancelled() => Some(WriteOutcome::Stopped),
            () = self.stop.halt.cancelled() => Some(WriteOutcome::Stopped),
            () = sleep(pause) => None,
        }
    }
}

/// As the adapter is given it.
pub(super) fn encoded(request: &ExecutionRequest) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request has only text keys")
}

/// Calls the adapter and follows the call to its end. What was observed is on disk, all but a last
/// batch that stays in the observer.
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
            let drive = Execution {
                attempt,
                batcher,
                call,
            };
            drive.run().await
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
                why = self.attempt.stop_requested() => break why,
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
                // The next round sees why it is stopped.
                WriteOutcome::Yes | WriteOutcome::Stopped => {}
                WriteOutcome::Lost => return AttemptEnd::Lost,
                WriteOutcome::Late => break StopReason::TimedOut,
            }
        };
        // Most end by themselves, so they do not carry the room for it.
        Box::pin(self.wind_down(why)).await
    }

    /// Takes one item into the batch.
    fn take(&mut self, item: Item) -> Step {
        let now = self.attempt.clock.now();
        match item {
            Item::Event(event) => {
                let noticed = self.batcher.event(event, now);
                let over = || {
                    self.batcher
                        .accumulator
                        .meter
                        .exceeded(self.attempt.budget)
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

    /// Tells the adapter to end, gives it its grace to say what it has, then drops the call. After a
    /// cancel the grace is always given; for the other reasons only when the adapter agreed to end.
    async fn wind_down(mut self, why: StopReason) -> AttemptEnd {
        let adapter = self.attempt.adapter;
        let execution = format!("{}/{}", self.attempt.lease.id, self.attempt.lease.attempt);
        let task_id = self.attempt.task_id.to_owned();
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
                    // The bound of memory: what a flood still says after its end is not kept.
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

/// What became of a batch.
pub(super) enum WriteOutcome {
    Yes,
    /// Not, because the attempt is told to stop.
    Stopped,
    /// Not, because the dispatch is somebody else's.
    Lost,
    /// Not in time.
    Late,
}
