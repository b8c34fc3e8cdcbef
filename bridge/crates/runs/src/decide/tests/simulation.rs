//! A run whose work is done by the test.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::super::*;
use crate::event::Entry;
use crate::plan::AgentType;
use crate::step::{Outcome as StepOutcome, StepError, ToolCall};
use crate::tools::agent::{EMIT_CR, SPAWN_AGENT};
use crate::tools::captain::ADD_TO_DAG;
use crate::wait::Cause;
use crate::{agent, captain};
use forge_base::id::{DispatchId, RunId};
use forge_base::time;
use serde_json::json;

/// Agents of one attempt, and change requests of one run.
const MOST: usize = 4;

/// A run whose work is done by the test.
pub(super) struct Simulation {
    pub(super) state: State,
    pub(super) log: Vec<Entry>,
    pub(super) in_flight: Vec<Action>,
    max_parallel: usize,
    pub(super) now: Timestamp,
    /// Time at which something that waits is due.
    wake: Option<Timestamp>,
}

impl Simulation {
    pub(super) fn new(edges: &[(usize, usize)], tasks: usize) -> Self {
        let mut run = Self {
            state: State::new(Timestamp::UNIX_EPOCH, false, Approval::User),
            log: Vec::new(),
            in_flight: Vec::new(),
            max_parallel: 3,
            now: Timestamp::UNIX_EPOCH,
            wake: None,
        };
        let attached = Event::RunAttached {
            reference: "main".to_owned(),
            commit: "c".to_owned(),
        };
        run.write(0, attached);
        let content = "Build it".to_owned();
        run.write(0, Event::UserMessage { content });
        run.write(
            0,
            Event::Usage {
                dispatch_id: "d".to_owned(),
                task_id: None,
                agent: None,
                session_id: None,
                tokens: 0,
                cost_usd: 0.0,
                repeats: false,
            },
        );
        let mut nodes = Vec::new();
        for n in 0..tasks {
            let of = edges.iter().filter(|(to, from)| *to == n && from < to);
            let of: Vec<_> = of.map(|(_, from)| format!("t{from}")).collect();
            let kind = if n % 4 == 3 && !of.is_empty() {
                json!("refinery")
            } else {
                json!(2)
            };
            run.tool(
                "create_task",
                json!({"id": format!("t{n}"), "title": "t", "type": kind, "dependencies": of}),
            );
            nodes.push(json!({"id": format!("t{n}")}));
        }
        run.tool("set_dag", json!({"nodes": nodes}));
        let finalized = Event::PlanFinalized {
            total_tasks: 0,
            total_refineries: 0,
            spec_count: 0,
        };
        run.write(0, finalized);
        run
    }

    pub(super) fn write(&mut self, attempt: u32, event: Event) {
        let entry = Entry {
            at: self.now,
            attempt,
            event,
        };
        self.state.fold(&entry);
        self.log.push(entry);
    }

    fn tool(&mut self, name: &str, args: serde_json::Value) {
        let event = Event::CaptainToolCall {
            tool_name: name.to_owned(),
            args,
            call_id: "c".to_owned(),
        };
        self.write(0, event);
    }

    fn status(&mut self, task: &str, to: TaskStatus, attempt: u32) {
        let from = self.state.tasks[task].status;
        self.write(attempt, changed(task, from, to, attempt));
    }

    /// Starts what is asked for and not in flight.
    pub(super) fn decide(&mut self) {
        loop {
            let Decision { actions, wake } = decide(&self.state, self.max_parallel, self.now);
            self.wake = wake;
            let records: Vec<_> = actions
                .iter()
                .filter(|action| matches!(action, Action::Record(_)))
                .cloned()
                .collect();
            for action in actions {
                if !matches!(action, Action::Record(_)) && !self.in_flight.contains(&action) {
                    self.begin(action);
                }
            }
            if records.is_empty() {
                return;
            }
            for record in records {
                let Action::Record(transitions) = record else {
                    unreachable!()
                };
                for transition in transitions {
                    if matches!(transition, Transition::Complete { .. }) {
                        assert_eq!(self.in_flight, [], "the run ends while work is in flight");
                    }
                    self.write_all(transition.work(&self.state, 0));
                }
            }
        }
    }

