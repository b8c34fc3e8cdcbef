//! Failure of an execution: code, text and hints, from the bridge or from the adapter.

use forge_adapter_api::{ExecutionResult, Status};
use forge_base::text::is_unseen;
use serde_json::{Value, json};

use super::{Subject, output};

const ERROR_BYTES: usize = 16 * 1024;
/// Longest `details`, as JSON; longer ones are left out.
const DETAILS_BYTES: usize = 16 * 1024;
const CODE_BYTES: usize = 128;
/// Longest `retryAfterMs`: a day. A longer wait is reported as this one.
const RETRY_AFTER_MS: u64 = 86_400_000;

#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: String,
    pub(super) text: String,
    /// The adapter's hints; `None` for a failure that the bridge found.
    pub(super) retryable: Option<bool>,
    pub(super) retry_after_ms: Option<u64>,
    /// Cause as the runtime reported it.
    pub(super) details: Option<Value>,
}

impl Failure {
    pub(super) fn new(code: &str, text: impl Into<String>) -> Self {
        let code = printable(code);
        let mut text = output::clean(text.into());
        text.truncate(text.floor_char_boundary(ERROR_BYTES));
        Self {
            code,
            text,
            retryable: None,
            retry_after_ms: None,
            details: None,
        }
    }

    pub(super) fn hinted(self, retryable: Option<bool>, retry_after_ms: Option<u64>) -> Self {
        Self {
            retryable,
            retry_after_ms: retry_after_ms.map(|wait| wait.min(RETRY_AFTER_MS)),
            ..self
        }
    }

    pub(super) fn with_details(self, details: Option<Value>) -> Self {
        let is_short = |details: &Value| details.to_string().len() <= DETAILS_BYTES;
        Self {
            details: details.filter(is_short),
            ..self
        }
    }

    /// Adds the refusal of the model that the execution was still waiting after, which explains why it took so long.
    pub(super) fn after(self, refusal: Option<&Value>) -> Self {
        let Some(refusal) = refusal else {
            return self;
        };
        let said = ["error", "reason"]
            .into_iter()
            .find_map(|name| refusal[name].as_str());
        let text = format!(
            "{}; the model refused before: {}",
            self.text,
            said.unwrap_or("no reason given")
        );
        Self::new(&self.code, text).with_details(Some(json!({ "lastRefusal": refusal })))
    }
}

pub(super) fn failure_of(result: &ExecutionResult, subject: &Subject<'_>) -> Option<Failure> {
    match result.status {
        Status::Ok => None,
        Status::Error => {
            let code = adapter_code(result.error_code.as_deref(), subject);
            let failure = Failure::new(&code, or_silent(result.error.as_deref()));
            let failure = failure.hinted(result.retryable, result.retry_after_ms);
            Some(failure.with_details(result.details.clone()))
        }
    }
}

/// Error code of the adapter. `cancelled` is replaced, since no client cancelled and callers do not retry it:
/// after the timeout by `timeout`, else by `adapter_error`.
pub(super) fn adapter_code(code: Option<&str>, subject: &Subject<'_>) -> String {
    // Compared in the form in which it is stored.
    let code = printable(code.unwrap_or_default());
    match code.as_str() {
        "cancelled" if subject.elapsed >= subject.dispatch.timeout => "timeout".to_owned(),
        "" | "cancelled" => "adapter_error".to_owned(),
        _ => code,
    }
}

fn printable(code: &str) -> String {
    let mut code: String = code.chars().filter(|c| !is_unseen(*c)).collect();
    code.truncate(code.floor_char_boundary(CODE_BYTES));
    code
}

pub(super) fn or_silent(text: Option<&str>) -> &str {
    let said = text.filter(|text| !text.trim().is_empty());
    said.unwrap_or("the adapter gave no reason")
}
