//! State of a run: a fold of its events, and nothing else.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use forge_adapter_api::request::Budget;
use forge_base::time;
use forge_store::record::{RunRecord, RunStatus};
use forge_store::{self as store};

use crate::agent::Agent;
use crate::change::ChangeRequest;
use crate::event::{ConflictedFile, CrStatus, End, PathDecision, TaskStatus};
use crate::files::FileChanges;
use crate::greeting::{Greeting, Interview};
use crate::plan::{AgentType, Graph, Node, TaskDocument};
use crate::request::Approval;
use crate::wait::Wait;

/// State of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub created_at: Timestamp,
    /// A plan waits for an approval before it is executed.
    pub plan_review: bool,
    pub approval: Approval,
    #[serde(default)]
    pub greeting: Greeting,
    pub repository: Option<Attached>,
    pub captain: Captain,
    pub specs: Vec<String>,
    /// Documents of tasks, without their text.
    pub documents: BTreeMap<String, Document>,
    /// The graph, from the call that set it on.
    pub graph: Option<Graph>,
    pub plan: Plan,
    /// Nodes of a finalised plan.
    pub tasks: BTreeMap<String, Task>,
    /// In the order of their ids.
    pub change_requests: Vec<ChangeRequest>,
    pub started_at: Option<Timestamp>,
    /// The user paused the run: nothing new starts.
    pub user_hold: bool,
    pub is_cancelling: bool,
    /// Trouble with the repository before it is attached, or with the turn of the Captain.
    pub wait: Option<Wait>,
    pub end: Option<Ended>,
    /// For all steps together.
    pub budget: Option<Budget>,
    pub tokens: u64,
    pub cost_micros: u64,
}

/// Stage of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Plan {
    /// The Captain writes it.
    Open,
    /// Waits for an approval, unless none is needed.
    Final,
    Approved,
}

/// Commit at which attempts start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub reference: String,
    pub commit: String,
}

/// The interview.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Captain {
    #[serde(default)]
    pub interview: Interview,
    /// Messages of the user that have not been answered.
    pub messages: VecDeque<String>,
    /// Results of its tool calls that it has not been given.
    pub results: Vec<ToolResult>,
    /// Dispatches that have ended.
    pub turns: u32,
    pub session: Option<String>,
    /// Bytes of all documents that it wrote, replaced ones included.
    #[serde(default)]
    pub written_bytes: u64,
}

/// Result of a tool call, for the next dispatch of the session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    pub tool_call_id: String,
    pub name: String,
    pub output: Value,
    pub is_error: bool,
}

/// Front matter of a task document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    pub title: String,
    pub agent_type: AgentType,
    pub dependencies: Vec<String>,
    /// The document has a text for an agent.
    pub has_instructions: bool,
}

impl Document {
    pub(crate) fn of(document: &TaskDocument) -> Self {
        Self {
            title: document.title.clone(),
            agent_type: document.agent_type,
            dependencies: document.dependencies.clone(),
            has_instructions: !document.instructions.trim().is_empty(),
        }
    }
}

/// A node of the plan, with its current attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub title: String,
    pub agent_type: AgentType,
    pub status: TaskStatus,
    /// Number of the current attempt; 0 before the first.
    pub attempt: u32,
    /// The current attempt takes one of the places for running attempts.
    pub is_scheduled: bool,
    pub branch: Option<String>,
    pub agent_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub walkthrough: Option<String>,
    /// Set with the walkthrough.
    #[serde(default)]
    pub files: Option<FileChanges>,
    /// Commit of the branch, once it was pushed.
    pub commit: Option<String>,
    pub error: Option<String>,
    /// Nothing more is tried, unless a user asks for it.
    pub is_exhausted: bool,
    /// Attempts that the agent failed.
    pub failures: u32,
    /// Trouble that no agent causes, until an attempt completes or is pushed.
    pub wait: Option<Wait>,
    /// The attempt failed with a result that could not be pushed.
    pub result_kept: bool,
    /// The attempt's own agent, and those that were started by it or by each other. None before it runs.
    pub agents: Vec<Agent>,
    /// As its agent has set them.
    pub subtasks: Vec<Subtask>,
    /// Paths that were in conflict.
    pub conflicts: Vec<String>,
    /// To be settled by the current dispatch, or the next one.
    pub conflict: Option<Conflict>,
    /// Decisions of its agent in merges.
    #[serde(default)]
    pub decisions: Vec<PathDecision>,
    /// The check that failed, for the next dispatch of a refinery's agent.
    pub failed_check: Option<String>,
}

/// Part of a large task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subtask {
    pub title: String,
    #[serde(default)]
    pub done: bool,
}

/// Input that does not merge by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    pub branch: String,
    /// Commit that it does not merge into.
    #[serde(default)]
    pub onto: String,
    /// Its commit.
    #[serde(default)]
    pub commit: String,
    #[serde(default)]
    pub files: Vec<ConflictedFile>,
}