    fn begin(&mut self, action: Action) {
        let is_new = match &action {
            Action::Follow(place) => !self.state.tasks[&place.task].agents[place.agent].is_started,
            _ => false,
        };
        let starts = match &action {
            Action::Start { .. } | Action::Captain { .. } => true,
            Action::Merge { task, .. } => self.state.tasks[task].status == TaskStatus::Pending,
            Action::Follow(_) => is_new && !self.state.is_cancelling,
            Action::Attach | Action::Push { .. } | Action::Record(_) => false,
        };
        assert!(
            !(starts && self.state.is_held()),
            "{action:?} starts while the run is paused"
        );
        if let Action::Start { task, .. } | Action::Merge { task, .. } = &action {
            let nodes = self.state.nodes();
            let node = nodes.iter().find(|node| node.id == *task).unwrap();
            for id in &node.dependencies {
                let before = &self.state.tasks[id];
                let is_met = if before.is_refinery() {
                    before.status == TaskStatus::Merged
                } else {
                    before.is_integrated()
                };
                assert!(is_met, "{task} starts before {id}");
            }
        }
        if let Action::Start { task, attempt } = &action {
            let scheduled = Event::TaskScheduled {
                task_id: task.clone(),
                agent_type: AgentType::Worker,
            };
            if !self.state.tasks[task].is_scheduled {
                self.write(*attempt, scheduled);
            }
        }
        if let Action::Follow(place) = &action
            && is_new
        {
            let started = Event::AgentStarted {
                task_id: place.task.clone(),
                agent: place.agent,
                agent_type: AgentType::Throwaway,
                title: "a".to_owned(),
                branch: "b".to_owned(),
            };
            self.write(place.attempt, started);
        }
        self.in_flight.push(action);
        if starts && !self.state.is_cancelling {
            let agents = self.state.tasks.values().map(places);
            assert!(agents.sum::<usize>() <= self.max_parallel + 1);
        }
    }

    fn write_all(&mut self, work: Work) {
        for (attempt, event) in work.entries {
            self.write(attempt, event);
        }
    }

    fn started(&mut self, task: &str, attempt: u32) {
        let started = Event::TaskStarted {
            task_id: task.to_owned(),
            agent_id: "d".to_owned(),
            sandbox_id: "s".to_owned(),
            branch: "b".to_owned(),
        };
        self.write(attempt, started);
    }

    /// End of a dispatch of an agent: with a call, as a failure, or as the end of the agent.
    fn finish_dispatch(&mut self, place: &Place, how: WorkEnd) {
        let (attempt, number) = (place.attempt, place.number());
        let agents = &self.state.tasks[&place.task].agents;
        let agent = agents[place.agent].clone();
        let usage = Event::Usage {
            dispatch_id: "d".to_owned(),
            task_id: Some(place.task.clone()),
            agent: number,
            session_id: Some("s".to_owned()),
            tokens: 1,
            cost_usd: 0.1,
            repeats: false,
        };
        let call = match how {
            WorkEnd::Calls if agents.len() < MOST && agent.agent_type != AgentType::Throwaway => {
                let input = json!({"type": 1, "title": "t", "instructions": "i"});
                Some((SPAWN_AGENT, input))
            }
            WorkEnd::Asks if self.state.change_requests.len() < MOST && place.agent == 0 => {
                let number = self.state.change_requests.len();
                let impact: Vec<_> = self.state.tasks.keys().skip(number * 2).take(1).collect();
                let node = json!({"id": format!("x{number}"), "title": "x", "instructions": "i"});
                let overlay = json!({"addedNodes": [node]});
                Some((
                    EMIT_CR,
                    json!({"title": "t", "reason": "r", "affectedTasks": impact, "overlay": overlay}),
                ))
            }
            _ => None,
        };
        self.write(attempt, usage);
        if let Some((name, input)) = call {
            let call = ToolCall {
                tool_call_id: format!("c{}", agent.rounds),
                name: name.to_owned(),
                input,
            };
            let now = self.now;
            let work = agent::carry_out(&mut self.state.clone(), place, vec![call], now);
            return self.write_all(work);
        }
        let fails = matches!(how, WorkEnd::Fails);
        let Some(parent) = agent.parent else {
            return match how {
                WorkEnd::Waits => self.excuse(&place.task, attempt),
                WorkEnd::Fails => self.fail(&place.task, attempt),
                WorkEnd::Well | WorkEnd::Calls | WorkEnd::Asks => {
                    self.status(&place.task, TaskStatus::Done, attempt);
                }
            };
        };
        let ended = Event::AgentEnded {
            task_id: place.task.clone(),
            agent: place.agent,
            error: None,
        };
        let answered = Event::ToolResult {
            task_id: place.task.clone(),
            tool_name: SPAWN_AGENT.to_owned(),
            result: json!("done"),
            is_error: fails,
            call_id: parent.call_id,
            agent: (parent.agent > 0).then_some(parent.agent),
        };
        self.write(attempt, ended);
        self.write(attempt, answered);
    }

    /// End of an attempt that its agent has failed.
    fn fail(&mut self, task: &str, attempt: u32) {
        let failed = Event::TaskFailed {
            task_id: task.to_owned(),
            error: "failed".to_owned(),
            can_retry: true,
            counted: true,
            result_kept: false,
        };
        self.write(attempt, failed);
        self.status(task, TaskStatus::Failed, attempt);
    }

