//! Capability profile and health of a runtime, and the manifest of its library.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ExecutionAdapter;

/// A self-declared capability profile. Query it only through [`Profile::supports`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// `streaming`, `session_resume`, `continuation` (of an interrupted attempt, without repeating its text),
    /// `file_io`, `mcp_servers`, `sandboxing`, `subagents`, `cost_tracking`, `structured_output`, `management`,
    /// `native_tools`, `attachments`; unknown names are kept.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Built-in tools of the runtime, such as `Read` or `Bash`.
    #[serde(default)]
    pub native_tools: Vec<String>,
    /// Maximum number of concurrent executions; at least 1, the default.
    #[serde(default = "one")]
    pub max_concurrent: u32,
    /// Supported output strategies.
    #[serde(default)]
    pub output_strategies: Vec<OutputStrategy>,
    /// Names of the [`ModelOptions`](crate::ModelOptions) that the runtime honours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Approximate cost of an execution.
    pub cost_tier: CostTier,
    /// Approximate time until an execution begins to answer.
    pub latency_profile: LatencyProfile,
}

fn one() -> u32 {
    1
}

impl Profile {
    /// True if the runtime declares this capability.
    pub fn supports(&self, capability: &str) -> bool {
        self.capabilities
            .iter()
            .any(|declared| declared == capability)
    }
}

/// Method of capturing the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStrategy {
    /// The execution writes a file below its workspace; the bridge reads it at the end.
    File,
    /// The answer's text.
    Stream,
    /// JSON that follows a schema.
    Structured,
}

/// Cost of an execution relative to other runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostTier {
    /// Low cost.
    Low,
    /// Medium cost.
    Medium,
    /// High cost.
    High,
}

/// Time until an execution begins to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyProfile {
    /// Almost immediately.
    Fast,
    /// Within seconds.
    Moderate,
    /// Unpredictable.
    Variable,
}

/// Ability of an adapter to accept work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Accepts work.
    Healthy,
    /// Works in part, or lacks something it needs, such as a key.
    Degraded,
    /// Accepts no work.
    Offline,
}

/// A health status; if not `healthy`, with the reason and the fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The status.
    pub status: HealthStatus,
    /// The reason and the fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// An object with figures that change often, up to 4 KiB: a change of these alone is no event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl Health {
    /// Healthy, without a message.
    pub fn healthy() -> Self {
        Self {
            status: HealthStatus::Healthy,
            message: None,
            details: None,
        }
    }

    /// Degraded; `message` gives the reason and the fix.
    pub fn degraded(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Degraded,
            message: Some(message.into()),
            details: None,
        }
    }

    /// Offline; `message` gives the reason and the fix.
    pub fn offline(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Offline,
            message: Some(message.into()),
            details: None,
        }
    }
}

/// Self-description of a library, read before an instance is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The library's name.
    pub name: String,
    /// The adapter's own version.
    pub version: String,
    /// The provider id; `BRIDGE_ADAPTERS` names it.
    pub provider: String,
    /// Supported JSON schema versions.
    pub schema: SchemaRange,
    /// `execution@1`, `runtime@1`, …
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Environment variables passed to the library when it runs in a child process.
    #[serde(default)]
    pub env: Vec<String>,
    /// Panic strategy; must be `unwind`, since a library built with `abort` cannot turn panics into
    /// results.
    #[serde(default)]
    pub panic: String,
}

impl Manifest {
    /// The manifest of an adapter type.
    pub fn of<A: ExecutionAdapter>() -> Self {
        let managed = A::INTERFACES
            .iter()
            .map(|interface| interface.declaration().to_owned());
        Self {
            name: A::NAME.to_owned(),
            version: A::VERSION.to_owned(),
            provider: A::NAME.to_owned(),
            schema: SCHEMA,
            interfaces: std::iter::once("execution@1".to_owned())
                .chain(managed)
                .collect(),
            env: A::ENV.iter().map(|&name| name.to_owned()).collect(),
            panic: "unwind".to_owned(),
        }
    }
}

/// The JSON schema versions that this SDK supports.
pub const SCHEMA: SchemaRange = SchemaRange { min: 1, max: 1 };

/// Range of JSON schema versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaRange {
    /// Oldest version.
    pub min: u32,
    /// Newest version.
    pub max: u32,
}

impl SchemaRange {
    /// True if the range includes this version.
    pub fn contains(self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }
}
