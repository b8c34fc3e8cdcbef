//! One attempt, from its recorded start to its recorded end: assemble, execute, finish.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use forge_adapter_api::folder::Folder;
use forge_adapter_api::request::SignalSession;
use forge_adapter_api::{AdapterError, OutputStrategy};
use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::time::Instant;

use forge_base::failpoint;
use forge_base::time;
use forge_delivery::send::{CallbackOptions, CallbackPayload};
use forge_plugin_host::Permit;
use forge_process::ownership::{self, UserId};
use forge_signals::ledger::Admission;
use forge_store as store;
use forge_store::record::{Begun, Claim};

use super::Inner;
use super::accumulator::Accumulator;
use super::assemble::{self, assemble};
use super::attachments::{self, Staged};
use super::budget::UsageTotals;
use super::capture::{self, Captured};
use super::event_batcher::EventBatcher;
use super::execute::{Attempt, AttemptEnd, StopReason, WriteOutcome, execute};
use super::external;
use super::finish::{Completion, PendingDelivery};
use super::gate::Charges;
use super::normalise::{Ending, Raw};
use super::output_files;
use super::recover::{self, RecoveryAction};
use super::repair;
use super::request::{Attachment, DispatchRequest, Prompt};
use super::retraction;
use super::running::Stop;
use super::spans::DispatchSpans;
use super::validate::workspace;

/// Reason given for an attempt that the shutdown of the bridge stopped.
const STOPPED: &str = "the bridge was stopped during the attempt";

/// Error code of a call whose adapter process ended.
pub(super) const CRASHED: &str = "adapter_crashed";

/// End of a run that a rule over signals blocked.
fn blocked(admission: &Admission, answer: Option<Vec<u8>>) -> Ending {
    Ending::Blocked {
        message: admission.blocked().unwrap_or_default().to_owned(),
        answer,
    }
}

/// Outcome of an attempt.
enum Outcome {
    Conclude(Box<Completion>),
    /// The bridge is stopping or the adapter process ended, and the recovery policy asks for another attempt.
    Requeue(String),
    /// Another owner holds the dispatch; nothing is written.
    Nothing,
}

impl Inner {
    /// Runs an attempt whose start is recorded and hands its result to the deliverer. Errors come from the store;
    /// the dispatch then stays `running` under this epoch until the next start recovers it.
    pub(super) async fn attempt(
        &self,
        begun: Box<Begun>,
        mut request: Box<DispatchRequest>,
        adapter: &Permit,
        stop: &Stop,
    ) -> Result<(), store::Error> {
        // Boxed: a future keeps space for a value even after moving it out.
        let prompt = Box::new(request.take_prompt());
        let request = &*request;
        let finisher = &self.finisher;
        let id = begun.lease.id;
        let claim = Claim::Attempt(begun.lease.clone());
        // Boxed, so that the future of a running attempt does not reserve space for its end.
        let conclude = |completion: Completion| {
            Box::pin(finisher.finish(claim.clone(), &begun.dispatch, request, completion))
        };
        let silent = |ending| conclude(Completion::silent(ending, begun.spent.as_deref()));
        let run = async {
            match self.run(&begun, request, prompt, adapter, stop).await {
                Outcome::Conclude(completion) => conclude(*completion).await,
                Outcome::Requeue(why) => match self.return_to_queue(&begun, request, &why).await {
                    // A cancellation was recorded while the attempt stopped.
                    Err(store::Error::InvalidState(_)) => {
                        silent(Ending::Cancelled { answer: None }).await
                    }
                    Ok(()) => {
                        // New dispatches must not overtake it before the scheduler has looked.
                        self.waiting_providers.add(adapter.provider());
                        Ok(None)
                    }
                    Err(error) => Err(error),
                },
                Outcome::Nothing => Ok(None),
            }
        };
        // The start is on disk, so an end must be written even if this code panics.
        let ended = match AssertUnwindSafe(run).catch_unwind().await {
            Ok(ended) => ended,
            Err(_panic) => {
                tracing::error!("the bridge panicked while {id} ran");
                let text = "the bridge failed during the attempt".to_owned();
                silent(Ending::Interrupted(text)).await
            }
        };
        match ended {
            Err(store::Error::Stale(_)) => {
                tracing::error!("refused a late result of {id}: its lease is no longer valid");
                Ok(())
            }
            Err(error) => Err(error),
            Ok(None) => Ok(()),
            Ok(Some(PendingDelivery { due, body })) => {
                let payload = CallbackPayload {
                    body: body.into_bytes(),
                    trace_id: begun.dispatch.trace_id,
                    secrets: begun.secrets,
                    wishes: CallbackOptions {
                        policy: request.retry(),
                        context: request.trace.context(),
                    },
                };
                self.deliverer.offer(due, payload);
                Ok(())
            }
        }
    }

