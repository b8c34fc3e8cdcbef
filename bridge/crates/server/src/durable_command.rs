//! Commands of external services that are dispatches: those with an `Idempotency-Key` and those that wait for an approval.
//! The answer is that of the dispatch, when it ends.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::dispatch::submit_headers;
use super::error::Failure;
use super::external::answer;
use super::record::Links;
use super::stall_guard::unless_stalled;
use super::{ProcessState, follow};
use forge_base::id::DispatchId;
use forge_dispatch::Dispatcher;
use forge_external::{Answered, Call, External, Outcome};
use forge_store::Store;
use forge_store::record::{DispatchRecord, DispatchState, KeyOwner};

/// Time beyond that of the service in which a dispatch starts and its end is recorded.
const RECORDING: Duration = Duration::from_secs(5);

/// Parts of the bridge that a command needs to be a dispatch.
pub(super) struct Durably {
    dispatcher: Dispatcher,
    store: Arc<dyn Store>,
    external: External,
    life: ProcessState,
}

impl<S> FromRequestParts<S> for Durably
where
    S: Send + Sync,
    Dispatcher: FromRef<S>,
    Arc<dyn Store>: FromRef<S>,
    External: FromRef<S>,
    ProcessState: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self, Failure> {
        Ok(Self {
            dispatcher: FromRef::from_ref(state),
            store: FromRef::from_ref(state),
            external: FromRef::from_ref(state),
            life: FromRef::from_ref(state),
        })
    }
}

impl Durably {
    /// Records the command as a dispatch and waits for its end.
    pub(super) async fn answer(
        self,
        call: Call<'_>,
        key_owner: KeyOwner,
        headers: &HeaderMap,
    ) -> Result<Response, Failure> {
        let entry = format!("{}.{}", call.service, call.entry);
        let mut submitted = submit_headers(headers)?;
        submitted.caller = Some(call.caller.clone());
        submitted.key_owner = key_owner;
        let task_id = match &submitted.idempotency_key {
            Some(_) => entry.clone(),
            None => format!("{entry}/{}", DispatchId::new()),
        };
        let time = self.external.timeout(call.service);
        let body = json!({
            "taskId": task_id, "agentId": call.service, "provider": "external",
            "model": format!("{}:{entry}", call.kind.as_str()), "message": call.args.to_string(),
            "timeout": time.as_secs_f64(), "callbackUrl": null,
        });
        drop(call.args);
        let submitting = self.dispatcher.submit(body, &submitted);
        let accepted = unless_stalled(self.store.as_ref(), submitting).await??;
        let found = self.store.dispatch(accepted.dispatch_id).await?;
        let dispatch = found.ok_or(forge_store::Error::NotFound)?;
        if dispatch.is_held {
            return Ok(unfinished(&dispatch));
        }
        let (store, closing) = (self.store.as_ref(), &self.life.closing);
        let dispatch = follow::until_finished(store, dispatch, time + RECORDING, closing).await?;
        match dispatch.state {
            DispatchState::Finished { .. } => answer(recorded(&dispatch)),
            DispatchState::Queued | DispatchState::Running { .. } => Ok(unfinished(&dispatch)),
        }
    }
}

/// Answer while the dispatch is held or still running.
fn unfinished(dispatch: &DispatchRecord) -> Response {
    let (code, message) = match dispatch.is_held {
        true => (
            "FORGE_APPROVAL_REQUIRED",
            "the command waits for an approval",
        ),
        false => (
            "FORGE_EXTERNAL_RUNTIME_PENDING",
            "the command has not ended yet",
        ),
    };
    let links = Links::of(dispatch.id);
    let location = [(header::LOCATION, links.this.clone())];
    let body = json!({
        "ok": false, "code": code, "error": message, "dispatchId": dispatch.id, "links": links, "traceId": dispatch.trace_id,
        "diagnostics": [{ "severity": "info", "code": code, "message": message }],
    });
    (StatusCode::ACCEPTED, location, Json(body)).into_response()
}

/// The answer of a service, from the result of a dispatch.
fn recorded(dispatch: &DispatchRecord) -> Answered {
    let result = dispatch.result.as_ref().map(|result| result.get());
    let result: Value = result
        .and_then(|result| serde_json::from_str(result).ok())
        .unwrap_or_default();
    let error_code = result["errorCode"].as_str();
    let outcome = match error_code {
        None => Outcome::Done,
        Some("blocked_by_policy") => Outcome::Denied,
        Some("timeout" | "queue_timeout") => Outcome::TimedOut,
        Some("FORGE_EXTERNAL_RUNTIME_UNAVAILABLE" | "adapter_unavailable") => {
            Outcome::Unavailable(Duration::from_secs(1))
        }
        Some(_) => Outcome::Failed,
    };
    let details = &result["details"];
    let diagnostics = match details["diagnostics"].as_array() {
        Some(diagnostics) => diagnostics.clone(),
        None if error_code.is_none() => Vec::new(),
        None => {
            let (code, message) = (&result["errorCode"], &result["error"]);
            vec![json!({ "severity": "error", "code": code, "message": message })]
        }
    };
    Answered {
        outcome,
        result: Some(result["structuredOutput"].clone()).filter(|_| outcome == Outcome::Done),
        diagnostics,
        trace_id: details["traceId"]
            .as_str()
            .unwrap_or(&dispatch.trace_id)
            .to_owned(),
    }
}
