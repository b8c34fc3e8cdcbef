//! Members of the events of merges.

use serde::{Deserialize, Serialize};

use crate::git::{Decision, Kind};

/// Evidence that one input is in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proved {
    pub branch: String,
    pub commit: String,
    pub by: Evidence,
    /// Number of paths that the input has changed, all of which are in the result or have a decision.
    #[serde(default)]
    pub changed: usize,
}

/// Path of a conflict, with the files of its sides in the folder of the agent; none if it has markers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictedFile {
    pub path: String,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs: Option<String>,
}

/// Path that an agent has decided in a merge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathDecision {
    pub path: String,
    pub kind: Kind,
    pub decision: Decision,
    /// Branch that did not merge, if there was a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Commit that it did not merge into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onto: Option<String>,
    /// Commit of the agent.
    pub commit: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The commit is an ancestor of the result.
    Ancestor,
    /// The result has the same patch.
    Patch,
}
