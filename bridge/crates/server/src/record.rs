//! JSON representation of a stored dispatch, and lookup of the id in a path.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::attempts::{self, AttemptLine};
use super::auth::Caller;
use super::error::{Code, Failure};
use forge_base::id::DispatchId;
use forge_dispatch::wait::WaitReason;
use forge_dispatch::{Dispatcher, route};
use forge_signals::money::dollars;
use forge_store::Store;
use forge_store::record::{DeliveryRecord, DeliveryState, DispatchRecord, DispatchState, Spending};
use forge_store::roles::Records;

/// Dispatch as shown by `GET /api/v2/dispatch/{id}`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View {
    task_id: String,
    agent_id: String,
    dispatch_id: DispatchId,
    provider: String,
    pinned: bool,
    status: Status,
    /// `ok` or `error`; only of a finished dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<String>,
    cancel_requested: bool,
    /// `waiting` while the dispatch is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<&'static str>,
    /// Reason for which a queued dispatch has not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_reason: Option<WaitReason>,
    priority: i8,
    attempt: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    accepted_at: Timestamp,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    not_before: Option<Timestamp>,
    #[serde(serialize_with = "forge_base::time::millis")]
    start_by: Timestamp,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    started_at: Option<Timestamp>,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    finished_at: Option<Timestamp>,
    trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<DispatchId>,
    callback_url: Option<String>,
    /// State of its delivery, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_status: Option<DeliveryState>,
    /// In lists, which leave out the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageLine>,
    routing: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptLine>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<Vec<DeliveryLine>>,
    links: Links,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Accepted,
    Queued,
    Running,
    Finished,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Ok,
    Error,
}

/// Usage of a dispatch, as far as it is known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageLine {
    model: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cost_usd: Option<f64>,
}

impl From<Spending> for UsageLine {
    fn from(spending: Spending) -> Self {
        Self {
            model: spending.model,
            input_tokens: spending.tokens_in,
            output_tokens: spending.tokens_out,
            cost_usd: spending.cost_micros.map(dollars),
        }
    }
}

/// Delivery of a dispatch, without its attempts, which its own route has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeliveryLine {
    id: forge_base::id::DeliveryId,
    status: DeliveryState,
    attempt_count: u32,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    due_at: Option<Timestamp>,
    href: String,
}

/// Links to the routes of a dispatch.
#[derive(Debug, Serialize)]
pub(super) struct Links {
    #[serde(rename = "self")]
    pub(super) this: String,
    pub(super) events: String,
    pub(super) cancel: String,
}

impl Links {
    pub(super) fn of(id: DispatchId) -> Self {
        let this = format!("/api/v2/dispatch/{id}");
        Self {
            events: format!("{this}/events"),
            cancel: format!("{this}/cancel"),
            this,
        }
    }
}

impl View {
    /// Dispatch in a list, without its attempts and deliveries.
    pub(super) fn brief(dispatch: DispatchRecord, now: Timestamp) -> Self {
        let status = match &dispatch.state {
            // Before `notBefore` a dispatch is accepted and in no queue.
            DispatchState::Queued if dispatch.not_before.is_some_and(|at| at > now) => {
                Status::Accepted
            }
            DispatchState::Queued => Status::Queued,
            DispatchState::Running { .. } => Status::Running,
            DispatchState::Finished { .. } => Status::Finished,
        };
        let (outcome, error_code, finished_at) = match dispatch.state {
            DispatchState::Queued | DispatchState::Running { .. } => (None, None, None),
            DispatchState::Finished { at, error_code } => {
                let outcome = match error_code {
                    None => Outcome::Ok,
                    Some(_) => Outcome::Error,
                };
                (Some(outcome), error_code, Some(at))
            }
        };
        let routing = route::told(
            dispatch.routing,
            &dispatch.provider,
            dispatch.result.as_deref(),
        );
        Self {
            task_id: dispatch.task_id,
            agent_id: dispatch.agent_id,
            dispatch_id: dispatch.id,
            provider: dispatch.provider,
            pinned: dispatch.pinned,
            status,
            outcome,
            error_code,
            cancel_requested: dispatch.cancel_requested,
            approval: dispatch.is_held.then_some("waiting"),
            wait_reason: None,
            priority: dispatch.priority,
            attempt: dispatch.attempts,
            accepted_at: dispatch.accepted_at,
            not_before: dispatch.not_before,
            start_by: dispatch.start_by,
            started_at: dispatch.first_started_at,
            finished_at,
            trace_id: dispatch.trace_id,
            run_id: dispatch.run_id,
            session_id: dispatch.session,
            retry_of: dispatch.retry_of,
            callback_url: dispatch.callback.map(|callback| callback.url),
            callback_status: dispatch.delivery,
            usage: dispatch.spending.map(UsageLine::from),
            routing,
            result: dispatch.result,
            attempts: None,
            deliveries: None,
            links: Links::of(dispatch.id),
        }
    }

