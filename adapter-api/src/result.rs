//! One execution's outcome as an adapter returns it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `ok` or `error`; never anything between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It ran and returned.
    #[default]
    Ok,
    /// It did not.
    Error,
}

/// What came out. Absent fields are not known; the bridge fills in what it measured itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionResult {
    /// How it ended.
    pub status: Status,
    /// The answer's text; with `error`, what there is of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// With `error`: a text that says what went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With `error`: what a program branches on; see [`AdapterError`](crate::AdapterError).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The adapter's own measure; the bridge reports its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What was used, with `error` too.
    #[serde(default)]
    pub usage: Usage,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Who runs that model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_provider: Option<String>,
    /// In US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Checked by the bridge against `outputSchema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    /// The conversation, to go on with later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Calls of tools that the adapter hands back to the bridge, which sends their events. The bridge
    /// runs those it can and executes again with the results; the caller is given the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// A question to a human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_request: Option<Value>,
    /// With `error`: the same request may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// When the runtime said how long to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl ExecutionResult {
    /// A successful run with this text.
    pub fn ok(output: impl Into<String>) -> Self {
        Self {
            output: Some(output.into()),
            ..Self::default()
        }
    }

    /// A failed run. `code` is what the caller branches on, `message` what a human reads.
    pub fn error(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: Status::Error,
            error: Some(message.into()),
            error_code: Some(code.into()),
            ..Self::default()
        }
    }
}

/// Token counts; `None` is "not known", never 0. `input_tokens` holds the cached ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// What was read, cached or not.
    pub input_tokens: Option<u64>,
    /// What was written.
    pub output_tokens: Option<u64>,
    /// What was thought, where that is counted apart.
    pub thinking_tokens: Option<u64>,
    /// Input and output.
    pub total_tokens: Option<u64>,
    /// What of the input came from a cache.
    pub cache_read_tokens: Option<u64>,
    /// What of the input went into a cache.
    pub cache_write_tokens: Option<u64>,
}

/// A call the runtime wants made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// Relates the answer to the call.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub input: Value,
}
