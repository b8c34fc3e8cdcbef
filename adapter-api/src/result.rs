//! The result of one execution, as an adapter returns it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AdapterError, foreign_json};

/// Status of a result: `ok` or `error`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The execution succeeded.
    #[default]
    Ok,
    /// The execution failed.
    Error,
}

/// Result of one execution. An absent field means unknown; the bridge fills in what it measured itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionResult {
    /// Success or failure.
    pub status: Status,
    /// Text of the answer; with `error`, the part received so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// With `error`: description for humans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With `error`: machine-readable code; see [`AdapterError`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Duration as measured by the adapter, in milliseconds; the bridge reports its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Token usage, also with `error`.
    #[serde(default)]
    pub usage: Usage,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Provider of that model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_provider: Option<String>,
    /// Cost in US dollars.
    #[serde(
        default,
        deserialize_with = "foreign_json::read_amount",
        skip_serializing_if = "Option::is_none"
    )]
    pub cost_usd: Option<f64>,
    /// Structured output; the bridge validates it against `outputSchema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    /// Session id with which a later request can continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Tool calls that the adapter hands back to the bridge, which emits their events. The bridge runs
    /// those it can and executes again with the results; the caller receives the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Files that the run produced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_files: Vec<OutputFile>,
    /// A question to a human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_request: Option<Value>,
    /// With `error`: true if the same request can succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// Wait that the runtime asked for, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// With `error`: further details from the runtime, at most 16 KiB of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// A failed result, for an adapter that has more to return than the error: output so far, usage, a session.
impl From<AdapterError> for ExecutionResult {
    fn from(error: AdapterError) -> Self {
        Self {
            retryable: Some(error.retryable),
            retry_after_ms: error.retry_after_ms,
            details: error.details,
            ..Self::error(error.code, error.message)
        }
    }
}

impl ExecutionResult {
    /// A successful result with this text.
    pub fn ok(output: impl Into<String>) -> Self {
        Self {
            output: Some(output.into()),
            ..Self::default()
        }
    }

    /// A failed result; `code` for programs, `message` for humans.
    pub fn error(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: Status::Error,
            error: Some(message.into()),
            error_code: Some(code.into()),
            ..Self::default()
        }
    }
}

/// Token counts. `None` means unknown, never 0. `input_tokens` includes cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Input tokens, cached or not.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub input_tokens: Option<u64>,
    /// Output tokens.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub output_tokens: Option<u64>,
    /// Thinking tokens, if counted separately.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub thinking_tokens: Option<u64>,
    /// Input and output tokens together.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub total_tokens: Option<u64>,
    /// Input tokens read from a cache.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub cache_read_tokens: Option<u64>,
    /// Input tokens written to a cache.
    #[serde(deserialize_with = "foreign_json::read_count")]
    pub cache_write_tokens: Option<u64>,
}

impl Usage {
    /// The sum of each count; a count that only one of them knows is that one's.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self {
            input_tokens: sum(self.input_tokens, other.input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
            thinking_tokens: sum(self.thinking_tokens, other.thinking_tokens),
            total_tokens: sum(self.total_tokens, other.total_tokens),
            cache_read_tokens: sum(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: sum(self.cache_write_tokens, other.cache_write_tokens),
        }
    }
}

/// A file that a run produced. The bridge stores its content with the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputFile {
    /// Name of the file; the bridge removes its folders, and makes it unique in the result.
    pub name: String,
    /// Media type; default: `application/octet-stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Content, or its place.
    #[serde(flatten)]
    pub content: FileContent,
}

/// Content of an [`OutputFile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FileContent {
    /// The content in base64.
    Data(String),
    /// A path relative to `workspace.dir`. The bridge reads the file when the execution has ended.
    Path(PathBuf),
}

/// A tool call requested by the runtime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// Id of the call, repeated in its result.
    pub tool_call_id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments.
    pub input: Value,
}
