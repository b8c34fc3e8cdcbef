//! Converts the end of a run to the bridge's result. Pure.

use forge_adapter_api::foreign_json;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{ExecutionRequest, ExecutionResult, Status};
use serde_json::{Value, json};

use crate::server::RunStatus;
use crate::settings::Shape;
use crate::thread::{Session, State, is_the_models, list};
use crate::transcript::{Cut, RunError, Transcript};

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Ended at the server, with this status.
    Over(RunStatus),
    /// Cancelled by the adapter.
    Cancelled,
}

pub(crate) fn outcome(
    mut transcript: Transcript,
    end: End,
    state: &State,
    shape: &Shape,
    request: &ExecutionRequest,
    session: &Session,
) -> ExecutionResult {
    transcript.end(state);
    let mut outcome = match (end, &transcript.error) {
        (End::Cancelled, _) => ExecutionResult::error("cancelled", "cancelled"),
        (End::Over(_), Some(error)) => of_error(error),
        (End::Over(status), None) => of_status(status, &transcript, state, request),
    };
    let text = match (&shape.output, outcome.status) {
        (Some(path), Status::Ok) => state.at(path).map(text_at),
        // After an error this part of the state can belong to an earlier run.
        (Some(_), Status::Error) | (None, Status::Ok | Status::Error) => {
            Some(transcript.last_text.clone()).filter(|text| !text.is_empty())
        }
    };
    if outcome.status == Status::Ok
        && outcome.tool_calls.is_empty()
        && request.output_schema.is_some()
    {
        match structured(state, shape, text.as_deref()) {
            Some(value) => outcome.structured_output = Some(value),
            None => {
                outcome = ExecutionResult::error(
                    "output_invalid",
                    format!(
                        "the graph ended without the structured output that was asked for: its state has \
                         nothing at {:?}",
                        shape.structured
                    ),
                );
            }
        }
    }
    ExecutionResult {
        output: text,
        usage: transcript.meter.usage(),
        model: transcript.model,
        model_provider: transcript.model_provider,
        session_id: Some(session.id.clone()),
        ..outcome
    }
}

