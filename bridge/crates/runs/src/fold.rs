//! The fold: the only place where the state of a run changes. Pure and total: an event that does not fit changes
//! nothing.

use serde_json::Value;

use crate::event::{Entry, Event, HoldReason};
use crate::state::{Attached, Document, Ended, Plan, State, Task, ToolResult};
use crate::tools::{self, Effect};

impl State {
    /// Makes this the state after an event; returns false if the event changes nothing.
    pub fn fold(&mut self, entry: &Entry) -> bool {
        let at = entry.at;
        match &entry.event {
            Event::RunStarted { .. }
            | Event::CaptainMessage { .. }
            | Event::PlanApproved {}
            | Event::TaskHeartbeat { .. }
            | Event::TaskProgress { .. }
            | Event::ToolCall { .. }
            | Event::ToolResult { .. }
            | Event::ArtifactWritten { .. }
            | Event::RefineryStarted { .. }
            | Event::RefineryConflict { .. }
            | Event::RefineryMerged { .. } => return false,
            Event::RunAttached { reference, commit } => {
                self.repository = Some(Attached {
                    reference: reference.clone(),
                    commit: commit.clone(),
                });
            }
            Event::RunExecuting {} => {
                self.plan = Plan::Approved;
                self.started_at = Some(at);
            }
            Event::RunPaused {
                reason: HoldReason::User,
            } => self.user_hold = true,
            Event::RunResumed {
                reason: HoldReason::User,
            } => self.user_hold = false,
            Event::RunCancelling {} => self.is_cancelling = true,
            Event::RunCompleted { status, error, .. } => {
                self.end = Some(Ended {
                    status: *status,
                    at,
                    error: error.clone(),
                });
            }
            Event::UserMessage { content } => self.captain.messages.push_back(content.clone()),
            Event::CaptainToolCall {
                tool_name, args, ..
            } => self.call_tool(tool_name, args),
            Event::CaptainToolResult {
                tool_name,
                result,
                call_id,
                is_error,
            } => {
                self.captain.results.push(ToolResult {
                    tool_call_id: call_id.clone(),
                    name: tool_name.clone(),
                    output: result.clone(),
                    is_error: *is_error,
                });
            }
            Event::PlanFinalized { .. } => {
                self.plan = Plan::Final;
                self.tasks = self
                    .nodes()
                    .iter()
                    .map(|node| (node.id.clone(), Task::of(node)))
                    .collect();
            }
            Event::PlanReopened {} => {
                self.plan = Plan::Open;
                self.tasks.clear();
            }
            Event::Usage {
                task_id,
                session_id,
                tokens,
                cost_usd,
                ..
            } => {
                self.tokens = self.tokens.saturating_add(*tokens);
                // A sum of whole numbers does not depend on how they were written and read.
                let micros = (cost_usd * 1e6).round().max(0.0) as u64;
                self.cost_micros = self.cost_micros.saturating_add(micros);
                if task_id.is_none() {
                    self.end_captain_turn(session_id.as_ref());
                }
            }
            Event::TaskScheduled { .. }
            | Event::TaskStarted { .. }
            | Event::TaskCompleted { .. }
            | Event::TaskFailed { .. }
            | Event::TaskStale { .. }
            | Event::TaskChanged { .. }
            | Event::TaskRetried { .. }
            | Event::TaskExhausted { .. }
            | Event::BranchPushed { .. } => self.fold_task(entry),
        }
        true
    }

    /// Carries out a call of the Captain. A refused one has no effect but its result.
    fn call_tool(&mut self, name: &str, args: &Value) {
        match tools::call(self, name, args) {
            Ok(Effect::Spec { name, .. }) => {
                if !self.specs.contains(&name) {
                    self.specs.push(name);
                }
            }
            Ok(Effect::Task(document)) => {
                let kept = Document {
                    title: document.title,
                    agent_type: document.agent_type,
                    dependencies: document.dependencies,
                };
                self.documents.insert(document.id, kept);
            }
            Ok(Effect::Graph(graph)) => self.graph = Some(graph),
            Err(_) => {}
        }
    }

    /// A turn answers the results of the calls before it, or else the oldest message.
    fn end_captain_turn(&mut self, session: Option<&String>) {
        let captain = &mut self.captain;
        if captain.results.is_empty() {
            captain.messages.pop_front();
        }
        captain.results.clear();
        captain.turns += 1;
        captain.session = session.cloned().or(captain.session.take());
    }

    /// Events of a task. Those of an attempt that is not the current one change nothing.
    fn fold_task(&mut self, entry: &Entry) {
        let Some(task) = entry.event.task_id().and_then(|id| self.tasks.get_mut(id)) else {
            return;
        };
        if let Event::TaskScheduled { .. } | Event::TaskRetried { .. } = &entry.event {
            *task = Task::new(
                std::mem::take(&mut task.title),
                task.agent_type,
                entry.attempt,
            );
            task.is_scheduled = matches!(entry.event, Event::TaskScheduled { .. });
            return;
        }
        if entry.attempt != task.attempt {
            return;
        }
        match &entry.event {
            Event::TaskStarted {
                agent_id,
                sandbox_id,
                branch,
                ..
            } => {
                task.agent_id = Some(agent_id.clone());
                task.sandbox_id = Some(sandbox_id.clone());
                task.branch = Some(branch.clone());
                task.started_at = Some(entry.at);
            }
            Event::TaskCompleted {
                walkthrough_path, ..
            } => {
                task.walkthrough = Some(walkthrough_path.clone());
                task.completed_at = Some(entry.at);
            }
            Event::TaskFailed { error, .. } | Event::TaskStale { error, .. } => {
                task.error = Some(error.clone());
                task.completed_at = Some(entry.at);
            }
            Event::TaskChanged { new_status, .. } => task.status = *new_status,
            Event::TaskExhausted { .. } => task.is_exhausted = true,
            Event::BranchPushed { commit, .. } => task.commit = Some(commit.clone()),
            _ => {}
        }
    }
}
