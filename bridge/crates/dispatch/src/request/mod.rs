//! The validated request of a dispatch: stored, read back for execution and passed from stage to stage.
//! Created only by `validate`, so later stages do not check it again. Holds no secret.
//!
//! Its JSON is a contract inside the bridge: deliveries read `callback.retry` and
//! `traceparent` from the stored text, and `bearer`, `secret` and `headers` from the sealed one.

mod wire;

use std::collections::BTreeMap;
use std::mem;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::folder::FolderId;
use forge_adapter_api::request::{Budget, Tool, ToolResult};
use forge_adapter_api::{CostTier, LatencyProfile, ModelOptions, OutputStrategy};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use forge_base::id::DispatchId;
use forge_base::time;
use forge_external::Identity;
use forge_net::backoff::Policy;
use forge_store::record;

pub use self::wire::to_wire;
use super::trace::Trace;

/// Default of `outputFile`.
pub const DEFAULT_OUTPUT_FILE: &str = "output.md";

/// A validated and normalised request: tools have one shape, names one spelling, times are parsed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DispatchRequest {
    pub task_id: String,
    pub agent_id: String,
    pub message: String,
    /// Files that belong to the message, with distinct names.
    #[serde(default)]
    pub attachments: Vec<Attachment>,
    /// `None` if the caller requested no callback.
    #[serde(default)]
    pub callback: Option<Callback>,
    /// Pins the adapter.
    #[serde(default)]
    pub provider: Option<String>,
    #[serde(default)]
    pub system_prompt: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub options: ModelOptions,
    /// Timeout of each attempt, from its start.
    #[serde(rename = "timeoutSeconds", with = "seconds")]
    pub timeout: Duration,
    /// Time without an event after which the attempt ends as `stalled`.
    #[serde(rename = "idleTimeoutSeconds", with = "optional_seconds", default)]
    pub idle_timeout: Option<Duration>,
    /// Longest time in the queue, from the later of acceptance and `not_before`.
    #[serde(rename = "queueTimeoutSeconds", with = "seconds")]
    pub queue_timeout: Duration,
    #[serde(default)]
    pub tools: Vec<Tool>,
    /// Results of the tool calls that an earlier dispatch of the session returned; each call once.
    #[serde(default)]
    pub tool_results: Vec<ToolResult>,
    /// Names of configured MCP servers, each once.
    #[serde(default)]
    pub mcp_servers: Vec<String>,
    /// Entries of external services that are tools, in the form of `EntryName`.
    #[serde(default)]
    pub external_tools: Vec<String>,
    /// Identity of the submitter; only if the dispatch uses external services.
    #[serde(default)]
    pub caller: Option<Identity>,
    #[serde(default)]
    pub workspace: Option<Workspace>,
    /// Identity of `workspace.dir` when the dispatch was accepted.
    #[serde(default)]
    pub workspace_id: Option<FolderId>,
    /// Output strategy that the caller requires.
    #[serde(default)]
    pub output_strategy: Option<OutputStrategy>,
    /// A JSON Schema that compiles.
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// Relative to `workspace.dir`, without `..`.
    #[serde(default)]
    pub output_file: Option<String>,
    #[serde(default)]
    pub session_id: Option<String>,
    /// Capabilities that the adapter must declare.
    #[serde(default)]
    pub requires: Vec<String>,
    #[serde(default)]
    pub preferences: Preferences,
    /// −10 to 10; higher starts first.
    #[serde(default)]
    pub priority: i8,
    #[serde(default)]
    pub recovery: Recovery,
    /// At least one of its members is set.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// User and project that signal rules count the dispatch for.
    #[serde(default)]
    pub user_id: Option<String>,
    #[serde(default)]
    pub project_id: Option<String>,
    /// Name of the token that it was submitted with: the user, if none is given.
    #[serde(default)]
    pub submitter: Option<String>,
    /// A step of a run, whose folder is one of its checkouts.
    #[serde(default)]
    pub is_step: bool,
    #[serde(default)]
    pub run_id: Option<String>,
    #[serde(default)]
    pub step_id: Option<String>,
    #[serde(default)]
    pub gateway_id: Option<String>,
    /// Earlier dispatch that the caller repeats with this one.
    #[serde(default)]
    pub retry_of: Option<DispatchId>,

    #[serde(default)]
    pub not_before: Option<Timestamp>,
    /// Latest end of the queue time and of each attempt; later than `not_before`.
    #[serde(default)]
    pub deadline: Option<Timestamp>,
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub trace: Trace,
}

