//! Ends dispatches and returns them to the queue; no other code does. Result, last event and delivery are
//! written in one transaction.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{AdapterError, OutputStrategy};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::roles::Roles;
use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_base::id::{DeliveryId, DispatchId};
use forge_base::reloadable::Reloadable;
use forge_base::time::{self, Clock, Moment};
use forge_base::trace::Spans;
use forge_signals::agent::Agent;
use forge_store as store;
use forge_store::record::{
    self, Claim, Decision, DispatchState, DueDelivery, Finish, Finished, NewDelivery, Requeue,
};
use forge_store::retry::RetryDelays;

use super::Config;
use super::accumulator::Accumulator;
use super::budget::Spent;
use super::gate::Charges;
use super::meters::Meters;
use super::normalise::{Account, Ending, Outcome, Raw, Subject, normalise};
use super::output_files::Collected;
use super::request::DispatchRequest;
use super::spans::{self, DispatchSpans, ExecutedAttempt};
use super::trace::Trace;

/// Writes the ends of dispatches. Cheap to clone.
#[derive(Clone)]
pub struct Finisher {
    pub store: Roles,
    pub clock: Clock,
    pub config: Arc<Config>,
    /// Time that a record is kept after its end.
    pub retention: Reloadable<Duration>,
    pub meters: Arc<Meters>,
    pub spans: Spans,
    pub signals: Agent,
}

/// Everything needed to write the end of a dispatch.
pub(super) struct Completion {
    pub(super) raw: Raw,
    pub(super) strategy: OutputStrategy,
    /// The session that the adapter was given.
    pub(super) session: Option<String>,
    /// Merged into the terminal event.
    pub(super) hints: Map<String, Value>,
    /// Events not yet written.
    pub(super) events: Vec<NewEvent>,
    /// Start of the last attempt; if `None`, the one in the record counts.
    pub(super) attempt_started: Option<Moment>,
}

/// A delivery that has just become due, with its body.
pub(super) struct PendingDelivery {
    pub(super) due: DueDelivery,
    pub(super) body: String,
}

/// An end that is on disk.
struct Ended<'a> {
    account: &'a Account,
    error_code: Option<&'a str>,
    at: Timestamp,
    elapsed: Duration,
}

impl Completion {
    /// Completion without any event or answer from an adapter.
    pub(super) fn silent(ending: Ending, spent: Option<&RawValue>) -> Self {
        Self {
            raw: Raw {
                ending,
                file: None,
                output_files: Vec::new(),
                accumulator: Accumulator::new(spent, 0),
            },
            strategy: OutputStrategy::Stream,
            session: None,
            hints: Map::new(),
            events: Vec::new(),
            attempt_started: None,
        }
    }
}

/// Duration of the last attempt. If it ran in an earlier process, it is the time by the wall clock since the first start.
fn elapsed(record: &record::DispatchRecord, completion: &Completion, end: Moment) -> Duration {
    match (completion.attempt_started, record.first_started_at) {
        (Some(started), _) => started.until(end),
        (None, Some(started_at)) => time::wall_age(started_at, end.at),
        (None, None) => Duration::ZERO,
    }
}

fn log_unreadable(id: DispatchId, error: &serde_json::Error) {
    tracing::error!(
        dispatch.id = %id,
        "the stored request of {id} cannot be read; it was written by a newer version or is damaged: {error}",
    );
}

