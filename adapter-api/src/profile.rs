//! What a runtime can do, how it is, and what its library says of itself.

use serde::{Deserialize, Serialize};

use crate::ExecutionAdapter;

/// A self-declared capability profile. Ask it only through [`Profile::supports`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// `streaming`, `session_resume`, `file_io`, `mcp_servers`, `sandboxing`, `subagents`,
    /// `cost_tracking`, `structured_output`, `management`, `native_tools`; unknown names are kept.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Tools the runtime brings itself, such as `Read` or `Bash`.
    #[serde(default)]
    pub native_tools: Vec<String>,
    /// How many executions may run at once; at least 1.
    #[serde(default = "one")]
    pub max_concurrent: u32,
    /// The ways in which it can return output.
    #[serde(default)]
    pub output_strategies: Vec<OutputStrategy>,
    /// What a run costs, roughly.
    pub cost_tier: CostTier,
    /// How soon a run begins to answer, roughly.
    pub latency_profile: LatencyProfile,
}

fn one() -> u32 {
    1
}

impl Profile {
    /// Whether the runtime declares this capability.
    pub fn supports(&self, capability: &str) -> bool {
        self.capabilities
            .iter()
            .any(|declared| declared == capability)
    }
}

/// How the output is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStrategy {
    /// The run writes a file below its workspace; the bridge reads it at the end.
    File,
    /// The answer's text.
    Stream,
    /// JSON that follows a schema.
    Structured,
}

/// What a run costs compared with other runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostTier {
    /// Cheapest.
    Low,
    /// Between.
    Medium,
    /// Dearest.
    High,
}

/// How soon a run begins to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyProfile {
    /// About at once.
    Fast,
    /// Within seconds.
    Moderate,
    /// Nobody can say.
    Variable,
}

/// Whether an adapter can take work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// It can.
    Healthy,
    /// It works in part, or lacks something it needs, such as a key.
    Degraded,
    /// It cannot.
    Offline,
}

/// A status and, where it is not `healthy`, the reason and the cure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Whether work can be accepted.
    pub status: HealthStatus,
    /// Why, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Health {
    /// Nothing to say.
    pub fn healthy() -> Self {
        Self {
            status: HealthStatus::Healthy,
            message: None,
        }
    }

    /// `message` says why and what to do.
    pub fn degraded(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Degraded,
            message: Some(message.into()),
        }
    }

    /// `message` says why and what to do.
    pub fn offline(message: impl Into<String>) -> Self {
        Self {
            status: HealthStatus::Offline,
            message: Some(message.into()),
        }
    }
}

/// What a library says of itself before anything is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The library's name.
    pub name: String,
    /// The adapter's own version.
    pub version: String,
    /// The provider id; `BRIDGE_ADAPTERS` names it.
    pub provider: String,
    /// The JSON schema versions it speaks.
    pub schema: SchemaRange,
    /// `execution@1`, `runtime@1`, …
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Environment variables it wants to see in a child process.
    #[serde(default)]
    pub env: Vec<String>,
    /// `unwind`; a library built with `abort` cannot turn panics into results.
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

/// The versions of the JSON that this SDK speaks.
pub const SCHEMA: SchemaRange = SchemaRange { min: 1, max: 1 };

/// Versions of the JSON, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaRange {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

impl SchemaRange {
    /// Whether this version is among them.
    pub fn contains(self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }
}