impl DispatchRequest {
    /// Recovery of an attempt that has recorded this session. A step of a run without a session is not repeated in a
    /// folder that an earlier attempt has changed: the run begins again in a new one.
    pub(crate) fn recovery_in(&self, session: Option<&str>) -> Recovery {
        let has_session = session.is_some() || self.session_id.is_some();
        match self.recovery {
            Recovery::Resume if self.is_step && !has_session => Recovery::Fail,
            recovery => recovery,
        }
    }

    /// Parses a stored request. An error means that it was written by a newer version or is damaged.
    pub fn from_record(stored: &RawValue) -> Result<Self, serde_json::Error> {
        serde_json::from_str(stored.get())
    }

    /// Stand-in for a stored request that cannot be read: enough to end the dispatch with a result.
    pub fn unreadable(record: &record::DispatchRecord) -> Self {
        Self {
            task_id: record.task_id.clone(),
            agent_id: record.agent_id.clone(),
            message: String::new(),
            attachments: Vec::new(),
            callback: None,
            provider: None,
            system_prompt: None,
            model: None,
            options: ModelOptions::default(),
            timeout: Duration::ZERO,
            idle_timeout: None,
            queue_timeout: Duration::ZERO,
            not_before: record.not_before,
            deadline: None,
            tools: Vec::new(),
            tool_results: Vec::new(),
            mcp_servers: Vec::new(),
            external_tools: Vec::new(),
            caller: None,
            workspace: None,
            workspace_id: None,
            output_strategy: None,
            output_schema: None,
            output_file: None,
            session_id: None,
            requires: Vec::new(),
            preferences: Preferences::default(),
            priority: record.priority,
            recovery: Recovery::Fail,
            budget: None,
            user_id: None,
            project_id: None,
            submitter: None,
            is_step: false,
            run_id: record.run_id.clone(),
            step_id: None,
            gateway_id: None,
            retry_of: None,
            metadata: None,
            trace: Trace {
                trace_id: record.trace_id.clone(),
                ..Trace::none()
            },
        }
    }

    /// User that signal rules count the dispatch for.
    pub fn user_id(&self) -> Option<&str> {
        self.user_id.as_deref().or(self.submitter.as_deref())
    }

    /// Moves out the parts that only the adapter needs.
    pub fn take_prompt(&mut self) -> Prompt {
        let files = self.workspace.as_mut().map(|w| mem::take(&mut w.files));
        Prompt {
            message: mem::take(&mut self.message),
            system_prompt: self.system_prompt.take(),
            files: files.unwrap_or_default(),
            tools: mem::take(&mut self.tools),
            tool_results: mem::take(&mut self.tool_results),
        }
    }

    /// Latest time of the start; a dispatch still queued after it ends as `queue_timeout`.
    pub fn start_by(&self, accepted_at: Timestamp) -> Timestamp {
        let from = self.not_before.map_or(accepted_at, |t| t.max(accepted_at));
        let wait = SignedDuration::try_from(self.queue_timeout).unwrap_or(SignedDuration::MAX);
        let by = from.checked_add(wait).unwrap_or(Timestamp::MAX);
        self.deadline.map_or(by, |deadline| by.min(deadline))
    }

