//! Change requests: an agent asks, a user approves or rejects, and an addition to the graph answers it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::event::{ArtifactType, CrStatus, Event, HoldReason};
use crate::plan::{Edge, Graph, Node, TaskDocument};
use crate::state::State;
use crate::tools::agent::Request;
use crate::{Artifact, Work};

/// Maximum number of change requests of a run.
pub const MAX_CHANGE_REQUESTS: usize = 100;
/// Turns in which the Captain can answer one.
const MAX_TURNS: u32 = 5;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeRequest {
    pub id: String,
    pub title: String,
    pub reason: String,
    pub suggested_changes: String,
    /// Tasks that wait from the approval until the change is made.
    pub impact: Vec<String>,
    /// Addition that its agent has proposed.
    pub addition: Option<Addition>,
    /// Task whose agent asks.
    pub emitted_by: String,
    pub created_at: Timestamp,
    pub status: CrStatus,
    /// Reason of a rejection.
    pub rejected_because: Option<String>,
    /// Turns of the Captain about it that have ended.
    pub turns: u32,
}

/// Tasks and edges to add to the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Addition {
    #[serde(default)]
    pub added_nodes: Vec<TaskDocument>,
    #[serde(default)]
    pub added_edges: Vec<Edge>,
}

impl Addition {
    pub fn is_empty(&self) -> bool {
        self.added_nodes.is_empty() && self.added_edges.is_empty()
    }

    /// The graph with this, or all faults.
    pub fn graph(&self, state: &State, cr_id: &str) -> Result<Graph, String> {
        with(state, &self.added_nodes, &self.added_edges, cr_id)
    }
}

/// The graph of a run with further tasks and edges, or all faults.
pub(crate) fn with(
    state: &State,
    documents: &[TaskDocument],
    edges: &[Edge],
    cr_id: &str,
) -> Result<Graph, String> {
    let graph = state.graph.as_ref().ok_or("there is no graph yet")?;
    let nodes: Vec<_> = documents.iter().map(Node::of).collect();
    let name = format!("refinery-{cr_id}");
    let changed = graph.with(&nodes, edges, |id| state.is_pending(id), &name);
    changed.map_err(|faults| {
        let faults: Vec<_> = faults.iter().map(|fault| format!("- {fault}")).collect();
        format!("the change is not valid:\n{}", faults.join("\n"))
    })
}

impl ChangeRequest {
    /// Next request of a run.
    pub(crate) fn new(state: &State, task: &str, at: Timestamp, request: Request) -> Self {
        Self {
            id: format!("cr-{:03}", state.change_requests.len() + 1),
            title: request.title,
            reason: request.reason,
            suggested_changes: request.suggested_changes,
            impact: request.affected_tasks,
            addition: request.addition.filter(|addition| !addition.is_empty()),
            emitted_by: task.to_owned(),
            created_at: at,
            status: CrStatus::Pending,
            rejected_because: None,
            turns: 0,
        }
    }

    /// True if the addition is carried out as it is, without the Captain.
    pub fn is_direct(&self) -> bool {
        self.impact.is_empty() && self.addition.is_some()
    }

    /// Message to the Captain.
    pub(crate) fn message(&self) -> String {
        let whole = json!({
            "crId": self.id, "title": self.title, "reason": self.reason, "affectedTasks": self.impact,
            "suggestedChanges": self.suggested_changes, "overlay": self.addition,
        });
        format!(
            "A change request of the task {} was approved. Call `add_to_dag` with the tasks and edges that it needs, or \
             answer with the reason why nothing is to be changed.\n\n{whole}",
            self.emitted_by
        )
    }