    /// Gives the checkout of a step of a run to the user of the adapter's programs; callers' folders stay as they are. Files
    /// in the folder are opened with the rights of that user.
    async fn give_checkout(
        &self,
        request: &DispatchRequest,
        adapter: &Permit,
        folder: Option<Folder>,
    ) -> Result<Option<Folder>, String> {
        let user = self.config.program_users.of(adapter.provider());
        if let (true, Some(user), Some(folder)) = (request.is_step, user, &folder) {
            let path = folder.path().to_owned();
            let giving = tokio::task::spawn_blocking(move || ownership::give(&path, user));
            let given = giving.await.map_err(std::io::Error::other).flatten();
            let uid = user.uid;
            given.map_err(|error| {
                format!("workspace.dir cannot be given to the user {uid} of the adapter: {error}")
            })?;
        }
        // The bridge lends its rights to no agent: neither for reading an output, nor for an attachment.
        Ok(match user {
            Some(UserId { uid, gid }) => folder.map(|folder| folder.as_user(uid, gid)),
            None => folder,
        })
    }

    async fn run(
        &self,
        begun: &Begun,
        request: &DispatchRequest,
        prompt: Box<Prompt>,
        adapter: &Permit,
        stop: &Stop,
    ) -> Outcome {
        let finisher = &self.finisher;
        let started = finisher.clock.moment();
        let now = started.at;
        let conclude = |completion| Outcome::Conclude(Box::new(completion));
        let spent = begun.spent.as_deref();
        let silent = |ending| {
            let silent = Completion::silent(ending, spent);
            conclude(Completion {
                attempt_started: Some(started),
                ..silent
            })
        };
        let strategy = match capture::decide(request, adapter.profile().as_deref()) {
            Ok(strategy) => strategy,
            Err(lack) => {
                let text = format!("adapter {} {lack}", adapter.provider());
                return silent(Ending::Unavailable(text));
            }
        };
        let opened = match workspace::reopen(request, &self.config) {
            Ok(folder) => self.give_checkout(request, adapter, folder).await,
            Err(text) => Err(text),
        };
        let folder = match opened {
            Ok(folder) => folder,
            Err(text) => {
                let error = AdapterError::new("workspace_unavailable", text);
                return silent(Ending::Failed(error));
            }
        };
        let charges = Charges::new(&finisher.signals, &begun.dispatch, request);
        let admission = match charges.admit().await {
            Ok(admission) => admission,
            Err(message) => {
                let answer = None;
                return silent(Ending::Blocked { message, answer });
            }
        };
        let session = finisher.signals.open_execution(&admission);
        let signals = session.as_ref().map(|session| SignalSession {
            session_id: session.session_id.clone(),
            session_key: session.session_key.clone(),
            agent_url: session.agent_url.clone(),
        });
        let attempt = assemble::Attempt {
            signals: signals.as_ref(),
            id: begun.lease.id,
            number: begun.lease.attempt,
            now,
            strategy,
            session_honoured: begun.dispatch.session.is_some(),
            recorded_session: begun.recorded_session.as_deref(),
            budget_left: UsageTotals::after(spent).left(request.budget.as_ref()),
            mcp_servers: &self.mcp_servers,
            mcp_required: self.mcp.required(),
        };
        let mut assembled = match assemble(request, *prompt, &attempt) {
            Ok(assembled) => Box::new(assembled),
            Err(error) => return silent(Ending::Unavailable(error.to_string())),
        };
        let session = assembled.session_id.clone();
        let attempt = Attempt {
            executions: &*finisher.store.executions,
            clock: &finisher.clock,
            adapter,
            lease: &begun.lease,
            dispatch: request,
            deadline: Instant::now() + request.time_left(now),
            idle_timeout: request.idle_timeout,
            grace: self.cancel_grace,
            stop,
            charges: &charges,
            admission: &admission,
        };
        let accumulator = Accumulator::new(spent, self.config.output_limit_bytes);
        let mut batcher = EventBatcher::new(accumulator);
        self.record_start(begun, request, now, &mut batcher);
        if begun.lease.attempt > 1 {
            let (log, lease) = (&*finisher.store.events, &begun.lease);
            let resumes = assembled.resume;
            // Boxed: few dispatches have a second attempt.
            let retracted =
                retraction::of_earlier_attempt(log, lease, adapter, resumes, now, &mut batcher);
            Box::pin(retracted).await;
        }
        let sources = attachments::Sources {
            store: &finisher.store,
            client: &self.client,
            workspace: folder.as_ref(),
        };
        let staged = match request.attachments.as_slice() {
            [] => Ok(None),
            // Boxed: few dispatches have attachments.
            all => Box::pin(staged(&attempt, all, sources)).await.map(Some),
        };
        let end = match staged {
            Err(end) => end,
            Ok(staged) => {
                if let Some(staged) = &staged {
                    assembled.attachments.clone_from(&staged.attachments);
                }
                let end = match repair::Repair::of(request, &assembled, adapter) {
                    _ if adapter.provider() == external::PROVIDER => {
                        let asked = external::execution(request, &assembled);
                        execute(&attempt, asked, &mut batcher).await
                    }
                    None => self.rounds(&attempt, assembled, &mut batcher).await,
                    // Boxed: few attempts need it.
                    Some(repair) => {
                        Box::pin(self.repaired(&attempt, assembled, repair, &mut batcher)).await
                    }
                };
                // Removes files, which can block.
                staged.map(|staged| tokio::task::spawn_blocking(move || drop(staged)));
                end
            }
        };
        self.record_end(begun, request, &mut batcher);
        let recovery = request.recovery_in(batcher.accumulator.session.as_deref());
        let (ending, mut file) = match end {
            AttemptEnd::Answered(Ok(answer)) => (Ending::Answered(answer), None),
            AttemptEnd::Answered(Err(error)) if error.code == CRASHED => {
                let (number, most) = (begun.lease.attempt, self.config.max_attempts);
                match recover::recovery_action(recovery, false, number, most) {
                    RecoveryAction::Again => {
                        return self.retry(&attempt, &mut batcher, &error.message).await;
                    }
                    RecoveryAction::Cancelled | RecoveryAction::Interrupted => {
                        (Ending::Failed(error), None)
                    }
                }
            }
            AttemptEnd::Answered(Err(error)) => (Ending::Failed(error), None),
            AttemptEnd::Cut { why, answer } => match why {
                StopReason::Cancelled => (Ending::Cancelled { answer }, None),
                StopReason::TimedOut => (Ending::TimedOut, None),
                StopReason::Stalled => (Ending::Stalled, None),
                StopReason::OverBudget => {
                    let exceeded = batcher.accumulator.meter.exceeded(request.budget.as_ref());
                    (Ending::OverBudget(exceeded.unwrap_or_default()), None)
                }
                StopReason::Blocked => (blocked(&admission, answer), None),
                StopReason::Halted => {
                    let (number, most) = (begun.lease.attempt, self.config.max_attempts);
                    match recover::recovery_action(recovery, false, number, most) {
                        RecoveryAction::Again => {
                            return self.retry(&attempt, &mut batcher, STOPPED).await;
                        }
                        RecoveryAction::Cancelled => (Ending::Cancelled { answer }, None),
                        RecoveryAction::Interrupted => {
                            (Ending::Interrupted(STOPPED.to_owned()), None)
                        }
                    }
                }
            },
            AttemptEnd::Lost => return Outcome::Nothing,
        };
        let ending = match (admission.blocked(), ending) {
            (Some(_), Ending::Answered(answer)) => blocked(&admission, Some(answer)),
            (Some(_), Ending::Failed(_)) => blocked(&admission, None),
            (_, ending) => ending,
        };
        if strategy == OutputStrategy::File && matches!(ending, Ending::Answered(_)) {
            file = self.captured(folder.as_ref(), request).await;
        }
        let output_files = match &ending {
            Ending::Answered(answer)
            | Ending::Cancelled {
                answer: Some(answer),
            }
            | Ending::Blocked {
                answer: Some(answer),
                ..
            } => output_files::collect(answer, folder).await,
            _ => Vec::new(),
        };
        conclude(Completion {
            strategy,
            session,
            events: batcher.take().events,
            hints: batcher.hints,
            raw: Raw {
                ending,
                file,
                output_files,
                accumulator: batcher.accumulator,
            },
            attempt_started: Some(started),
        })
    }

