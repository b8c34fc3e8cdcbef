//! Dispatches to external services: check of a call before it is accepted, the request of its execution, and decisions
//! about calls that wait for an approval.

use forge_adapter_api::ExecutionRequest;
use serde_json::{Value, json};

use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_base::json;
use forge_external::call::INPUT_INVALID;
use forge_external::{DurableCall, Identity, Outcome};
use forge_store as store;
use forge_store::record::Decision;

use super::request::{DispatchRequest, Recovery};
use super::validate::FieldError;
use super::{Dispatcher, Error, Inner};

/// Provider of dispatches that call an external service.
pub(super) const PROVIDER: &str = "external";

/// True if the dispatch needs the identity of its submitter.
pub(super) fn is_used(dispatch: &DispatchRequest) -> bool {
    dispatch.provider.as_deref() == Some(PROVIDER) || !dispatch.external_tools.is_empty()
}

/// Arguments of the call that a message is.
fn args(message: &str) -> Result<Value, String> {
    if message.trim().is_empty() {
        return Ok(json!({}));
    }
    match json::parse(message.as_bytes()) {
        Ok(Value::Null) => Ok(json!({})),
        Ok(args) => Ok(args),
        Err(error) => Err(format!(
            "must be the arguments of the entry as JSON: {error}"
        )),
    }
}

fn invalid(field: &str, message: impl Into<String>) -> Error {
    Error::Invalid(vec![FieldError {
        field: field.to_owned(),
        message: message.into(),
    }])
}

impl Inner {
    /// Checks the call of a dispatch to an external service; all others are fine. True if it has to wait for an approval.
    pub(super) fn check_call(&self, dispatch: &DispatchRequest) -> Result<bool, Error> {
        if dispatch.provider.as_deref() != Some(PROVIDER) {
            return Ok(false);
        }
        let named = dispatch.model.as_deref().ok_or_else(|| {
            let message = "is required with provider external: the entry to call, such as \"billing.createInvoice\"";
            invalid("model", message)
        })?;
        let name = self.external.resolve(named);
        let name = name.map_err(|message| invalid("model", message))?;
        let args = args(&dispatch.message).map_err(|message| invalid("message", message))?;
        let caller = dispatch.caller.as_ref().unwrap_or(&Identity::Anonymous);
        self.external
            .check_call(&name, args, caller)
            .map_err(|refused| {
                let last = refused.diagnostics.last();
                let text = |key| last.and_then(|last| last[key].as_str()).unwrap_or_default();
                match refused.outcome {
                    Outcome::Denied => Error::Forbidden(text("message").to_owned()),
                    _ if text("code") == INPUT_INVALID => invalid("message", text("message")),
                    _ => invalid("model", text("message")),
                }
            })
    }
}

/// Request of the execution of a dispatch to an external service, as JSON.
pub(super) fn execution(dispatch: &DispatchRequest, request: &ExecutionRequest) -> Vec<u8> {
    let call = DurableCall {
        execution_id: request.execution_id.clone(),
        dispatch_id: request.meta.dispatch_id.clone().unwrap_or_default(),
        entry: request.model.clone().unwrap_or_default(),
        // It was read when the dispatch was accepted.
        args: args(&request.message).unwrap_or_default(),
        caller: dispatch.caller.clone().unwrap_or(Identity::Anonymous),
        traceparent: request.meta.traceparent.clone(),
        timeout_seconds: request.timeout_seconds,
        repeats: dispatch.recovery != Recovery::Fail,
    };
    serde_json::to_vec(&call).expect("a call has only text keys")
}

impl Dispatcher {
    /// Lets a held dispatch start. `InvalidState` if it is not held.
    pub async fn approve(&self, id: DispatchId, decision: Decision) -> Result<(), store::Error> {
        let event = event(kind::APPROVAL_APPROVED, &decision);
        let store = &self.inner.finisher.store.approvals;
        failpoint::point("approval.approve.before");
        store.approve(id, decision, event).await?;
        failpoint::point("approval.approve.after");
        if let Some(record) = self.inner.finisher.store.records.dispatch(id).await? {
            self.inner.waiting_providers.add(&record.provider);
        }
        self.inner.next_wakeup.add(self.inner.finisher.clock.now());
        self.wake();
        Ok(())
    }

    /// Ends a held dispatch as `blocked_by_policy`. `InvalidState` if it is not held.
    pub async fn reject(&self, id: DispatchId, decision: Decision) -> Result<(), store::Error> {
        let event = event(kind::APPROVAL_REJECTED, &decision);
        failpoint::point("approval.reject.before");
        self.inner.finisher.reject(id, decision, event).await?;
        failpoint::point("approval.reject.after");
        self.inner.deliverer.wake();
        Ok(())
    }
}

fn event(kind: &'static str, decision: &Decision) -> NewEvent {
    let mut data = json!({ "by": decision.by });
    if let Some(reason) = &decision.reason {
        data["reason"] = reason.as_str().into();
    }
    NewEvent::new(kind, decision.at).with(&data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_arguments_as_json() {
        for (message, expected) in [
            ("", json!({})),
            (" null ", json!({})),
            (r#"{"a": [1]}"#, json!({"a": [1]})),
            ("5", json!(5)),
        ] {
            assert_eq!(args(message).unwrap(), expected, "{message:?}");
        }
        let error = args("create an invoice").unwrap_err();
        assert!(error.contains("as JSON"), "{error}");
        assert!(args(r#"{"a": 1, "a": 2}"#).is_err(), "a key twice");
    }
}
