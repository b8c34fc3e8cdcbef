//! Reading of a service's answer: status and body become a result or a failure. Pure.

use serde_json::{Map, Value};
use tonic::Code;

use forge_adapter_api::foreign_json::readable;
use forge_base::json;

use crate::diagnostic::Diagnostic;

/// Call that the service or the bridge refused, or that failed on the way.
pub const FAILED: &str = "FORGE_EXTERNAL_RUNTIME_FAILED";
pub const BAD_RESPONSE: &str = "FORGE_EXTERNAL_RUNTIME_BAD_RESPONSE";

/// Maximum number of diagnostics that are taken over from one answer.
const MAX_DIAGNOSTICS: usize = 100;
/// Maximum length of a service's own trace id.
const MAX_TRACE_ID: usize = 64;

/// Status that an answer came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Http(u16),
    /// Exit code of a program.
    Exit(i32),
    /// Status of a gRPC call. One that succeeded says all about the success: its answer is no envelope.
    Grpc(Code),
}

/// Answer of a service, read.
#[derive(Debug, PartialEq)]
pub struct Reply {
    /// `None` if the call failed; the last diagnostic says why.
    pub result: Option<Value>,
    /// First the service's own, as it wrote them.
    pub diagnostics: Vec<Value>,
    /// The service's own trace id, if it is a printable one.
    pub trace_id: Option<String>,
}

impl Status {
    fn is_success(self) -> bool {
        match self {
            Status::Http(status) => (200..300).contains(&status),
            Status::Exit(code) => code == 0,
            Status::Grpc(code) => code == Code::Ok,
        }
    }

    fn failure(self) -> String {
        match self {
            Status::Http(status) => format!("external runtime returned HTTP {status}"),
            Status::Exit(code) => format!("external runtime exited with code {code}"),
            Status::Grpc(code) => {
                format!("external runtime returned gRPC status {}", name_of(code))
            }
        }
    }
}

impl Reply {
    pub fn failed(diagnostic: &Diagnostic) -> Self {
        Self {
            result: None,
            diagnostics: vec![to_value(diagnostic)],
            trace_id: None,
        }
    }
}

fn to_value(diagnostic: &Diagnostic) -> Value {
    serde_json::to_value(diagnostic).expect("a diagnostic is plain data")
}

/// Reads an answer. `described` is the entry in error texts, and `said` is appended to them.
pub fn read(status: Status, body: &[u8], described: &str, said: &str) -> Reply {
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let nothing = text.iter().all(u8::is_ascii_whitespace);
    let value = match (status, nothing) {
        // A program that writes nothing has nothing to say.
        (Status::Exit(_) | Status::Grpc(_), true) => Value::Object(Map::new()),
        (Status::Http(code), true) => {
            let message = format!("{described} returned HTTP {code} without a body; wanted JSON");
            return Reply::failed(&Diagnostic::error(BAD_RESPONSE, message));
        }
        (_, false) => match json::parse(readable(&String::from_utf8_lossy(text)).as_bytes()) {
            Ok(value) => value,
            Err(error) => {
                let message = format!("{described} returned non-JSON response: {error}{said}");
                return Reply::failed(&Diagnostic::error(BAD_RESPONSE, message));
            }
        },
    };
    of_value(status, value, said)
}

fn of_value(status: Status, value: Value, said: &str) -> Reply {
    match value {
        Value::Object(envelope) if status != Status::Grpc(Code::Ok) => {
            of_envelope(status, envelope, said)
        }
        value if status.is_success() => Reply {
            result: Some(value),
            diagnostics: Vec::new(),
            trace_id: None,
        },
        _ => {
            let message = format!("{}{said}", status.failure());
            Reply::failed(&Diagnostic::error(FAILED, message))
        }
    }
}

fn of_envelope(status: Status, mut envelope: Map<String, Value>, said: &str) -> Reply {
    let trace_id = envelope.get("traceId").and_then(Value::as_str);
    let trace_id = trace_id.filter(|id| is_trace_id(id)).map(str::to_owned);
    let listed = envelope.get("diagnostics").and_then(Value::as_array);
    let listed = listed.into_iter().flatten().filter(|item| item.is_object());
    let mut diagnostics: Vec<Value> = listed.take(MAX_DIAGNOSTICS).cloned().collect();
    let failed = envelope.get("ok") == Some(&Value::Bool(false)) || !status.is_success();
    let result = match (failed, envelope.contains_key("result")) {
        (false, true) => envelope.remove("result"),
        (false, false) => Some(Value::Object(envelope)),
        (true, _) => {
            let error = envelope.get("error");
            let text = |key: &str| error.and_then(|error| error[key].as_str());
            let first = diagnostics.iter().find_map(|one| one["message"].as_str());
            let message = match text("message").or(first) {
                Some(message) => message.to_owned(),
                None => format!("{}{said}", status.failure()),
            };
            let code = text("code").unwrap_or(FAILED);
            diagnostics.push(to_value(&Diagnostic::error(code, message)));
            None
        }
    };
    Reply {
        result,
        diagnostics,
        trace_id,
    }
}

/// Name of a status as protobuf spells it: `NOT_FOUND`.
fn name_of(code: Code) -> String {
    let mut name = String::new();
    for character in format!("{code:?}").chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_uppercase());
    }
    name
}

fn is_trace_id(text: &str) -> bool {
    (1..=MAX_TRACE_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests;
