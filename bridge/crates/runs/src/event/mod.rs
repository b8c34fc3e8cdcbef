//! Events of a run, with exactly the names and members of the reference. The state of a run is a fold of them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use forge_adapter_api::request::Budget;
use forge_base::event::NewEvent;

use crate::files::FileChanges;
use crate::plan::{AgentType, Edge, TaskDocument};
use crate::wait::Cause;

mod merge;
mod value;

pub use merge::{ConflictedFile, Evidence, PathDecision, Proved};
pub use value::{ArtifactType, ContentType, End, HoldReason, PauseEffect, TaskStatus};

/// An event with its time and the attempt that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub at: Timestamp,
    /// Number of the task's attempt; 0 if the event belongs to none.
    pub attempt: u32,
    pub event: Event,
}

/// Last event of every run.
pub const RUN_COMPLETED: &str = "run.completed";

/// Types that the public design names; `events=core` leaves out all others.
const CORE: [&str; 20] = [
    "run.started",
    "run.paused",
    RUN_COMPLETED,
    "captain.message",
    "captain.tool_call",
    "captain.tool_result",
    "plan.finalized",
    "task.scheduled",
    "task.started",
    "task.heartbeat",
    "task.progress",
    "task.completed",
    "task.failed",
    "tool.call",
    "tool.result",
    "artifact.written",
    "branch.pushed",
    "refinery.started",
    "refinery.merged",
    "cr.emitted",
];

/// True if the public design names this type.
pub fn is_core(kind: &str) -> bool {
    CORE.contains(&kind)
}

