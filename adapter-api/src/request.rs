//! The request of one execution, as an adapter receives it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::AdapterError;
use crate::folder::{Folder, FolderId};
use crate::options::{ModelOptions, ToolChoice};
use crate::profile::OutputStrategy;
use crate::result::ToolCall;

/// Request of one execution, fully resolved: the prompt is assembled, tools have one format, the output
/// strategy is decided. Unknown fields of later schema versions are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionRequest {
    /// `<dispatchId>/<attempt>`; unique.
    pub execution_id: String,
    /// The caller's id, also the handle passed to `cancel`.
    pub task_id: String,
    /// Agent on whose behalf the execution runs; opaque.
    pub agent_id: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The user message for the agent.
    pub message: String,
    /// Files that belong to the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The assembled instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Model to use; default: the runtime's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Options of the model.
    #[serde(default, skip_serializing_if = "ModelOptions::is_empty")]
    pub options: ModelOptions,
    /// Tools of the caller, converted to one format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Answers to tool calls that the adapter handed back. With [`turns`](Self::turns) this is a further
    /// round of the same attempt, and they answer the last turn. Without, they answer an earlier execution
    /// of the session, and `message` follows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_results: Vec<ToolResult>,
    /// The rounds of this attempt so far, oldest first. The model has already received `message` and all of
    /// them: an adapter whose runtime stores the session sends only `tool_results`; any other sends
    /// everything again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// Time limit in seconds from the start of this attempt; the bridge enforces it too.
    pub timeout_seconds: f64,
    /// Time limit in seconds without an event; the bridge then ends the attempt as `stalled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<f64>,
    /// Requested output strategy; one that the profile declares.
    pub output_strategy: OutputStrategy,
    /// JSON Schema of the output, with `structured`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Path of the output file relative to `workspace.dir`, with `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_file: Option<String>,
    /// Session to continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// True if an interrupted earlier attempt recorded the session: continue where it stopped. The bridge withdraws the
    /// text of that attempt unless the profile has the capability `continuation`.
    #[serde(default)]
    pub resume: bool,
    /// Folder in which the execution may read and write files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// MCP servers by name, as the bridge's configuration defines them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, Value>,
    /// True if the execution fails (`mcp_server_unavailable`) when one of `mcp_servers` does not start.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub mcp_required: bool,
    /// Capabilities that the dispatch requires. The profile had them when it was routed; an adapter whose
    /// profile can change refuses the execution if one is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Remaining budget, over all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The caller's metadata; opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Trace context and workflow ids.
    #[serde(default)]
    pub meta: Meta,
}

/// A file that belongs to the message, such as an image. Given only to adapters with the capability
/// `attachments`. An adapter that cannot use its media type fails with `attachment_not_supported`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Name of the file, without folders; unique in the request.
    pub name: String,
    /// Media type without parameters, in lower case.
    pub media_type: String,
    /// Length of the content.
    pub bytes: u64,
    /// Absolute path of the content. Only the user of the bridge can read it, and only while the execution runs.
    pub path: PathBuf,
}

/// A tool that the model can call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// Name of the tool in calls.
    pub name: String,
    /// Purpose, as described by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
}

/// The answer to a [`ToolCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// Id of the call.
    pub tool_call_id: String,
    /// Name of the tool.
    pub name: String,
    /// Output: a text, or any other JSON value that the tool returned.
    #[serde(default)]
    pub output: Value,
    /// True if `output` describes an error. The run continues: the model receives the error.
    #[serde(default)]
    pub is_error: bool,
}

/// A round of the tool loop: the runtime's output and the answers to its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Text beside the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Calls that the adapter handed back.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// Results, one for each call in the same order.
    #[serde(default)]
    pub tool_results: Vec<ToolResult>,
}

/// The folder of an execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workspace {
    /// Absolute path below a configured root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Identity of the folder when the dispatch was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<FolderId>,
}

/// Remaining budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Cost in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Tokens, input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
}

/// Ids for tracing and for relating an execution to its workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// W3C trace context to continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Id of the dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// Id of the caller's workflow run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Id of the caller's workflow step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    /// Session for signals of what runs in the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signals: Option<SignalSession>,
}

/// Session that programs of an execution send their signals in: `FORG_SESSION_ID`, `FORG_SESSION_KEY` and
/// `FORG_AGENT_URL`, which [`child::Child`](crate::child::Child) sets.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalSession {
    /// Id of the session.
    pub session_id: String,
    /// Key that signals are signed with, in base64; valid while the execution runs.
    pub session_key: String,
    /// Address of the local agent.
    pub agent_url: String,
}

impl std::fmt::Debug for SignalSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalSession")
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_true(value: &bool) -> bool {
    *value
}

impl ExecutionRequest {
    /// Opens the workspace's folder; `None` without one. The error `workspace_unavailable` means that another
    /// folder is at its path now, or none. Files in it are then opened through the [`Folder`], and programs
    /// started in it ([`Program::workspace`](crate::child::Program::workspace)).
    pub fn open_workspace(&self) -> Result<Option<Folder>, AdapterError> {
        let Some(Workspace { dir: Some(dir), id }) = &self.workspace else {
            return Ok(None);
        };
        let failed = |error: std::io::Error| {
            AdapterError::new("workspace_unavailable", format!("{dir}: {error}"))
        };
        let folder = Folder::open(Path::new(dir)).map_err(failed)?;
        let found = folder.id().map_err(failed)?;
        if id.is_some_and(|accepted| accepted != found) {
            let text = "another folder is at this path than when the dispatch was accepted";
            return Err(failed(std::io::Error::other(text)));
        }
        Ok(Some(folder))
    }

    /// The options, with a tool choice only where the model can follow it: with tools, and a forced call in the first
    /// round only, since it would be repeated in each.
    pub fn model_options(&self) -> ModelOptions {
        let mut options = self.options.clone();
        let is_forced = matches!(
            options.tool_choice,
            Some(ToolChoice::Required | ToolChoice::Tool(_))
        );
        if self.tools.is_empty() || is_forced && !self.turns.is_empty() {
            options.tool_choice = None;
        }
        options
    }

    /// A minimal request for tests; set other fields with struct update syntax.
    pub fn sample(message: impl Into<String>) -> Self {
        Self {
            execution_id: "dsp_sample/1".to_owned(),
            task_id: "task-sample".to_owned(),
            agent_id: "agent-sample".to_owned(),
            attempt: 1,
            message: message.into(),
            attachments: Vec::new(),
            system_prompt: None,
            model: None,
            options: ModelOptions::default(),
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
            mcp_required: true,
            requires: Vec::new(),
            budget: None,
            metadata: None,
            meta: Meta::default(),
        }
    }
}
