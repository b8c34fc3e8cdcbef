//! One execution as an adapter receives it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::profile::OutputStrategy;
use crate::result::ToolCall;

/// Everything is resolved: the prompt is assembled, tools have one shape, the output strategy is
/// decided. Unknown fields of later schema versions are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionRequest {
    /// `<dispatchId>/<attempt>`; unique.
    pub execution_id: String,
    /// The caller's id, and the handle that `cancel` is given.
    pub task_id: String,
    /// The agent on whose behalf it runs; opaque.
    pub agent_id: String,
    /// 1 for the first.
    pub attempt: u32,
    /// What is asked of the agent.
    pub message: String,
    /// The assembled instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Which model to use; absent: the runtime's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tools of the caller, in one shape whatever they came as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Answers to tool calls that the adapter handed back. With [`turns`](Self::turns) this is a
    /// further round of the same attempt, and they answer the last turn. Without, they answer an
    /// earlier execution of the session, and `message` comes after them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_results: Vec<ToolResult>,
    /// The rounds of this attempt so far, oldest first. `message` and all of them have been said: an
    /// adapter whose runtime keeps the session says only `tool_results`, another says everything again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// Seconds from the start of this attempt; the bridge enforces it too.
    pub timeout_seconds: f64,
    /// With no event for so long the bridge ends it as `stalled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<f64>,
    /// How the output is wanted; one that the profile declares.
    pub output_strategy: OutputStrategy,
    /// A JSON Schema, with `structured`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Relative to `workspace.dir`, with `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    /// The conversation to go on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The session was recorded by an earlier attempt that was interrupted: go on where it stopped.
    #[serde(default)]
    pub resume: bool,
    /// Where it may read and write files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// MCP servers by name, as the bridge's configuration defines them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, Value>,
    /// What is left to spend, over all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The caller's own; opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Where it belongs.
    #[serde(default)]
    pub meta: Meta,
}

/// A tool the caller offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// What a call names.
    pub name: String,
    /// What it is for, in the words of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema of the arguments.
    pub input_schema: Value,
}

/// The answer to a [`ToolCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The call's own.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// What it gave: a text, or what the tool has instead.
    #[serde(default)]
    pub output: Value,
    /// `output` says what went wrong. The run goes on: the model is to be told.
    #[serde(default)]
    pub is_error: bool,
}

/// One round of the tool loop: what the runtime said, and what it was answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// The text beside the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The calls that were handed back.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// One for each call, in the same order.
    #[serde(default)]
    pub tool_results: Vec<ToolResult>,
}

/// The folder of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workspace {
    /// An absolute path below a configured root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

/// What is left to spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// In US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
}

/// For tracing and for relating a run to its workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// The W3C trace context to go on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The bridge's id of the dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// The caller's workflow run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The caller's workflow step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
}

impl ExecutionRequest {
    /// A request with nothing but a message, for tests: fill in the rest with `..`.
    pub fn sample(message: impl Into<String>) -> Self {
        Self {
            execution_id: "dsp_sample/1".to_owned(),
            task_id: "task-sample".to_owned(),
            agent_id: "agent-sample".to_owned(),
            attempt: 1,
            message: message.into(),
            system_prompt: None,
            model: None,
            tools: Vec::new(),
            tool_results: Vec::new(),
            turns: Vec::new(),
            timeout_seconds: 30.0,
            idle_timeout_seconds: None,
            output_strategy: OutputStrategy::Stream,
            output_schema: None,
            output_file: None,
            session_id: None,
            resume: false,
            workspace: None,
            mcp_servers: BTreeMap::new(),
            budget: None,
            metadata: None,
            meta: Meta::default(),
        }
    }
}
