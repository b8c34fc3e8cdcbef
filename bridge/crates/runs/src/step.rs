//! One dispatch of a run: submitted under a key that makes it the same one after a crash, and followed to its end.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use forge_base::event::kind;
use forge_base::failpoint;
use forge_base::id::{DispatchId, RunId};
use forge_base::time;
use forge_dispatch::submit::SubmitHeaders;
use forge_dispatch::{self as dispatch, Dispatcher};
use forge_store::record::{DispatchRecord, EventFilter, KeyOwner};
use forge_store::{self as store};

use crate::context::Context;
use crate::event::Event;
use crate::space::DISK_FULL;
use crate::takeover::Takeover;
use crate::wait::{Cause, Trouble};
use crate::{Inner, Report, TakenOver};

/// Waits between two tries to submit a step that cannot be accepted now. Once they are longer, the run shows them.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Longest time without a look at the log.
const LOOK: Duration = Duration::from_secs(5);
const PAGE: usize = 128;

/// Identity of a step, and its idempotency key.
#[derive(Clone, Debug)]
pub(crate) struct StepId {
    pub(crate) run: RunId,
    /// Id of the task, or `captain`.
    pub(crate) of: String,
    /// Attempt with its agent and round, or turn of the Captain.
    pub(crate) name: String,
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.of, self.name)
    }
}

/// End of a step.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) dispatch: DispatchId,
    /// `None` if it is fine or asks for tool results.
    pub(crate) error: Option<StepError>,
    pub(crate) output: String,
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) session_id: Option<String>,
    pub(crate) tokens: u64,
    pub(crate) cost_usd: f64,
}

/// Error of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepError {
    pub(crate) code: String,
    text: String,
    /// The adapter says that the same step can succeed later.
    is_retryable: bool,
    retry_after: Option<Duration>,
}

/// Codes of errors that no agent causes.
const EXCUSED: [&str; 5] = [
    DISK_FULL,
    "interrupted",
    "adapter_crashed",
    "adapter_unavailable",
    "rate_limited",
];

impl StepError {
    pub(crate) fn new(code: &str, text: &str) -> Self {
        Self {
            code: code.to_owned(),
            text: text.to_owned(),
            is_retryable: false,
            retry_after: None,
        }
    }

    /// The trouble, if the agent did not cause the error, so that the step is repeated and not counted.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let cause = match &*self.code {
            DISK_FULL => Cause::Disk,
            _ => Cause::Attempt,
        };
        let is_excused = self.is_retryable || EXCUSED.contains(&&*self.code);
        is_excused.then(|| Trouble {
            hint: self.retry_after,
            ..Trouble::new(cause, self.to_string())
        })
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, text, .. } = self;
        write!(f, "{code}: {text}")
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolCall {
    pub(crate) tool_call_id: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) input: Value,
}

impl Outcome {
    /// Event that ends the step; without a task it is one of the Captain.
    pub(crate) fn usage(&self, task: Option<&str>, agent: Option<usize>) -> Event {
        Event::Usage {
            dispatch_id: self.dispatch.to_string(),
            task_id: task.map(str::to_owned),
            agent,
            session_id: self.session_id.clone(),
            tokens: self.tokens,
            cost_usd: self.cost_usd,
            repeats: false,
        }
    }
}

/// Members of a result that a run uses.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    #[serde(default)]
    output: Option<String>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    error_code: Option<String>,
    #[serde(default)]
    retryable: Option<bool>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    cost_usd: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    #[serde(default)]
    total_tokens: Option<u64>,
}

/// Reason why a step has no dispatch.
#[derive(Debug)]
pub(crate) enum NotSubmitted {
    /// The bridge will never accept it.
    Refused(String),
    /// The bridge cannot accept it now.
    Later(Trouble),
    /// The run is cancelled, or the bridge stops.
    Stopped,
}