    /// Records the queue wait of an attempt that starts, as a metric and as a span.
    fn record_start(
        &self,
        begun: &Begun,
        request: &DispatchRequest,
        now: Timestamp,
        batcher: &mut EventBatcher,
    ) {
        let record = &begun.dispatch;
        let stages = DispatchSpans::of(&self.finisher.spans, record.id, request);
        if stages.is_some() {
            batcher.calls.follow();
        }
        // The wait before a later attempt is not recorded.
        if begun.lease.attempt == 1 {
            let since = record.not_before.unwrap_or(record.accepted_at);
            let since = since.max(record.accepted_at);
            let meters = self.finisher.meters.providers.row(&record.provider);
            meters.queue_wait.time(time::wall_age(since, now));
            if let Some(stages) = stages {
                stages.queued(since, now);
            }
        }
    }

    /// Records the metrics and tool spans of an attempt's events.
    fn record_end(&self, begun: &Begun, request: &DispatchRequest, batcher: &mut EventBatcher) {
        let record = &begun.dispatch;
        let meters = self.finisher.meters.providers.row(&record.provider);
        meters.events.add(batcher.events);
        meters.events_dropped.add(batcher.lost);
        meters.tool_calls.add(batcher.calls.count);
        meters.retry_model(&batcher.retries.counts);
        if let Some(first) = batcher.first
            && begun.lease.attempt == 1
        {
            let wait = time::wall_age(record.accepted_at, first);
            meters.first_event.time(wait);
        }
        if let Some(stages) = DispatchSpans::of(&self.finisher.spans, record.id, request) {
            let runs = batcher.calls.take();
            stages.tools_called(begun.lease.attempt, runs, self.finisher.clock.now());
        }
    }