    /// Time that an attempt starting now has: the timeout, or less if the deadline is nearer. Zero after the deadline.
    pub fn time_left(&self, now: Timestamp) -> Duration {
        let left = self.deadline.map(|deadline| time::left(now, deadline));
        left.map_or(self.timeout, |left| left.min(self.timeout))
    }

    /// Retry policy of the callback.
    pub fn retry(&self) -> Policy {
        let callback = self.callback.as_ref();
        callback.map(|callback| callback.retry).unwrap_or_default()
    }

    /// Path of the output file, relative to the workspace folder.
    pub fn output_file(&self) -> &str {
        self.output_file.as_deref().unwrap_or(DEFAULT_OUTPUT_FILE)
    }

    /// The folder that the run works in.
    pub fn workspace_dir(&self) -> Option<&PathBuf> {
        self.workspace.as_ref().and_then(|w| w.dir.as_ref())
    }
}

/// Parts of a request that only the adapter needs; dropped from memory once the adapter is called.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub message: String,
    pub system_prompt: Option<String>,
    pub files: Vec<File>,
    pub tools: Vec<Tool>,
    pub tool_results: Vec<ToolResult>,
}

/// Receiver of the result and the retry policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callback {
    pub url: String,
    /// Scheme, host and port, normalised.
    pub origin: String,
    #[serde(default)]
    pub retry: Policy,
}

/// A file that belongs to the message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Without folders.
    pub name: String,
    /// Without parameters, in lower case.
    pub media_type: String,
    pub source: Source,
}

/// Place of an attachment's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// Sent with the request, and stored as [`Content::Attachment`](record::Content::Attachment).
    Stored {
        bytes: usize,
        /// Hash of the content, in hexadecimal.
        sha256: String,
    },
    /// Relative to `workspace.dir`, without `..`; read when an attempt starts.
    Path(String),
    /// Fetched when an attempt starts.
    Url(String),
}

/// The folder of the run, and the prompt files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workspace {
    /// Canonical, below a configured root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
}

/// A file that becomes part of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Relative, without `..`.
    pub path: String,
    pub content: String,
}

/// Preferences among capable adapters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preferences {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_tier: Option<CostTier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_profile: Option<LatencyProfile>,
    /// Best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
}

impl Preferences {
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// Policy for an attempt that is interrupted by a crash or a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// The result is `interrupted`.
    #[default]
    Fail,
    /// Starts a new attempt.
    Retry,
    /// Starts a new attempt with the recorded session.
    Resume,
}

/// Secrets removed from the body before it is stored; stored only sealed.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The callback's bearer token.
    pub bearer: Option<SecretString>,
    /// The callback's signing secret, `whsec_` and base64.
    pub secret: Option<SecretString>,
    /// Headers of the callback, by lower-case name. Secret because they often hold an API key.
    pub headers: BTreeMap<String, SecretString>,
}

/// Plain text that is sealed.
#[derive(Serialize)]
struct Exposed<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bearer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
}

impl Secrets {
    /// The JSON object to seal; `None` without secrets.
    pub fn to_seal(&self) -> Option<SecretSlice<u8>> {
        if self.bearer.is_none() && self.secret.is_none() && self.headers.is_empty() {
            return None;
        }
        let headers = self.headers.iter();
        let exposed = Exposed {
            headers: headers
                .map(|(name, value)| (name.as_str(), value.expose_secret()))
                .collect(),
            bearer: self.bearer.as_ref().map(|s| s.expose_secret()),
            secret: self.secret.as_ref().map(|s| s.expose_secret()),
        };
        let bytes = serde_json::to_vec(&exposed).expect("texts are always JSON");
        Some(bytes.into())
    }
}

/// Durations as fractional seconds.
pub(super) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(d.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

pub(super) mod optional_seconds {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(
        d: &Option<Duration>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        d.map(|d| d.as_secs_f64()).serialize(s)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(d)?
            .map(|s| Duration::try_from_secs_f64(s).map_err(serde::de::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
pub(crate) mod tests;