impl Finisher {
    /// Ends the dispatch. If a cancellation was recorded first, the result becomes `cancelled` and keeps output and
    /// usage. Retries while the store is unavailable. Returns the delivery that is due, if there is a callback.
    pub(super) async fn finish(
        &self,
        claim: Claim,
        record: &record::DispatchRecord,
        request: &DispatchRequest,
        mut completion: Completion,
    ) -> Result<Option<PendingDelivery>, store::Error> {
        let end = self.clock.moment();
        let at = end.at;
        let elapsed = elapsed(record, &completion, end);
        let events = std::mem::take(&mut completion.events);
        let mut delays = RetryDelays::default();
        loop {
            let (finish, account) =
                self.build_finish(record, request, &completion, events.clone(), (at, elapsed));
            let error_code = finish.error_code.clone();
            let callback = record.callback.clone();
            let due = callback.map(|callback| DueDelivery {
                id: DeliveryId::of(record.id),
                dispatch: record.id,
                callback,
                attempts: 0,
                since: at,
            });
            failpoint::point("finish.before");
            let finished = self.store.executions.finish(claim.clone(), finish).await;
            failpoint::point("finish.after");
            match finished {
                Ok(Finished::Recorded(recorded)) => {
                    let ended = Ended {
                        account: &account,
                        error_code: error_code.as_deref(),
                        at,
                        elapsed,
                    };
                    self.record_metrics(record, request, &completion, &ended);
                    let body = recorded.body;
                    return Ok(due.map(|due| PendingDelivery { due, body }));
                }
                Ok(Finished::CancelRequested) => {
                    let ending = &mut completion.raw.ending;
                    let cancelled = Ending::Cancelled { answer: None };
                    if let Ending::Answered(answer) = std::mem::replace(ending, cancelled) {
                        *ending = Ending::Cancelled {
                            answer: Some(answer),
                        };
                    }
                }
                Err(store::Error::Unavailable(_)) => {
                    tokio::time::sleep(delays.next_delay()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a queued dispatch. Does nothing if it has started, has ended or does not exist.
    pub(super) async fn end_queued(
        &self,
        id: DispatchId,
        ending: Ending,
    ) -> Result<(), store::Error> {
        let completion = Completion::silent(ending, None);
        match self
            .end_unstarted(Claim::Unstarted(id), id, completion)
            .await
        {
            Err(
                store::Error::Stale(_) | store::Error::InvalidState(_) | store::Error::NotFound,
            ) => Ok(()),
            ended => ended,
        }
    }

    /// Ends a held dispatch by the decision to reject it, which `event` reports.
    pub(super) async fn reject(
        &self,
        id: DispatchId,
        decision: Decision,
        event: NewEvent,
    ) -> Result<(), store::Error> {
        let by = match &decision.reason {
            Some(reason) => format!("rejected by {:?}: {reason}", decision.by),
            None => format!("rejected by {:?}", decision.by),
        };
        let error = AdapterError::new("blocked_by_policy", by);
        let completion = Completion {
            events: vec![event],
            ..Completion::silent(Ending::Failed(error), None)
        };
        match self
            .end_unstarted(Claim::Rejected(id, decision), id, completion)
            .await
        {
            Err(store::Error::Stale(_)) => Err(store::Error::InvalidState(
                "the dispatch does not wait for an approval",
            )),
            ended => ended,
        }
    }

    async fn end_unstarted(
        &self,
        claim: Claim,
        id: DispatchId,
        completion: Completion,
    ) -> Result<(), store::Error> {
        let found = self.store.records.dispatch(id).await?;
        let record = found.ok_or(store::Error::NotFound)?;
        if record.state != DispatchState::Queued {
            return Err(store::Error::Stale(id));
        }
        let stored = self.store.records.request(id).await?;
        // The request is not needed for this end, so an unreadable one does not change it.
        let request = DispatchRequest::from_record(&stored).unwrap_or_else(|error| {
            log_unreadable(id, &error);
            DispatchRequest::unreadable(&record)
        });
        let ended = self.finish(claim, &record, &request, completion).await;
        ended.map(drop)
    }

    /// Ends a dispatch that cannot be executed because its stored request cannot be read.
    pub(super) async fn end_unreadable(
        &self,
        claim: Claim,
        record: &record::DispatchRecord,
        error: &serde_json::Error,
    ) -> Result<(), store::Error> {
        log_unreadable(record.id, error);
        let ending = Ending::Unreadable(format!("the stored request cannot be read: {error}"));
        let request = DispatchRequest::unreadable(record);
        let completion = Completion::silent(ending, None);
        self.finish(claim, record, &request, completion)
            .await
            .map(drop)
    }

    /// Puts the dispatch back into its queue; `why` becomes the reason in the event.
    pub(super) async fn requeue(&self, claim: Claim, why: &str) -> Result<(), store::Error> {
        let data = json!({ "reason": why });
        let event = NewEvent::new(kind::RETRYING, self.clock.now()).with(&data);
        failpoint::point("requeue.before");
        let requeued = self
            .store
            .executions
            .requeue(claim, Requeue { event })
            .await;
        failpoint::point("requeue.after");
        requeued
    }

    /// Records an accepted dispatch as a metric and as a span.
    pub(super) fn record_accepted(
        &self,
        id: DispatchId,
        trace: &Trace,
        provider: &str,
        since: Timestamp,
    ) {
        self.meters.providers.row(provider).accepted.inc();
        let during = (since, self.clock.now());
        spans::accepted(&self.spans, (id, trace), provider, during);
    }

    /// Records an interrupted attempt that will be repeated as a metric and as a span.
    pub(super) fn record_requeued(
        &self,
        record: &record::DispatchRecord,
        request: &DispatchRequest,
    ) {
        self.meters.providers.row(&record.provider).requeued.inc();
        if let DispatchState::Running { started_at, .. } = record.state
            && let Some(stages) = DispatchSpans::of(&self.spans, record.id, request)
        {
            stages.executed(&ExecutedAttempt {
                attempt: record.attempts,
                provider: &record.provider,
                session: None,
                account: None,
                error_code: Some("interrupted"),
                from: started_at,
                to: self.clock.now(),
            });
        }
    }

    fn build_finish(
        &self,
        record: &record::DispatchRecord,
        request: &DispatchRequest,
        completion: &Completion,
        mut events: Vec<NewEvent>,
        (at, elapsed): (Timestamp, Duration),
    ) -> (Finish, Account) {
        let subject = Subject {
            id: record.id,
            dispatch: request,
            provider: &record.provider,
            attempt: record.attempts,
            retry_of: record.retry_of,
            strategy: completion.strategy,
            session: completion.session.as_deref(),
            started_at: record.first_started_at,
            completed_at: at,
            elapsed,
        };
        let Outcome {
            error_code,
            error,
            result,
            output,
            account,
        } = normalise(&completion.raw, &subject, &self.config);
        let mut data = completion.hints.clone();
        let name = match (&error_code, error) {
            (None, _) => kind::COMPLETED,
            (Some(code), error) => {
                data.insert("error".to_owned(), json!(error));
                data.insert("errorCode".to_owned(), json!(code));
                kind::FAILED
            }
        };
        let last = NewEvent::new(name, at);
        events.push(match data.is_empty() {
            true => last,
            false => last.with(&data),
        });
        let delivery = record.callback.as_ref().map(|_| NewDelivery {
            give_up_after: request.retry().patience(),
        });
        let contents = completion.raw.output_files.iter().map(Collected::bytes);
        let finish = Finish {
            at,
            error_code,
            result,
            output,
            output_files: contents.map(<[u8]>::to_vec).collect(),
            events,
            delivery,
            retention: *self.retention.get(),
            charge: Charges::new(&self.signals, record, request).of(&Spent {
                usage: account.usage,
                cost_usd: account.cost_usd,
            }),
            spending: account.spending(request.model.as_deref()),
        };
        (finish, account)
    }

    /// Records the metrics and spans of an end that is on disk.
    fn record_metrics(
        &self,
        record: &record::DispatchRecord,
        request: &DispatchRequest,
        completion: &Completion,
        ended: &Ended<'_>,
    ) {
        let Ended {
            account,
            error_code,
            at,
            elapsed,
        } = *ended;
        // An attempt that a crash interrupted counts from its start until now.
        let from = completion.attempt_started.map(|started| started.at);
        let from = from.or(match record.state {
            DispatchState::Running { started_at, .. } => Some(started_at),
            DispatchState::Queued | DispatchState::Finished { .. } => None,
        });
        let took = |from| match completion.attempt_started {
            Some(_) => elapsed,
            None => time::wall_age(from, at),
        };
        let meters = self.meters.providers.row(&record.provider);
        meters.finish(error_code);
        meters.spend(account, request.model.as_deref());
        if let Some(from) = from {
            meters.execution.time(took(from));
        }
        let Some(stages) = DispatchSpans::of(&self.spans, record.id, request) else {
            return;
        };
        if let Some(from) = from {
            stages.executed(&ExecutedAttempt {
                attempt: record.attempts,
                provider: &record.provider,
                session: completion.session.as_deref(),
                account: Some(account),
                error_code,
                from,
                to: time::after(from, took(from)),
            });
        }
        stages.finished(record, error_code, at);
    }
}