fn text_at(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// The value at the configured path of the state; else the text if it is JSON, for graphs that know the schema but have
/// no such key.
fn structured(state: &State, shape: &Shape, text: Option<&str>) -> Option<Value> {
    let at = state.at(&shape.structured).cloned();
    at.or_else(|| foreign_json::from_str(text?).ok())
}

fn of_status(
    status: RunStatus,
    transcript: &Transcript,
    state: &State,
    request: &ExecutionRequest,
) -> ExecutionResult {
    match status {
        RunStatus::Success => {
            let interrupts = state.interrupts();
            if interrupts.is_empty() {
                if let Some(cut) = &transcript.cut {
                    return of_cut(*cut);
                }
                return ExecutionResult {
                    tool_calls: handed_back(state, request),
                    ..ExecutionResult::default()
                };
            }
            let asked: Vec<String> = interrupts
                .iter()
                .map(|interrupt| text_at(&interrupt["value"]))
                .collect();
            ExecutionResult {
                input_request: Some(json!({ "interrupts": interrupts })),
                ..ExecutionResult::error(
                    "input_required",
                    format!("the graph asks: {}", asked.join("; ")),
                )
            }
        }
        RunStatus::Error => ExecutionResult::error(
            "adapter_error",
            "the run failed, and the server gave no reason",
        ),
        RunStatus::Interrupted => ExecutionResult::error(
            "cancelled",
            "the run was cancelled at the server by another client",
        ),
        RunStatus::Timeout => ExecutionResult::error(
            "timeout",
            "the server's own time limit for runs was reached",
        ),
        RunStatus::Gone => retryable(
            "upstream_error",
            "the run no longer exists at the server: the server was restarted, or the run was rolled back",
        ),
        RunStatus::Pending | RunStatus::Running => retryable(
            "upstream_error",
            "the run is still active, but its stream is lost",
        ),
    }
}

/// Calls of the caller's tools in the last message, left unanswered by the graph.
fn handed_back(state: &State, request: &ExecutionRequest) -> Vec<ToolCall> {
    let last = state.messages().last();
    let calls = last
        .filter(|message| is_the_models(message))
        .map_or(&[][..], |message| list(&message["tool_calls"]));
    calls
        .iter()
        .filter(|call| {
            request
                .tools
                .iter()
                .any(|tool| call["name"] == tool.name.as_str())
        })
        .filter_map(|call| {
            Some(ToolCall {
                tool_call_id: call["id"].as_str()?.to_owned(),
                name: call["name"].as_str()?.to_owned(),
                input: call["args"].clone(),
            })
        })
        .collect()
}

fn retryable(code: &str, message: &str) -> ExecutionResult {
    ExecutionResult {
        retryable: Some(true),
        ..ExecutionResult::error(code, message)
    }
}

/// Maps an exception to a code. Exceptions carry no codes: an HTTP status in the text decides, else the class name,
/// which model clients choose alike. A server can withhold the text.
fn of_error(error: &RunError) -> ExecutionResult {
    let (code, is_retryable) = match status_in(&error.message) {
        Some(401 | 403) => ("unauthenticated", false),
        Some(429) => ("rate_limited", true),
        Some(408 | 500..) => ("upstream_error", true),
        Some(_) => ("invalid_request", false),
        None => by_name(&error.name),
    };
    ExecutionResult {
        retryable: Some(is_retryable),
        ..ExecutionResult::error(code, format!("{}: {}", error.name, error.message))
    }
}

fn of_cut(cut: Cut) -> ExecutionResult {
    match cut {
        Cut::TooLong => ExecutionResult::error(
            "max_tokens",
            "the model's answer reached its token limit before its end",
        ),
        Cut::Blocked => ExecutionResult::error(
            "blocked_by_policy",
            "the content filter of the model blocked its answer",
        ),
    }
}

/// Parts of class names with code and `retryable`; the first match decides.
const NAMES: [(&str, &str, bool); 24] = [
    ("LengthFinishReason", "max_tokens", false),
    ("ContentFilter", "blocked_by_policy", false),
    ("GraphRecursion", "max_turns", false),
    ("RateLimit", "rate_limited", true),
    ("ResourceExhausted", "rate_limited", true),
    ("TooManyRequests", "rate_limited", true),
    ("Authentication", "unauthenticated", false),
    ("PermissionDenied", "unauthenticated", false),
    ("Unauthenticated", "unauthenticated", false),
    ("InvalidRequest", "invalid_request", false),
    ("BadRequest", "invalid_request", false),
    ("InvalidArgument", "invalid_request", false),
    ("UnprocessableEntity", "invalid_request", false),
    ("ContextOverflow", "invalid_request", false),
    ("NotFoundError", "invalid_request", false),
    ("InternalServer", "upstream_error", true),
    ("ServiceUnavailable", "upstream_error", true),
    ("Overloaded", "upstream_error", true),
    ("ConnectionError", "upstream_unreachable", true),
    ("ConnectError", "upstream_unreachable", true),
    ("APITimeout", "upstream_error", true),
    ("APIError", "upstream_error", true),
    ("APIStatus", "upstream_error", true),
    ("RemoteProtocol", "upstream_error", true),
];

fn by_name(name: &str) -> (&'static str, bool) {
    NAMES
        .iter()
        .find(|(part, _, _)| name.contains(part))
        .map_or(("adapter_error", false), |&(_, code, is_retryable)| {
            (code, is_retryable)
        })
}

/// Parses the status from `Error code: 429 - …`, the format of the clients of OpenAI and Anthropic.
fn status_in(message: &str) -> Option<u16> {
    let (_, rest) = message.split_once("Error code: ")?;
    rest.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Tool;

    use super::*;

    #[test]
    fn exceptions_become_codes() {
        let cases = [
            (
                "OpenAIRateLimitError",
                "An internal error occurred",
                "rate_limited",
                true,
            ),
            ("OpenAIInvalidRequestError", "", "invalid_request", false),
            ("OpenAIAuthenticationError", "", "unauthenticated", false),
            ("OpenAIAPIError", "", "upstream_error", true),
            (
                "APIStatusError",
                "Error code: 429 - {}",
                "rate_limited",
                true,
            ),
            (
                "APIStatusError",
                "Error code: 529 - {}",
                "upstream_error",
                true,
            ),
            (
                "APIStatusError",
                "Error code: 404 - {}",
                "invalid_request",
                false,
            ),
            ("OpenAIConnectionError", "", "upstream_unreachable", true),
            ("LengthFinishReasonError", "", "max_tokens", false),
            (
                "ContentFilterFinishReasonError",
                "",
                "blocked_by_policy",
                false,
            ),
            ("GraphRecursionError", "", "max_turns", false),
            ("ValueError", "Error code: ", "adapter_error", false),
            ("", "", "adapter_error", false),
        ];
        for (name, message, code, is_retryable) in cases {
            let result = of_error(&RunError {
                name: name.to_owned(),
                message: message.to_owned(),
            });
            assert_eq!(result.error_code.as_deref(), Some(code), "{name} {message}");
            assert_eq!(result.retryable, Some(is_retryable), "{name} {message}");
        }
    }

    #[test]
    fn only_calls_of_the_callers_tools_are_handed_back() {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            description: None,
            input_schema: json!({}),
        };
        let request = ExecutionRequest {
            tools: vec![tool("find")],
            ..ExecutionRequest::sample("m")
        };
        let calls = json!([
            {"id": "1", "name": "find", "args": {"a": 1}}, {"id": "2", "name": "add", "args": {}},
            {"id": null, "name": "find", "args": {}},
        ]);
        let state =
            |kind: &str| State::of(&json!({"messages": [{"type": kind, "tool_calls": calls}]}));
        let handed = handed_back(&state("ai"), &request);
        assert_eq!((handed.len(), handed[0].tool_call_id.as_str()), (1, "1"));
        assert!(handed_back(&state("human"), &request).is_empty());
    }
}