    /// End of an attempt that its agent has not failed.
    fn excuse(&mut self, task: &str, attempt: u32) {
        let stale = Event::TaskStale {
            task_id: task.to_owned(),
            error: "interrupted".to_owned(),
            counted: false,
        };
        self.write(attempt, stale);
        self.status(task, TaskStatus::Stale, attempt);
        self.wait(task, attempt);
    }

    fn wait(&mut self, task: &str, attempt: u32) {
        let waiting = Event::TaskWaiting {
            task_id: task.to_owned(),
            cause: Cause::Remote,
            reason: "away".to_owned(),
            until: time::after(self.now, Duration::from_secs(10)),
        };
        self.write(attempt, waiting);
    }

    /// Lets the time pass up to the next thing that waits, if nothing else can be done.
    pub(super) fn pass(&mut self) -> bool {
        let wake = self.wake.filter(|_| self.in_flight.is_empty());
        self.now = wake.unwrap_or(self.now);
        wake.is_some()
    }

    /// Lets all work end well.
    pub(super) fn complete(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..1_000 {
            if self.state.end.is_some() {
                break;
            }
            let can_continue = !self.in_flight.is_empty() || self.wake.is_some();
            prop_assert!(can_continue, "nothing can go on: {:?}", self.state.tasks);
            if !self.pass() {
                self.finish(0, WorkEnd::Well);
            }
            self.decide();
        }
        Ok(())
    }

    fn finish_turn(&mut self, how: WorkEnd) {
        let number = self.state.captain.turns;
        let node = json!({"id": format!("y{number}"), "title": "y", "instructions": "i"});
        let call = ToolCall {
            tool_call_id: "c".to_owned(),
            name: ADD_TO_DAG.to_owned(),
            input: json!({"addedNodes": [node]}),
        };
        let outcome = StepOutcome {
            dispatch: DispatchId::new(),
            error: matches!(how, WorkEnd::Fails).then(|| StepError::new("code", "text")),
            output: "text".to_owned(),
            tool_calls: matches!(how, WorkEnd::Calls)
                .then_some(call)
                .into_iter()
                .collect(),
            session_id: None,
            tokens: 1,
            cost_usd: 0.0,
        };
        let run = RunId::new();
        let now = self.now;
        let work = captain::carry_out(&mut self.state.clone(), run, outcome, now);
        self.write_all(work);
    }

    /// The user decides on all change requests.
    pub(super) fn decide_changes(&mut self, status: CrStatus) {
        let pending = self.state.with_status(CrStatus::Pending);
        let pending: Vec<_> = pending.map(|request| request.id.clone()).collect();
        for id in pending {
            for (attempt, event) in change::decided(&id, status, None) {
                self.write(attempt, event);
            }
        }
    }

    /// Ends one piece of work.
    pub(super) fn finish(&mut self, place: usize, how: WorkEnd) {
        let action = self.in_flight.remove(place % self.in_flight.len());
        match action {
            Action::Start { task, attempt } => {
                self.started(&task, attempt);
                self.status(&task, TaskStatus::Running, attempt);
            }
            Action::Follow(place) => self.finish_dispatch(&place, how),
            Action::Captain { .. } => self.finish_turn(how),
            Action::Push { task, attempt } if how == WorkEnd::Waits => self.wait(&task, attempt),
            Action::Push { task, attempt } => self.status(&task, TaskStatus::MergeReady, attempt),
            Action::Merge { task, attempt } => {
                if self.state.tasks[&task].status == TaskStatus::Pending {
                    let scheduled = Event::TaskScheduled {
                        task_id: task.clone(),
                        agent_type: AgentType::Refinery,
                    };
                    self.write(attempt, scheduled);
                    self.status(&task, TaskStatus::Running, attempt);
                }
                let is_settled = self.state.tasks[&task].status == TaskStatus::Done;
                match how {
                    WorkEnd::Calls if !is_settled => return self.started(&task, attempt),
                    WorkEnd::Fails => return self.fail(&task, attempt),
                    WorkEnd::Waits => return self.wait(&task, attempt),
                    WorkEnd::Well | WorkEnd::Calls | WorkEnd::Asks => {}
                }
                let graph = self.state.graph.clone().unwrap();
                for node in graph.inputs(&task) {
                    let attempt = self.state.tasks[&node.id].attempt;
                    self.status(&node.id, TaskStatus::Merged, attempt);
                }
                self.status(&task, TaskStatus::Merged, attempt);
            }
            Action::Attach | Action::Record(_) => {
                unreachable!("{action:?}")
            }
        }
    }
}

/// End of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WorkEnd {
    Well,
    Fails,
    /// For a reason that no agent causes.
    Waits,
    /// With a call of a tool.
    Calls,
    /// With a change request, if it is an agent.
    Asks,
}
