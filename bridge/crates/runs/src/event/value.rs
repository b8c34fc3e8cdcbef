//! Values of members of events.

use serde::{Deserialize, Serialize};

/// Text or thinking of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentType {
    Text,
    Thinking,
}

/// Reason for which a run is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldReason {
    User,
    /// A change request waits for its approval.
    Cr,
}

/// Effect of a pause on an agent that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseEffect {
    /// The agent was asked to end with what it has.
    WrappingUp,
    /// The agent was cancelled.
    Cancelled,
    /// The adapter takes no messages; the agent runs to its end.
    Unsupported,
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskStatus {
    Pending,
    Running,
    Done,
    MergeReady,
    Merged,
    Failed,
    Stale,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    Completed,
    Failed,
    Cancelled,
}

/// Kind of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArtifactType {
    Spec,
    Task,
    Walkthrough,
    Cr,
    Dag,
}

impl ArtifactType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Task => "task",
            Self::Walkthrough => "walkthrough",
            Self::Cr => "cr",
            Self::Dag => "dag",
        }
    }
}