    fn document(&self) -> Artifact {
        let list = |ids: &[String]| Value::from(ids).to_string();
        let mut content = format!(
            "---\nid: {}\ntitle: {}\nemitted_by: {}\nemitted_at: {}\naffected_tasks: {}\n---\n\n## Reason\n\n{}\n",
            self.id,
            Value::from(&*self.title),
            self.emitted_by,
            forge_base::time::format(self.created_at),
            list(&self.impact),
            self.reason.trim_end(),
        );
        if !self.suggested_changes.is_empty() {
            content += &format!("\n## Suggested changes\n\n{}\n", self.suggested_changes);
        }
        Artifact {
            path: format!("change-requests/{}/change-request.md", self.id),
            kind: ArtifactType::Cr,
            content,
        }
    }

    /// Events and the document of a new request.
    pub(crate) fn emitted(&self) -> Emitted {
        let emitted = Event::CrEmitted {
            cr_id: self.id.clone(),
            title: self.title.clone(),
            emitted_by: self.emitted_by.clone(),
        };
        let paused = Event::RunPaused {
            reason: HoldReason::Cr,
            cr_id: Some(self.id.clone()),
        };
        Emitted {
            entries: [emitted, paused],
            artifact: self.document(),
        }
    }
}

pub(crate) struct Emitted {
    pub(crate) entries: [Event; 2],
    pub(crate) artifact: Artifact,
}

/// Events of a decision on a pending request; its hold ends.
pub(crate) fn decided(id: &str, status: CrStatus, reason: Option<String>) -> Vec<(u32, Event)> {
    let resumed = Event::RunResumed {
        reason: HoldReason::Cr,
        cr_id: Some(id.to_owned()),
    };
    vec![(0, resolved(id, status, reason)), (0, resumed)]
}

fn resolved(id: &str, status: CrStatus, reason: Option<String>) -> Event {
    Event::CrResolved {
        cr_id: id.to_owned(),
        status,
        reason,
    }
}

/// Carries out an addition for a request, or rejects the request if the graph has moved on.
pub(crate) fn apply(state: &State, id: &str, addition: &Addition) -> Work {
    if let Err(faults) = addition.graph(state, id) {
        return Work {
            entries: vec![(0, resolved(id, CrStatus::Rejected, Some(faults)))],
            ..Work::default()
        };
    }
    let nodes: Vec<_> = addition.added_nodes.iter().map(Node::of).collect();
    let text = json!({
        "crId": id, "addedNodes": nodes, "addedEdges": addition.added_edges
    });
    let documents = addition.added_nodes.iter().map(|document| Artifact {
        path: format!("tasks/{}.md", document.id),
        kind: ArtifactType::Task,
        content: document.render(),
    });
    let written = Artifact {
        path: format!("change-requests/{id}/dag-overlay.json"),
        kind: ArtifactType::Dag,
        content: format!("{text:#}\n"),
    };
    let applied = Event::OverlayApplied {
        cr_id: id.to_owned(),
        added_nodes: addition.added_nodes.clone(),
        added_edges: addition.added_edges.clone(),
    };
    Work {
        entries: vec![(0, applied), (0, resolved(id, CrStatus::Applied, None))],
        artifacts: documents.chain([written]).collect(),
        ..Work::default()
    }
}

/// The request that a turn of the Captain is about.
pub(crate) fn asked_for(state: &State) -> Option<&ChangeRequest> {
    let first = state.with_status(CrStatus::Approved).next()?;
    let is_asked = state.captain.results.is_empty() || first.turns > 0;
    (!first.is_direct() && is_asked).then_some(first)
}

/// Rejection of a request that a turn of the Captain has not answered. After an error or a refused addition it has
/// further turns.
pub(crate) fn unanswered(state: &State, id: &str, error: bool, output: &str) -> Option<Event> {
    let request = state.change_request(id)?;
    let has_turns = request.turns < MAX_TURNS;
    let goes_on = has_turns && (error || !state.captain.results.is_empty());
    let is_open = request.status == CrStatus::Approved && !goes_on;
    is_open.then(|| {
        let reason = match output.trim() {
            "" => "the Captain changed nothing",
            text => text,
        };
        resolved(id, CrStatus::Rejected, Some(reason.to_owned()))
    })
}
