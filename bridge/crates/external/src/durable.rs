//! Durable calls: a dispatch to provider `external` is one call that is repeated within the time of the dispatch.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use forge_base::trace::TraceContext;

use crate::call::{Answered, Call};
use crate::entry_name::EntryName;
use crate::identity::Identity;
use crate::repeat::Repeat;
use crate::services::External;

/// Execution of a durable call.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DurableCall {
    pub execution_id: String,
    /// Sent to the service as `Idempotency-Key`: the same in each attempt of the dispatch.
    pub dispatch_id: String,
    /// The entry, in one of the forms of `EntryName`.
    pub entry: String,
    pub args: Value,
    pub caller: Identity,
    pub traceparent: Option<String>,
    pub timeout_seconds: f64,
    /// True to repeat the call also after an answer that says that the service is away for a moment.
    pub repeats: bool,
}

impl External {
    /// Checks a call as its execution will: the entry, the policy, the arguments, the transport. Returns true if it has to
    /// wait for an approval.
    pub fn check_call(
        &self,
        name: &EntryName,
        args: Value,
        caller: &Identity,
    ) -> Result<bool, Answered> {
        // No call, and no part of the caller's trace.
        let trace = TraceContext::start().unsampled();
        let call = Call::new(name, args, caller, (trace, None));
        Ok(self.prepare(&call)?.is_held())
    }

    /// Makes a durable call. `Err` says why its entry is unknown.
    pub async fn call_durably(&self, durable: DurableCall) -> Result<Answered, String> {
        let name = self.resolve(&durable.entry)?;
        let given = durable.traceparent.as_deref();
        let given = given.and_then(TraceContext::parse);
        let trace = self.span_of_call(given, TraceContext::start());
        let parent = given.map(|given| given.span);
        let call = Call {
            idempotency_key: Some(durable.dispatch_id),
            ..Call::new(&name, durable.args, &durable.caller, (trace, parent))
        };
        let time = Duration::try_from_secs_f64(durable.timeout_seconds).unwrap_or_default();
        let deadline = Instant::now() + time;
        let repeat = match durable.repeats {
            true => Repeat::Temporary(deadline),
            false => Repeat::Unconnected(deadline),
        };
        let prepared = self.prepare(&call);
        // The service can take long, and the message has the arguments.
        drop(call.args);
        Ok(match prepared {
            Ok(prepared) => prepared.send(repeat).await,
            Err(answered) => answered,
        })
    }
}

impl<'a> Call<'a> {
    /// Call without credentials for the service. `trace` is its span, with the span id of the caller.
    pub fn new(
        name: &'a EntryName,
        args: Value,
        caller: &'a Identity,
        (trace, parent): (TraceContext, Option<u64>),
    ) -> Self {
        Self {
            kind: name.kind,
            service: &name.service,
            entry: &name.entry,
            args,
            caller,
            trace,
            parent,
            authorization: None,
            idempotency_key: None,
        }
    }
}