    /// Dispatches of a list.
    pub(super) async fn listed(
        dispatcher: &Dispatcher,
        dispatches: Vec<DispatchRecord>,
    ) -> Result<Vec<Self>, Failure> {
        let reasons = dispatcher.wait_reasons(&dispatches).await?;
        let now = Timestamp::now();
        let views = dispatches.into_iter().zip(reasons);
        let views = views.map(|(dispatch, wait_reason)| Self {
            wait_reason,
            ..Self::brief(dispatch, now)
        });
        Ok(views.collect())
    }

    /// Dispatch with its attempts and deliveries.
    pub(super) async fn whole(
        store: &dyn Store,
        dispatcher: &Dispatcher,
        dispatch: DispatchRecord,
    ) -> Result<Self, Failure> {
        let deliveries = match dispatch.state {
            // A delivery created since would belong to a result that this record does not show.
            DispatchState::Queued | DispatchState::Running { .. } => Vec::new(),
            DispatchState::Finished { .. } => store.deliveries_of(dispatch.id).await?,
        };
        let attempts = attempts::of(store, &dispatch).await?;
        let reasons = dispatcher
            .wait_reasons(std::slice::from_ref(&dispatch))
            .await?;
        let mut view = Self::brief(dispatch, Timestamp::now());
        view.wait_reason = reasons.into_iter().next().flatten();
        view.attempts = Some(attempts);
        view.callback_status = deliveries.first().map(|delivery| delivery.status);
        view.deliveries = Some(deliveries.iter().map(DeliveryLine::of).collect());
        Ok(view)
    }
}

impl DeliveryLine {
    fn of(delivery: &DeliveryRecord) -> Self {
        Self {
            id: delivery.id,
            status: delivery.status,
            attempt_count: delivery.attempt_count,
            due_at: delivery.due_at,
            href: format!("/api/v2/deliveries/{}", delivery.id),
        }
    }
}

/// Finds the dispatch named in a path: by its own id, or the newest with that task id.
pub(super) async fn find(
    store: &dyn Records,
    caller: Caller,
    id: &str,
) -> Result<DispatchRecord, Failure> {
    let found = if id.starts_with("dsp_") {
        match id.parse() {
            Ok(id) => store.dispatch(id).await?,
            Err(_) => None,
        }
    } else {
        of_task(store, caller, id, 1).await?.into_iter().next()
    };
    found.ok_or_else(|| unknown(id))
}

/// Finds all dispatches named in a path, newest first: several for a task id that was dispatched again.
pub(super) async fn find_all(
    store: &dyn Records,
    caller: Caller,
    id: &str,
    limit: usize,
) -> Result<Vec<DispatchRecord>, Failure> {
    if id.starts_with("dsp_") {
        return Ok(vec![find(store, caller, id).await?]);
    }
    match of_task(store, caller, id, limit).await? {
        none if none.is_empty() => Err(unknown(id)),
        found => Ok(found),
    }
}

/// Dispatches with a task id: those of the caller, or if it has none and may read, those of all.
async fn of_task(
    store: &dyn Records,
    caller: Caller,
    id: &str,
    limit: usize,
) -> Result<Vec<DispatchRecord>, Failure> {
    let own = store.by_task(id, Some(caller.key_owner), limit).await?;
    match own.is_empty() && caller.may_read {
        true => Ok(store.by_task(id, None, limit).await?),
        false => Ok(own),
    }
}

fn unknown(id: &str) -> Failure {
    let message = format!("there is no dispatch {id:?}, or its retention is over");
    Failure::new(Code::NotFound, message)
}