    /// Puts the dispatch back into the queue for another attempt.
    async fn return_to_queue(
        &self,
        begun: &Begun,
        request: &DispatchRequest,
        why: &str,
    ) -> Result<(), store::Error> {
        let claim = Claim::Attempt(begun.lease.clone());
        let requeued = self.finisher.requeue(claim, why).await;
        if requeued.is_ok() {
            self.finisher.record_requeued(&begun.dispatch, request);
        }
        requeued
    }

    /// Asks for another attempt, after writing the usage and the session of this one.
    async fn retry(&self, attempt: &Attempt<'_>, batcher: &mut EventBatcher, why: &str) -> Outcome {
        match attempt.write(batcher, attempt.deadline).await {
            WriteOutcome::Lost => Outcome::Nothing,
            WriteOutcome::Yes | WriteOutcome::Stopped | WriteOutcome::Late => {
                Outcome::Requeue(why.to_owned())
            }
        }
    }

    /// Reads the output file of the run. `None` without a workspace folder, or if reading panicked.
    async fn captured(
        &self,
        folder: Option<&Folder>,
        request: &DispatchRequest,
    ) -> Option<Captured> {
        let folder = folder?.clone();
        let file = request.output_file().to_owned();
        let config = Arc::clone(&self.finisher.config);
        let read = move || capture::read(&folder, &file, config.output_limit_bytes);
        failpoint::point("output.read.before");
        let captured = tokio::task::spawn_blocking(read).await.ok();
        failpoint::point("output.read.after");
        captured
    }
}

/// Attachments of the attempt, ready for the adapter. The error is the end of an attempt that they kept from starting.
async fn staged(
    attempt: &Attempt<'_>,
    attachments: &[Attachment],
    sources: attachments::Sources<'_>,
) -> Result<Staged, AttemptEnd> {
    tokio::select! {
        biased;
        // The idle timeout is about the adapter.
        why = attempt.stop_requested(Some(attempt.deadline)) => Err(AttemptEnd::Cut { why, answer: None }),
        staged = sources.stage(attempt.lease.id, attachments) => {
            staged.map_err(|error| AttemptEnd::Answered(Err(error)))
        }
    }
}
