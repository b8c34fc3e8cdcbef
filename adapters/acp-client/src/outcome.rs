//! Converts the end of a run to the bridge's result.

use forge_adapter_api::{AdapterError, ExecutionResult};
use forge_adapter_transport::json_rpc::RpcError;
use serde_json::Value;

/// JSON-RPC error code of an agent that needs a login.
pub(crate) const AUTH_REQUIRED: i64 = -32000;
const NOT_FOUND: i64 = -32002;
const INVALID_PARAMS: i64 = -32602;

/// Prefixes of an HTTP status in agents' error texts.
const BEFORE_A_STATUS: [&str; 6] = [
    "HTTP ",
    "status ",
    "status code ",
    "Error code: ",
    "API Error: ",
    "Status: ",
];

/// Reason for the end of the conversation.
#[derive(Debug)]
pub(crate) enum End {
    /// The agent's answer to the prompt.
    Turn(Value),
    Cancelled,
    /// The agent refused the request of this method.
    Refused(&'static str, RpcError),
    /// The session does not exist or cannot be resumed.
    NoSession(String),
    /// The dispatch needs a capability that the agent lacks.
    Impossible(String),
    /// The agent would act without asking, against `permission = "deny"`.
    Unguarded(String),
    /// An MCP server of the dispatch is not available.
    NoServer(String),
    /// The agent ended, or timed out, without an answer.
    Lost(String),
    /// The agent violated the protocol.
    Garbled(String),
}

pub(crate) fn outcome(end: End, failure: Option<&str>) -> ExecutionResult {
    match end {
        End::Turn(answer) => match failure {
            Some(text) => failed(ExecutionResult::error("adapter_error", text), text),
            None => of_turn(&answer),
        },
        End::Cancelled => ExecutionResult::error("cancelled", "cancelled"),
        End::Refused(method, error) => refused(method, &error),
        End::NoSession(text) => ExecutionResult::error("session_not_found", text),
        End::Impossible(text) => ExecutionResult::error("invalid_request", text),
        End::Unguarded(text) => ExecutionResult::error("blocked_by_policy", text),
        End::NoServer(text) => ExecutionResult::error("mcp_server_unavailable", text),
        End::Lost(text) => ExecutionResult {
            retryable: Some(true),
            ..ExecutionResult::error("adapter_crashed", text)
        },
        End::Garbled(text) => ExecutionResult::error("protocol_violation", text),
    }
}

fn of_turn(answer: &Value) -> ExecutionResult {
    match answer["stopReason"].as_str() {
        Some("end_turn") => ExecutionResult::default(),
        Some("cancelled") => ExecutionResult::error("cancelled", "the agent cancelled its turn"),
        Some("refusal") => ExecutionResult::error("refusal", "the agent refused to continue"),
        Some("max_tokens") => {
            ExecutionResult::error("max_tokens", "the model's limit of tokens was reached")
        }
        Some("max_turn_requests") => {
            ExecutionResult::error("max_turns", "the agent's limit of model calls was reached")
        }
        Some(other) => {
            ExecutionResult::error("adapter_error", format!("the agent stopped: {other}"))
        }
        None => ExecutionResult::error(
            "protocol_violation",
            "the agent ended its turn without a reason",
        ),
    }
}

fn refused(method: &str, error: &RpcError) -> ExecutionResult {
    let mut text = error.message.clone();
    // Most agents put the cause into `data`, behind "Internal error".
    let more = match &error.data {
        Value::String(more) => Some(more.as_str()),
        data => ["details", "message", "error"]
            .iter()
            .find_map(|name| data[*name].as_str()),
    };
    if let Some(more) = more.filter(|more| !text.contains(*more)) {
        text = format!("{text}: {more}");
    }
    let result = |code: &str| ExecutionResult::error(code, format!("{method}: {text}"));
    match error.code {
        AUTH_REQUIRED => result("unauthenticated"),
        NOT_FOUND if method == "session/load" => result("session_not_found"),
        INVALID_PARAMS => result("invalid_request"),
        _ => match error.data["errorName"].as_str() {
            Some("ProviderAuthError") => result("unauthenticated"),
            // OpenCode omits the status and has retried already where that made sense.
            Some("APIError") => failed(result("upstream_error"), &text),
            // Gemini CLI's error codes are those of HTTP.
            Some(_) | None => failed(
                result("adapter_error"),
                &format!("{text} (status {})", error.code),
            ),
        },
    }
}

/// Replaces the code by that of the HTTP status in the text, if any.
fn failed(result: ExecutionResult, text: &str) -> ExecutionResult {
    let (code, retryable) = match status_in(text) {
        Some(401 | 403) => ("unauthenticated", false),
        Some(429) => ("rate_limited", true),
        Some(400..=499) => ("invalid_request", false),
        Some(_) => ("upstream_error", true),
        None => return result,
    };
    ExecutionResult {
        error_code: Some(code.to_owned()),
        retryable: Some(retryable),
        ..result
    }
}

fn status_in(text: &str) -> Option<u16> {
    let status = |rest: &str| rest.get(..3)?.parse().ok();
    BEFORE_A_STATUS
        .iter()
        .filter_map(|mark| text.find(mark).map(|at| &text[at + mark.len()..]))
        .filter_map(status)
        .find(|status| (400..=599).contains(status))
}

/// Returns true if the text is Hermes's report of an unreachable model; valid for a turn without counts.
pub(crate) fn is_failure(text: &str) -> bool {
    text.starts_with("API call failed after")
        || (text.starts_with("HTTP ") && status_in(text).is_some())
}

/// Error of an agent that could not be started.
pub(crate) fn unavailable(text: String) -> AdapterError {
    AdapterError::new("adapter_unavailable", text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_end_has_its_code() {
        let error = |code, message: &str, data| RpcError {
            code,
            message: message.to_owned(),
            data,
        };
        let turn = |reason: &str| End::Turn(json!({ "stopReason": reason }));
        let prompt = |error| End::Refused("session/prompt", error);
        let cases = [
            (turn("end_turn"), None, None),
            (turn("cancelled"), Some("cancelled"), None),
            (turn("refusal"), Some("refusal"), None),
            (turn("max_tokens"), Some("max_tokens"), None),
            (turn("max_turn_requests"), Some("max_turns"), None),
            (turn("of a later version"), Some("adapter_error"), None),
            (End::Turn(Value::Null), Some("protocol_violation"), None),
            (
                End::Lost("gone".to_owned()),
                Some("adapter_crashed"),
                Some(true),
            ),
            (
                End::Refused(
                    "session/new",
                    error(-32000, "Authentication required", Value::Null),
                ),
                Some("unauthenticated"),
                None,
            ),
            (
                prompt(error(
                    -32603,
                    "Internal error: API Error: 529 overloaded",
                    Value::Null,
                )),
                Some("upstream_error"),
                Some(true),
            ),
            (
                prompt(error(
                    -32603,
                    "Internal error",
                    json!({"details": "HTTP 429: slow down"}),
                )),
                Some("rate_limited"),
                Some(true),
            ),
            (
                prompt(error(
                    -32603,
                    "Internal error: bad",
                    json!({"errorName": "APIError"}),
                )),
                Some("upstream_error"),
                None,
            ),
            (
                prompt(error(-32603, "Internal error", Value::Null)),
                Some("adapter_error"),
                None,
            ),
            (
                prompt(error(-32602, "no", Value::Null)),
                Some("invalid_request"),
                None,
            ),
        ];
        for (end, code, retryable) in cases {
            let said = format!("{end:?}");
            let result = outcome(end, None);
            assert_eq!(result.error_code.as_deref(), code, "{said}");
            assert_eq!(result.retryable, retryable, "{said}");
        }
    }

    #[test]
    fn a_failure_that_is_said_as_text_is_an_error() {
        for (text, code, retryable) in [
            ("HTTP 400: no", "invalid_request", Some(false)),
            ("HTTP 401: no", "unauthenticated", Some(false)),
            (
                "API call failed after 3 retries: HTTP 429: x",
                "rate_limited",
                Some(true),
            ),
            (
                "API call failed after 3 retries: HTTP 500: x",
                "upstream_error",
                Some(true),
            ),
            (
                "API call failed after 3 retries: timed out",
                "adapter_error",
                None,
            ),
        ] {
            assert!(is_failure(text), "{text}");
            let result = outcome(End::Turn(json!({"stopReason": "end_turn"})), Some(text));
            assert_eq!(result.error_code.as_deref(), Some(code), "{text}");
            assert_eq!(result.retryable, retryable, "{text}");
        }
        for text in ["HTTP is a protocol", "HTTP 200: fine", "pong"] {
            assert!(!is_failure(text), "{text}");
        }
    }
}
