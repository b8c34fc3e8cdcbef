//! Frames of the gateway's protocol, version 4. Pure.

use std::time::Duration;

use forge_adapter_api::AdapterError;
use serde::Deserialize;
use serde_json::{Value, json};

/// A frame from the gateway.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Frame {
    /// Answer to the request with this id.
    Res {
        id: String,
        #[serde(default)]
        ok: bool,
        #[serde(default)]
        payload: Value,
        error: Option<Refusal>,
    },
    Event {
        event: String,
        #[serde(default)]
        payload: Value,
    },
    /// A kind of later versions.
    #[serde(other)]
    Unknown,
}

/// Error of a request, as the gateway reports it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) details: Value,
    pub(crate) retryable: bool,
    pub(crate) retry_after_ms: Option<u64>,
}

/// Failure of a request.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The connection ended before the answer; the gateway may have carried the request out.
    #[error("the connection to the gateway ended before its answer to {0}")]
    Lost(&'static str),
    /// There is no connection, so nothing was sent.
    #[error("{0}")]
    Unavailable(String),
    #[error("the gateway did not answer {0} within {1:?}")]
    Silent(&'static str, Duration),
    #[error("the request has {0} bytes, more than the {1} that the gateway accepts")]
    TooLarge(usize, usize),
}

impl Failure {
    /// True if only the connection failed, so that a question can be asked again.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Lost(_) | Self::Unavailable(_) | Self::Silent(..)
        )
    }
}

impl Refusal {
    /// Code in the details, more precise than `code`.
    pub(crate) fn detail(&self) -> &str {
        self.details["code"].as_str().unwrap_or_default()
    }

    /// True if another request changed the session at the same time: the run did not begin.
    pub(crate) fn is_race(&self) -> bool {
        self.message.ends_with("Retry the request.")
            || self.message.contains("SESSION_WORK_START_CHANGED")
    }

    /// True if the gateway has no such agent. It has only a text for it.
    pub(crate) fn is_unknown_agent(&self) -> bool {
        let text = self.message.to_lowercase();
        self.code == "INVALID_REQUEST"
            && (text.contains("unknown agent id")
                || text.contains("agent \"") && text.ends_with("not found"))
    }
}

impl From<Failure> for AdapterError {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        let new = |code: &str| Self::new(code, message.clone());
        match failure {
            Failure::Refused(refusal) => {
                let conflict = refusal.details["type"] == "agent_file_conflict"
                    || refusal.message.contains("config changed since last load");
                let error = match (refusal.code.as_str(), refusal.detail()) {
                    _ if conflict => new("conflict"),
                    (_, "MISSING_SCOPE" | "AUTH_TOKEN_MISMATCH")
                    | ("NOT_PAIRED" | "FORBIDDEN", _) => new("unauthenticated"),
                    ("INVALID_REQUEST", _) if refusal.message.starts_with("unknown method") => {
                        new("unsupported_op")
                    }
                    ("INVALID_REQUEST", _) => new("invalid_request"),
                    ("UNAVAILABLE", _) => new("upstream_error").retryable(),
                    _ => new("upstream_error"),
                };
                Self {
                    retryable: error.retryable || refusal.retryable,
                    retry_after_ms: refusal.retry_after_ms,
                    details: (!refusal.details.is_null()).then_some(refusal.details),
                    ..error
                }
            }
            Failure::Lost(_) | Failure::Silent(..) => new("upstream_error").retryable(),
            Failure::Unavailable(_) => new("adapter_unavailable").retryable(),
            Failure::TooLarge(..) => new("invalid_request"),
        }
    }
}

/// A request as text.
pub(crate) fn request(id: &str, method: &str, params: &Value) -> String {
    json!({"type": "req", "id": id, "method": method, "params": params}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(error: Value) -> AdapterError {
        Failure::Refused(serde_json::from_value(error).unwrap()).into()
    }

    #[test]
    fn refusals_have_codes() {
        for (error, code, retryable) in [
            (
                json!({"code": "INVALID_REQUEST", "message": "no"}),
                "invalid_request",
                false,
            ),
            (
                json!({"code": "INVALID_REQUEST", "message": "unknown method: x"}),
                "unsupported_op",
                false,
            ),
            (
                json!({"code": "INVALID_REQUEST", "message": "changed", "details": {"type": "agent_file_conflict"}}),
                "conflict",
                false,
            ),
            (
                json!({"code": "FORBIDDEN", "message": "scope", "details": {"code": "MISSING_SCOPE"}}),
                "unauthenticated",
                false,
            ),
            (
                json!({"code": "UNAVAILABLE", "message": "later", "retryAfterMs": 5}),
                "upstream_error",
                true,
            ),
            (
                json!({"code": "NEW", "message": "?", "retryable": true}),
                "upstream_error",
                true,
            ),
        ] {
            let found = refused(error.clone());
            assert_eq!(
                (found.code.as_str(), found.retryable),
                (code, retryable),
                "{error}"
            );
        }
        let later = refused(json!({"code": "UNAVAILABLE", "message": "later", "retryAfterMs": 5}));
        assert_eq!(later.retry_after_ms, Some(5));
    }

    #[test]
    fn frames_of_later_versions_are_no_error() {
        let frame = serde_json::from_str(r#"{"type":"stats","n":1}"#).unwrap();
        assert!(matches!(frame, Frame::Unknown));
        let frame = serde_json::from_str(r#"{"type":"res","id":"1","ok":true,"new":[]}"#).unwrap();
        assert!(matches!(frame, Frame::Res { ok: true, .. }));
        assert!(serde_json::from_str::<Frame>("[]").is_err());
    }
}
