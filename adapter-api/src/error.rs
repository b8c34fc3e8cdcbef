//! The error type that crosses the boundary.

use serde::{Deserialize, Serialize};

/// Failure of an adapter call. `code` is an open set; the bridge passes it on as the result's `errorCode`.
/// Codes with a meaning to the bridge: `cancelled`, `timeout`, `session_not_found`, `input_required`,
/// `unsupported_op`, `unauthenticated`, `rate_limited`, `upstream_error`, `invalid_request`,
/// `invalid_config`, `not_found`, `conflict` (the entry was changed by others since it was read), `internal`,
/// `adapter_panic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct AdapterError {
    /// Machine-readable code.
    pub code: String,
    /// Text for humans: what was wrong, in which place, what to do.
    pub message: String,
    /// True if the same request can succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// Wait that the runtime asked for, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Further details from the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

impl AdapterError {
    /// An error that is not retryable.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            retry_after_ms: None,
            details: None,
        }
    }

    /// Marks the error as retryable.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// The error of a cancelled call.
    pub fn cancelled() -> Self {
        Self::new("cancelled", "cancelled")
    }
}