impl Task {
    /// The node before its first attempt.
    pub(crate) fn of(node: &Node) -> Self {
        let title = if node.title.is_empty() {
            &node.id
        } else {
            &node.title
        };
        Self::new(title.clone(), node.agent_type, 0)
    }

    /// The beginning of an attempt.
    pub(crate) fn new(title: String, agent_type: AgentType, attempt: u32) -> Self {
        Self {
            title,
            agent_type,
            status: TaskStatus::Pending,
            attempt,
            is_scheduled: false,
            branch: None,
            agent_id: None,
            sandbox_id: None,
            started_at: None,
            completed_at: None,
            walkthrough: None,
            files: None,
            commit: None,
            error: None,
            is_exhausted: false,
            failures: 0,
            wait: None,
            result_kept: false,
            agents: Vec::new(),
            subtasks: Vec::new(),
            conflicts: Vec::new(),
            conflict: None,
            decisions: Vec::new(),
            failed_check: None,
        }
    }

    pub fn is_refinery(&self) -> bool {
        self.agent_type == AgentType::Refinery
    }

    /// The dispatch of its agent settles a merge.
    pub fn settles(&self) -> bool {
        self.is_refinery() || self.conflict.is_some()
    }

    /// Its result can be used by others.
    pub fn is_integrated(&self) -> bool {
        matches!(self.status, TaskStatus::MergeReady | TaskStatus::Merged)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub status: End,
    pub at: Timestamp,
    pub error: Option<String>,
}

impl State {
    /// State before the first event.
    pub fn new(created_at: Timestamp, plan_review: bool, approval: Approval) -> Self {
        Self {
            created_at,
            plan_review,
            approval,
            greeting: Greeting::None,
            repository: None,
            captain: Captain {
                interview: Interview::Silent,
                ..Captain::default()
            },
            specs: Vec::new(),
            documents: BTreeMap::new(),
            graph: None,
            plan: Plan::Open,
            tasks: BTreeMap::new(),
            change_requests: Vec::new(),
            started_at: None,
            user_hold: false,
            is_cancelling: false,
            wait: None,
            end: None,
            budget: None,
            tokens: 0,
            cost_micros: 0,
        }
    }

    /// State of a stored run.
    pub fn stored(record: &RunRecord) -> store::Result<Self> {
        serde_json::from_str(record.projection.get()).map_err(|error| {
            store::Error::Unreadable(format!("the state of {}: {error}", record.id))
        })
    }

    pub fn status(&self) -> RunStatus {
        match &self.end {
            Some(end) => match end.status {
                End::Completed => RunStatus::Completed,
                End::Failed => RunStatus::Failed,
                End::Cancelled => RunStatus::Cancelled,
            },
            None if self.is_held() => RunStatus::Paused,
            None => self.unheld_status(),
        }
    }

    /// Nothing new starts: the user or a change request holds the run.
    pub fn is_held(&self) -> bool {
        self.user_hold || self.with_status(CrStatus::Pending).next().is_some()
    }

    pub fn change_request(&self, id: &str) -> Option<&ChangeRequest> {
        self.change_requests.iter().find(|request| request.id == id)
    }

    /// Change requests of a status, the oldest first.
    pub fn with_status(&self, status: CrStatus) -> impl Iterator<Item = &ChangeRequest> {
        let all = self.change_requests.iter();
        all.filter(move |request| request.status == status)
    }

    /// Status without holds, which a resume restores.
    pub fn unheld_status(&self) -> RunStatus {
        match self.plan {
            Plan::Open => RunStatus::Planning,
            Plan::Final => RunStatus::PlanReview,
            Plan::Approved => RunStatus::Executing,
        }
    }

    /// The node gets new dependencies if it must: no attempt of it is under way or has ended well.
    pub fn is_pending(&self, id: &str) -> bool {
        let task = self.tasks.get(id);
        task.is_some_and(|task| task.status == TaskStatus::Pending && !task.is_scheduled)
    }

    /// True if the steps have used up the budget, so that a further one would end at once.
    pub fn is_spent(&self) -> bool {
        let budget = self.budget.as_ref();
        budget.is_some_and(|budget| {
            budget
                .max_cost_usd
                .is_some_and(|most| self.cost_usd() >= most)
                || budget.max_tokens.is_some_and(|most| self.tokens >= most)
        })
    }

    pub fn cost_usd(&self) -> f64 {
        self.cost_micros as f64 / 1e6
    }

    pub fn nodes(&self) -> &[Node] {
        self.graph.as_ref().map_or(&[], Graph::nodes)
    }

    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes().iter().find(|node| node.id == id)
    }

    /// Nodes that must come before this one.
    pub fn dependencies(&self, id: &str) -> &[String] {
        self.node(id).map_or(&[], |node| &node.dependencies)
    }

    /// Milliseconds since the run was created.
    pub fn elapsed_ms(&self, now: Timestamp) -> u64 {
        let elapsed = time::wall_age(self.created_at, now);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}