/// Type and data of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all_fields = "camelCase")]
pub enum Event {
    #[serde(rename = "run.started")]
    RunStarted { repo_url: String },
    /// The repository was fetched; attempts start at this commit.
    #[serde(rename = "run.attached")]
    RunAttached {
        #[serde(rename = "ref")]
        reference: String,
        commit: String,
    },
    #[serde(rename = "run.executing")]
    RunExecuting {},
    #[serde(rename = "run.paused")]
    RunPaused {
        reason: HoldReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cr_id: Option<String>,
    },
    #[serde(rename = "run.resumed")]
    RunResumed {
        reason: HoldReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cr_id: Option<String>,
    },
    /// A client requested the end of the run.
    #[serde(rename = "run.cancelling")]
    RunCancelling {},
    /// The repository or the Captain cannot be reached; the next try is at `until`.
    #[serde(rename = "run.waiting")]
    RunWaiting {
        cause: Cause,
        reason: String,
        #[serde(serialize_with = "forge_base::time::millis")]
        until: Timestamp,
    },
    /// A client continues a run that had ended without completing.
    #[serde(rename = "run.reopened")]
    RunReopened {
        /// Replaces the budget of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<Budget>,
    },
    #[serde(rename = "run.completed")]
    RunCompleted {
        /// Tasks, as `plan.finalized` counts them.
        total_completed: usize,
        total_failed: usize,
        #[serde(default)]
        refineries_completed: usize,
        #[serde(default)]
        refineries_failed: usize,
        /// Milliseconds since the run was created.
        duration: u64,
        status: End,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The Captain is asked to speak first.
    #[serde(rename = "captain.greeting")]
    CaptainGreeting {},
    #[serde(rename = "captain.user_message")]
    UserMessage { content: String },
    #[serde(rename = "captain.message")]
    CaptainMessage { content: String, role: Role },
    #[serde(rename = "captain.tool_call")]
    CaptainToolCall {
        tool_name: String,
        args: Value,
        call_id: String,
    },
    #[serde(rename = "captain.tool_result")]
    CaptainToolResult {
        tool_name: String,
        result: Value,
        call_id: String,
        is_error: bool,
    },
    #[serde(rename = "plan.finalized")]
    PlanFinalized {
        total_tasks: usize,
        total_refineries: usize,
        spec_count: usize,
    },
    #[serde(rename = "plan.approved")]
    PlanApproved {},
    #[serde(rename = "plan.reopened")]
    PlanReopened {},
    #[serde(rename = "task.scheduled")]
    TaskScheduled {
        task_id: String,
        agent_type: AgentType,
    },
    #[serde(rename = "task.started")]
    TaskStarted {
        task_id: String,
        agent_id: String,
        sandbox_id: String,
        branch: String,
    },
    #[serde(rename = "task.heartbeat")]
    TaskHeartbeat {
        task_id: String,
        agent_id: String,
        uptime_seconds: u64,
        /// Number of the agent that the attempt has started; `None` for its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    #[serde(rename = "task.progress")]
    TaskProgress {
        task_id: String,
        content: String,
        content_type: ContentType,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    #[serde(rename = "task.completed")]
    TaskCompleted {
        task_id: String,
        walkthrough_path: String,
        #[serde(flatten)]
        files: FileChanges,
    },
    #[serde(rename = "task.failed")]
    TaskFailed {
        task_id: String,
        error: String,
        can_retry: bool,
        /// The attempt uses up one of the task's four.
        counted: bool,
        /// The result is there and could not be pushed; a retry pushes it again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        result_kept: bool,
    },
    #[serde(rename = "task.stale")]
    TaskStale {
        task_id: String,
        error: String,
        counted: bool,
    },
    /// Work on the task cannot continue now; the next try is at `until`.
    #[serde(rename = "task.waiting")]
    TaskWaiting {
        task_id: String,
        cause: Cause,
        reason: String,
        #[serde(serialize_with = "forge_base::time::millis")]
        until: Timestamp,
    },
    /// Every change of a task's state.
    #[serde(rename = "task.status")]
    TaskChanged {
        task_id: String,
        previous_status: TaskStatus,
        new_status: TaskStatus,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    #[serde(rename = "task.retried")]
    TaskRetried {
        task_id: String,
        /// A client asked for it: failures are counted from zero.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_user: bool,
    },
    #[serde(rename = "task.exhausted")]
    TaskExhausted { task_id: String },
    #[serde(rename = "tool.call")]
    ToolCall {
        task_id: String,
        tool_name: String,
        args: Value,
        call_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    #[serde(rename = "tool.result")]
    ToolResult {
        task_id: String,
        tool_name: String,
        result: Value,
        is_error: bool,
        call_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    /// An agent was started by another one of its attempt.
    #[serde(rename = "agent.started")]
    AgentStarted {
        task_id: String,
        agent: usize,
        agent_type: AgentType,
        title: String,
        branch: String,
    },
    #[serde(rename = "agent.ended")]
    AgentEnded {
        task_id: String,
        agent: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    #[serde(rename = "task.pause_ack")]
    PauseAck {
        task_id: String,
        effect: PauseEffect,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    #[serde(rename = "artifact.written")]
    ArtifactWritten {
        path: String,
        #[serde(rename = "type")]
        kind: ArtifactType,
    },
    #[serde(rename = "branch.pushed")]
    BranchPushed {
        task_id: String,
        branch: String,
        /// Commit that was read back.
        #[serde(rename = "ref")]
        commit: String,
    },
    #[serde(rename = "refinery.started")]
    RefineryStarted {
        task_id: String,
        dependency_count: usize,
    },
    #[serde(rename = "refinery.conflict")]
    RefineryConflict {
        task_id: String,
        branch: String,
        paths: Vec<String>,
        /// Commit that the branch does not merge into.
        #[serde(default)]
        onto: String,
        /// Commit of the branch.
        #[serde(default)]
        commit: String,
        #[serde(default)]
        files: Vec<ConflictedFile>,
    },
    /// An agent has decided a conflict, or has changed something else in a merge.
    #[serde(rename = "refinery.settled")]
    RefinerySettled {
        task_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<String>,
        commit: String,
        decisions: Vec<PathDecision>,
    },
    /// Result of the configured checks.
    #[serde(rename = "refinery.tests")]
    RefineryTests {
        task_id: String,
        passed: usize,
        failed: usize,
        skipped: usize,
        /// The check that failed, and the end of its output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        report: Option<String>,
    },
    #[serde(rename = "refinery.merged")]
    RefineryMerged {
        task_id: String,
        merged_branches: Vec<String>,
        conflicts: Vec<String>,
        /// Commit of the target that was read back.
        result_ref: String,
        /// Evidence for each input.
        proof: Vec<Proved>,
        /// Commit of the target before the merge.
        #[serde(default)]
        onto_ref: String,
        #[serde(default)]
        decisions: Vec<PathDecision>,
    },
    #[serde(rename = "cr.emitted")]
    CrEmitted {
        cr_id: String,
        title: String,
        emitted_by: String,
    },
    #[serde(rename = "cr.resolved")]
    CrResolved {
        cr_id: String,
        status: CrStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A change request has added to the graph.
    #[serde(rename = "dag.overlay_applied")]
    OverlayApplied {
        cr_id: String,
        added_nodes: Vec<TaskDocument>,
        added_edges: Vec<Edge>,
    },
    /// End of one dispatch of the run.
    #[serde(rename = "usage")]
    Usage {
        dispatch_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
        /// Session that the next dispatch continues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
        tokens: u64,
        cost_usd: f64,
        /// The turn of the Captain is repeated.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        repeats: bool,
    },
}

/// Author of a message of the Captain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Assistant,
}

/// State of a change request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrStatus {
    Pending,
    Approved,
    Rejected,
    Applied,
}

impl Event {
    /// Type and data, as stored.
    pub fn stored(&self, at: Timestamp) -> NewEvent {
        let (kind, data) = self.parts();
        NewEvent::new(kind, at).with(&data)
    }

    /// Event that was stored with this type and data; `None` for a type that this version does not know.
    pub fn read(kind: &str, data: Option<&str>) -> Option<Self> {
        let mut whole = Map::new();
        whole.insert("type".to_owned(), kind.into());
        let data = data.and_then(|data| serde_json::from_str(data).ok());
        whole.insert("data".to_owned(), data.unwrap_or(Value::Object(Map::new())));
        serde_json::from_value(Value::Object(whole)).ok()
    }

    /// The task that the event names.
    pub fn task_id(&self) -> Option<&str> {
        match self {
            Event::TaskScheduled { task_id, .. }
            | Event::TaskStarted { task_id, .. }
            | Event::TaskHeartbeat { task_id, .. }
            | Event::TaskProgress { task_id, .. }
            | Event::TaskCompleted { task_id, .. }
            | Event::TaskFailed { task_id, .. }
            | Event::TaskStale { task_id, .. }
            | Event::TaskChanged { task_id, .. }
            | Event::TaskWaiting { task_id, .. }
            | Event::TaskRetried { task_id, .. }
            | Event::TaskExhausted { task_id }
            | Event::ToolCall { task_id, .. }
            | Event::ToolResult { task_id, .. }
            | Event::BranchPushed { task_id, .. }
            | Event::RefineryStarted { task_id, .. }
            | Event::RefineryConflict { task_id, .. }
            | Event::RefinerySettled { task_id, .. }
            | Event::RefineryTests { task_id, .. }
            | Event::AgentStarted { task_id, .. }
            | Event::AgentEnded { task_id, .. }
            | Event::PauseAck { task_id, .. }
            | Event::RefineryMerged { task_id, .. } => Some(task_id),
            Event::Usage { task_id, .. } => task_id.as_deref(),
            Event::RunStarted { .. }
            | Event::RunAttached { .. }
            | Event::RunExecuting {}
            | Event::RunPaused { .. }
            | Event::RunResumed { .. }
            | Event::RunCancelling {}
            | Event::RunWaiting { .. }
            | Event::RunReopened { .. }
            | Event::RunCompleted { .. }
            | Event::CaptainGreeting {}
            | Event::UserMessage { .. }
            | Event::CaptainMessage { .. }
            | Event::CaptainToolCall { .. }
            | Event::CaptainToolResult { .. }
            | Event::PlanFinalized { .. }
            | Event::PlanApproved {}
            | Event::PlanReopened {}
            | Event::CrEmitted { .. }
            | Event::CrResolved { .. }
            | Event::OverlayApplied { .. }
            | Event::ArtifactWritten { .. } => None,
        }
    }

    fn parts(&self) -> (String, Value) {
        let mut whole = serde_json::to_value(self).expect("events have only text keys");
        let data = whole["data"].take();
        let kind = whole["type"]
            .as_str()
            .expect("the tag is a text")
            .to_owned();
        (kind, data)
    }
}

#[cfg(test)]
mod tests {
    use forge_base::event::kind;

    use super::*;

    #[test]
    fn the_types_are_those_that_only_the_bridge_writes() {
        let unknown = serde_json::from_value::<Event>(serde_json::json!({"type": "?"}));
        let error = unknown.unwrap_err().to_string();
        let listed: Vec<_> = error.split('`').skip(3).step_by(2).collect();
        let not_shared = |name: &&str| !kind::OF_ADAPTERS.contains(name);
        let (mut types, mut reserved): (Vec<_>, _) = (
            listed.into_iter().filter(not_shared).collect(),
            kind::OF_RUNS.to_vec(),
        );
        types.sort_unstable();
        reserved.sort_unstable();
        assert_eq!(types, reserved);
    }
}