/// Submits a step, and waits while it cannot be accepted.
pub(crate) async fn submit(
    inner: &Inner,
    id: &StepId,
    body: Value,
    headers: SubmitHeaders,
    stop: &CancellationToken,
) -> Result<DispatchId, NotSubmitted> {
    let headers = SubmitHeaders {
        idempotency_key: Some(id.to_string()),
        // No caller has the keys of runs: a step that one took in advance would never run.
        key_owner: KeyOwner::of("run", &[]),
        ..headers
    };
    let mut wait = FIRST_WAIT;
    loop {
        if stop.is_cancelled() {
            return Err(NotSubmitted::Stopped);
        }
        failpoint::point("run.submit");
        let error = match inner.dispatcher.submit(body.clone(), &headers).await {
            Ok(answer) => return Ok(answer.dispatch_id),
            Err(error) => error,
        };
        match &error {
            dispatch::Error::QueueFull
            | dispatch::Error::AdapterUnavailable(_)
            | dispatch::Error::Store(_) => {
                tracing::debug!(run = %id.run, "step {id} is submitted again: {error}");
            }
            dispatch::Error::Invalid(fields) => {
                let text = fields
                    .iter()
                    .map(|field| format!("{}: {}", field.field, field.message));
                return Err(NotSubmitted::Refused(text.collect::<Vec<_>>().join("; ")));
            }
            dispatch::Error::Conflict(_)
            | dispatch::Error::NoCapableAdapter(_)
            | dispatch::Error::UnknownProvider(_)
            | dispatch::Error::Forbidden(_) => {
                return Err(NotSubmitted::Refused(error.to_string()));
            }
        }
        if wait > LONGEST_WAIT {
            let trouble = Trouble::new(Cause::Adapter, error.to_string());
            return Err(NotSubmitted::Later(trouble));
        }
        if stop.run_until_cancelled(sleep(wait)).await.is_none() {
            return Err(NotSubmitted::Stopped);
        }
        wait *= 2;
    }
}

/// Takes over the events of a dispatch that are not in the log of the run until it ends. When `stop` is cancelled, requests its
/// cancellation and follows it further.
pub(crate) async fn follow(
    context: &Context,
    dispatch: DispatchId,
    mut events: Takeover,
) -> store::Result<Outcome> {
    let Context {
        inner,
        reports,
        stop,
        ..
    } = context;
    let filter = EventFilter {
        dispatch: Some(dispatch),
        ..EventFilter::default()
    };
    let mut position = context.taken_over.get(&dispatch).copied().unwrap_or(0);
    // A crash, or work that is tried again, can come after the last event was taken over.
    let record = inner.store.dispatch(dispatch).await?;
    if let Some(record) = record.filter(|record| record.result.is_some()) {
        let rest = inner.store.events(&filter, position, 1).await?;
        if rest.events.is_empty() && !rest.more {
            return outcome(&record);
        }
    }
    let mut changes = inner.store.changes();
    let mut is_cancelled = false;
    loop {
        if stop.is_cancelled() && !std::mem::replace(&mut is_cancelled, true) {
            cancel(&inner.dispatcher, dispatch).await;
        }
        changes.borrow_and_update();
        let page = inner.store.events(&filter, position, PAGE).await?;
        position = page.scanned;
        page.events.iter().for_each(|event| events.add(event));
        let has_ended = page
            .events
            .iter()
            .any(|event| kind::is_terminal(&event.kind));
        if has_ended || events.is_due(inner.clock.now()) {
            let taken = TakenOver { dispatch, position };
            let report = Report::Events(events.flush(inner.clock.now()), taken);
            // The driver has ended: the bridge stops, and the next start follows again.
            if reports.send(report).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        if has_ended {
            let record = inner.store.dispatch(dispatch).await?;
            return outcome(&record.ok_or(store::Error::NotFound)?);
        }
        if !page.more {
            let wait = events
                .due()
                .map_or(LOOK, |due| time::left(inner.clock.now(), due));
            let changed = timeout(wait, changes.changed());
            if is_cancelled {
                let _ = changed.await;
            } else {
                let _ = stop.run_until_cancelled(changed).await;
            }
        }
    }
}

async fn cancel(dispatcher: &Dispatcher, dispatch: DispatchId) {
    if let Err(error) = dispatcher.cancel(dispatch).await {
        tracing::warn!(%dispatch, "a step of a cancelled run could not be cancelled: {error}");
    }
}

/// End of a dispatch, as its result says.
fn outcome(record: &DispatchRecord) -> store::Result<Outcome> {
    let dispatch = record.id;
    let result = record.result.as_deref().ok_or(store::Error::NotFound)?;
    let result: Ended = serde_json::from_str(result.get())
        .map_err(|error| store::Error::Unreadable(format!("the result of {dispatch}: {error}")))?;
    let asks = !result.tool_calls.is_empty();
    let error = result.error_code.filter(|_| !asks).map(|code| StepError {
        text: result.error.unwrap_or_else(|| code.clone()),
        code,
        is_retryable: result.retryable == Some(true),
        retry_after: result.retry_after_ms.map(Duration::from_millis),
    });
    Ok(Outcome {
        dispatch,
        error,
        output: result.output.unwrap_or_default(),
        tool_calls: result.tool_calls,
        session_id: result.session_id,
        tokens: result
            .usage
            .and_then(|usage| usage.total_tokens)
            .unwrap_or(0),
        cost_usd: result.cost_usd.unwrap_or(0.0),
    })
}
