//! The one error that crosses the boundary.

use serde::{Deserialize, Serialize};

/// Why an adapter could not do what was asked. `code` is an open set; the bridge passes it on as the
/// result's `errorCode`. Codes with a meaning to the bridge: `cancelled`, `timeout`,
/// `session_not_found`, `input_required`, `unsupported_op`, `unauthenticated`, `rate_limited`,
/// `upstream_error`, `invalid_request`, `invalid_config`, `internal`, `adapter_panic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct AdapterError {
    /// What a program branches on.
    pub code: String,
    /// What a human reads: what was wrong, where, what to do.
    pub message: String,
    /// Whether the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// When the runtime said how long to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whatever else the runtime said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

impl AdapterError {
    /// An error that would come again.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            retry_after_ms: None,
            details: None,
        }
    }

    /// The same request may succeed later.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// The call was cancelled.
    pub fn cancelled() -> Self {
        Self::new("cancelled", "cancelled")
    }
}
