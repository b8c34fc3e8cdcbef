//! Ways to reach a service. Each prepares one call and sends it once, and says how that ended; policy, limits and
//! retries are decided elsewhere.

pub mod grpc;
pub(crate) mod http;
pub(crate) mod stdio;

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use forge_base::trace::TraceId;

use crate::answer::Status;
use crate::call::Call;
use crate::identity::Identity;

/// End of one attempt to call a service.
#[derive(Debug)]
pub(crate) enum End {
    /// The service answered completely. `said` is the end of a program's stderr.
    Answered {
        status: Status,
        body: Vec<u8>,
        said: String,
        /// Wait before another attempt that the service asks for.
        retry_after: Option<Duration>,
    },
    /// There was no connection, so the service has not seen the call.
    NotConnected(String),
    /// The bridge did not send the call, with a diagnostic code and the reason.
    Refused(&'static str, String),
    /// The call was sent, and there is no usable answer; with a diagnostic code and the reason.
    Broken(&'static str, String),
    TimedOut,
}

/// Body of a call: arguments, caller and what is called.
fn envelope(call: &Call<'_>) -> Bytes {
    #[derive(Serialize)]
    struct Envelope<'a> {
        args: &'a serde_json::Value,
        auth: &'a Identity,
        forge: Forge<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Forge<'a> {
        service: &'a str,
        entry: &'a str,
        kind: &'static str,
        trace_id: String,
    }
    let envelope = Envelope {
        args: &call.args,
        auth: call.caller,
        forge: Forge {
            service: call.service,
            entry: call.entry,
            kind: call.kind.as_str(),
            trace_id: TraceId(call.trace.trace).to_string(),
        },
    };
    let text = serde_json::to_vec(&envelope);
    text.expect("the envelope is plain data").into()
}

/// Reason for refusing an answer above the limit.
fn too_long(limit: usize) -> String {
    format!("the answer is longer than {limit} bytes (external.answer_bytes)")
}
