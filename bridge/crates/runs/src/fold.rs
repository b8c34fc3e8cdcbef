//! The fold: the only place where the state of a run changes. Pure and total: an event that does not fit changes
//! nothing.

use serde_json::Value;

use crate::agent::Agent;
use crate::change::{self, ChangeRequest};
use crate::event::{Entry, Event, HoldReason, TaskStatus};
use crate::greeting::Interview;
use crate::plan::{Edge, TaskDocument};
use crate::state::{Attached, Conflict, Document, Ended, Plan, State, Task, ToolResult};
use crate::tools::agent::{self as agent_tools, Effect as AgentEffect};
use crate::tools::captain::{self as captain_tools, Effect};
use crate::wait::Wait;

impl State {
    /// Makes this the state after an event; returns false if the event changes nothing.
    pub fn fold(&mut self, entry: &Entry) -> bool {
        let at = entry.at;
        match &entry.event {
            Event::RunStarted { .. }
            | Event::PlanApproved {}
            | Event::TaskHeartbeat { .. }
            | Event::TaskProgress { .. }
            | Event::ArtifactWritten { .. }
            | Event::RefineryStarted { .. }
            | Event::RefineryMerged { .. }
            | Event::PauseAck { .. }
            | Event::CrEmitted { .. }
            | Event::RunPaused {
                reason: HoldReason::Cr,
                ..
            }
            | Event::RunResumed {
                reason: HoldReason::Cr,
                ..
            } => return false,
            Event::ToolCall { tool_name, .. } | Event::ToolResult { tool_name, .. } => {
                // Calls of other tools are shown, and have no effect.
                if !agent_tools::ALL.contains(&&**tool_name) {
                    return false;
                }
                self.fold_call(entry);
            }
            Event::RunAttached { reference, commit } => {
                self.wait = None;
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
                ..
            } => self.user_hold = true,
            Event::RunResumed {
                reason: HoldReason::User,
                ..
            } => self.user_hold = false,
            Event::RunCancelling {} => self.is_cancelling = true,
            Event::RunWaiting {
                cause,
                reason,
                until,
            } => {
                let before = self.wait.take();
                self.wait = Some(Wait::after(before, (*cause, reason), at, *until));
            }
            Event::RunReopened { budget } => {
                self.end = None;
                self.is_cancelling = false;
                self.user_hold = false;
                self.wait = None;
                if budget.is_some() {
                    self.budget = *budget;
                }
            }
            Event::RunCompleted { status, error, .. } => {
                self.end = Some(Ended {
                    status: *status,
                    at,
                    error: error.clone(),
                });
            }
            Event::CaptainGreeting {} => self.captain.interview = Interview::Greeting,
            Event::CaptainMessage { .. } => return self.captain.interview.open(),
            Event::UserMessage { content } => {
                self.captain.interview.open();
                self.captain.messages.push_back(content.clone());
            }
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
                repeats,
                ..
            } => {
                self.tokens = self.tokens.saturating_add(*tokens);
                // A sum of whole numbers does not depend on how they were written and read.
                let micros = (cost_usd * 1e6).round().max(0.0) as u64;
                self.cost_micros = self.cost_micros.saturating_add(micros);
                match task_id {
                    None if *repeats => {}
                    None => self.end_captain_turn(session_id.as_ref()),
                    Some(_) => self.fold_task(entry),
                }
            }
            Event::CrResolved {
                cr_id,
                status,
                reason,
            } => {
                let mut all = self.change_requests.iter_mut();
                if let Some(request) = all.find(|request| request.id == *cr_id) {
                    request.status = *status;
                    request.rejected_because = reason.clone();
                }
            }
            Event::OverlayApplied {
                cr_id,
                added_nodes,
                added_edges,
            } => self.add_to_graph(cr_id, added_nodes, added_edges),
            Event::TaskScheduled { .. }
            | Event::TaskStarted { .. }
            | Event::TaskCompleted { .. }
            | Event::TaskFailed { .. }
            | Event::TaskStale { .. }
            | Event::TaskChanged { .. }
            | Event::TaskWaiting { .. }
            | Event::TaskRetried { .. }
            | Event::TaskExhausted { .. }
            | Event::AgentStarted { .. }
            | Event::AgentEnded { .. }
            | Event::RefineryConflict { .. }
            | Event::RefinerySettled { .. }
            | Event::RefineryTests { .. }
            | Event::BranchPushed { .. } => self.fold_task(entry),
        }
        true
    }

    /// Carries out a call of the Captain. A refused one has no effect but its result.
    fn call_tool(&mut self, name: &str, args: &Value) {
        match captain_tools::call(self, name, args) {
            Ok(Effect::Spec { name, content }) => {
                self.captain.written_bytes += content.len() as u64;
                if !self.specs.contains(&name) {
                    self.specs.push(name);
                }
            }
            Ok(Effect::Task(document)) => {
                self.captain.written_bytes += document.render().len() as u64;
                let kept = Document::of(&document);
                self.documents.insert(document.id, kept);
            }
            Ok(Effect::Graph(graph)) => self.graph = Some(graph),
            // Its own event follows.
            Ok(Effect::Overlay { .. }) | Err(_) => {}
        }
    }

    /// A call of a tool of the bridge, or its result.
    fn fold_call(&mut self, entry: &Entry) {
        let Some(id) = entry.event.task_id().map(str::to_owned) else {
            return;
        };
        let is_current = |task: &Task| task.attempt == entry.attempt;
        if !self.tasks.get(&id).is_some_and(is_current) {
            return;
        }
        match &entry.event {
            Event::ToolCall {
                tool_name,
                args,
                call_id,
                agent,
                ..
            } => {
                let number = agent.unwrap_or(0);
                let effect = agent_tools::call(self, &id, number, tool_name, args);
                if let Ok(AgentEffect::Request(request)) = effect {
                    let request = ChangeRequest::new(self, &id, entry.at, request);
                    self.change_requests.push(request);
                } else if let (Ok(effect), Some(task)) = (effect, self.tasks.get_mut(&id)) {
                    match effect {
                        AgentEffect::Spawn(spawn) => {
                            task.agents.push(Agent::started_by(number, call_id, spawn));
                        }
                        AgentEffect::Subtasks(subtasks) => task.subtasks = subtasks,
                        AgentEffect::Request(_) => {}
                    }
                }
                if let Some(caller) = self.agent(&id, number) {
                    caller.calls.push(call_id.clone());
                }
            }
            Event::ToolResult {
                tool_name,
                result,
                call_id,
                is_error,
                agent,
                ..
            } => {
                if let Some(caller) = self.agent(&id, agent.unwrap_or(0)) {
                    caller.calls.retain(|open| open != call_id);
                    caller.results.push(ToolResult {
                        tool_call_id: call_id.clone(),
                        name: tool_name.clone(),
                        output: result.clone(),
                        is_error: *is_error,
                    });
                }
            }
            _ => {}
        }
    }

    fn agent(&mut self, task: &str, number: usize) -> Option<&mut Agent> {
        self.tasks.get_mut(task)?.agents.get_mut(number)
    }

    /// An addition to the graph; one that does not fit changes nothing.
    fn add_to_graph(&mut self, cr_id: &str, documents: &[TaskDocument], edges: &[Edge]) {
        let Ok(graph) = change::with(self, documents, edges, cr_id) else {
            return;
        };
        for document in documents {
            let kept = Document::of(document);
            self.documents.insert(document.id.clone(), kept);
        }
        for node in graph.nodes() {
            let new = || Task::of(node);
            self.tasks.entry(node.id.clone()).or_insert_with(new);
        }
        self.graph = Some(graph);
    }

    /// A turn greets, or it answers the results of the calls before it, or else the oldest message of the interview or the oldest
    /// approved change request.
    fn end_captain_turn(&mut self, session: Option<&String>) {
        let asked_for = change::asked_for(self).map(|request| request.id.clone());
        let mut requests = self.change_requests.iter_mut();
        if let Some(request) = requests.find(|request| Some(&request.id) == asked_for.as_ref()) {
            request.turns += 1;
        }
        self.wait = None;
        let is_interview = self.plan == Plan::Open;
        let captain = &mut self.captain;
        if captain.interview == Interview::Greeting {
            captain.interview = Interview::Opened;
        } else if captain.results.is_empty()
            && is_interview
            && captain.messages.pop_front().is_some()
        {
            captain.interview = Interview::Begun;
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
            let title = std::mem::take(&mut task.title);
            let is_fresh = matches!(entry.event, Event::TaskRetried { by_user: true, .. });
            *task = Task {
                is_scheduled: matches!(entry.event, Event::TaskScheduled { .. }),
                failures: task.failures,
                wait: task.wait.take(),
                ..Task::new(title, task.agent_type, entry.attempt)
            };
            if is_fresh {
                (task.failures, task.wait) = (0, None);
            }
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
                task.agents = vec![Agent::own(task.agent_type)];
            }
            Event::TaskCompleted {
                walkthrough_path,
                files,
                ..
            } => {
                task.files = Some(files.clone());
                task.walkthrough = Some(walkthrough_path.clone());
                task.completed_at = Some(entry.at);
                task.wait = None;
            }
            Event::TaskFailed { error, counted, .. } | Event::TaskStale { error, counted, .. } => {
                task.error = Some(error.clone());
                task.completed_at = Some(entry.at);
                task.result_kept = matches!(
                    entry.event,
                    Event::TaskFailed {
                        result_kept: true,
                        ..
                    }
                );
                if *counted {
                    task.failures += 1;
                    task.wait = None;
                }
            }
            Event::TaskWaiting {
                cause,
                reason,
                until,
                ..
            } => {
                let before = task.wait.take();
                task.wait = Some(Wait::after(before, (*cause, reason), entry.at, *until));
            }
            Event::TaskChanged { new_status, .. } => {
                task.status = *new_status;
                if *new_status == TaskStatus::Done && std::mem::take(&mut task.result_kept) {
                    (task.is_exhausted, task.error, task.wait) = (false, None, None);
                }
            }
            Event::TaskExhausted { .. } => task.is_exhausted = true,
            Event::BranchPushed { commit, .. } => {
                task.commit = Some(commit.clone());
                task.wait = None;
            }
            Event::AgentStarted { agent, .. } => {
                if let Some(agent) = task.agents.get_mut(*agent) {
                    agent.is_started = true;
                }
            }
            Event::AgentEnded { agent, .. } => {
                if let Some(agent) = task.agents.get_mut(*agent) {
                    agent.is_ended = true;
                    agent.instructions.clear();
                }
            }
            Event::Usage {
                agent, session_id, ..
            } => {
                task.failed_check = None;
                if let Some(agent) = task.agents.get_mut(agent.unwrap_or(0)) {
                    agent.rounds += 1;
                    agent.results.clear();
                    agent.session = session_id.clone().or(agent.session.take());
                }
            }
            Event::RefineryConflict {
                branch,
                paths,
                onto,
                commit,
                files,
                ..
            } => {
                for path in paths {
                    if !task.conflicts.contains(path) {
                        task.conflicts.push(path.clone());
                    }
                }
                task.conflict = Some(Conflict {
                    branch: branch.clone(),
                    onto: onto.clone(),
                    commit: commit.clone(),
                    files: files.clone(),
                });
            }
            Event::RefinerySettled { decisions, .. } => {
                task.conflict = None;
                task.decisions.extend(decisions.iter().cloned());
            }
            Event::RefineryTests { report, .. } => task.failed_check = report.clone(),
            _ => {}
        }
    }
}
