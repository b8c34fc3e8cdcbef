//! Runs with random plans, failures, pauses and restarts: each ends, and no rule of the order is broken.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::event::{Entry, HoldReason};
use crate::plan::AgentType;
use serde_json::json;

/// A run whose work is done by the test.
struct Simulation {
    state: State,
    log: Vec<Entry>,
    in_flight: Vec<Action>,
    max_parallel: usize,
}

impl Simulation {
    fn new(edges: &[(usize, usize)], tasks: usize) -> Self {
        let mut run = Self {
            state: State::new(Timestamp::UNIX_EPOCH, false),
            log: Vec::new(),
            in_flight: Vec::new(),
            max_parallel: 3,
        };
        let attached = Event::RunAttached {
            reference: "main".to_owned(),
            commit: "c".to_owned(),
        };
        run.write(0, attached);
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

    fn write(&mut self, attempt: u32, event: Event) {
        let entry = Entry {
            at: Timestamp::UNIX_EPOCH,
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
    fn decide(&mut self) {
        loop {
            let actions = decide(&self.state, self.max_parallel);
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
                    for (attempt, event) in transition.events(&self.state, 0) {
                        self.write(attempt, event);
                    }
                }
            }
        }
    }

    fn begin(&mut self, action: Action) {
        let starts = matches!(action, Action::Start { .. } | Action::Captain { .. })
            || matches!(&action, Action::Merge { task, .. } if self.state.tasks[task].status == TaskStatus::Pending);
        assert!(
            !(starts && self.state.user_hold),
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
        self.in_flight.push(action);
        let attempts = self.state.tasks.values().filter(|task| {
            !task.is_refinery()
                && (task.status == TaskStatus::Running
                    || task.is_scheduled && task.status == TaskStatus::Pending)
        });
        assert!(attempts.count() <= self.max_parallel);
    }

    /// Ends one piece of work.
    fn finish(&mut self, place: usize, fails: bool) {
        let action = self.in_flight.remove(place % self.in_flight.len());
        match action {
            Action::Start { task, attempt } => self.status(&task, TaskStatus::Running, attempt),
            Action::Follow { task, attempt, .. } => {
                let to = if fails {
                    TaskStatus::Failed
                } else {
                    TaskStatus::Done
                };
                self.status(&task, to, attempt);
            }
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
                if fails {
                    return self.status(&task, TaskStatus::Failed, attempt);
                }
                let graph = self.state.graph.clone().unwrap();
                for node in graph.inputs(&task) {
                    let attempt = self.state.tasks[&node.id].attempt;
                    self.status(&node.id, TaskStatus::Merged, attempt);
                }
                self.status(&task, TaskStatus::Merged, attempt);
            }
            Action::Attach | Action::Captain { .. } | Action::Record(_) => {
                unreachable!("{action:?}")
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Finish(usize, bool),
    Pause,
    Resume,
    /// The process ends: what was in flight is decided again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(place, fails)| Step::Finish(place, fails)),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_run_with_a_valid_plan_ends(
        edges in prop::collection::vec((0usize..9, 0usize..9), 0..24),
        steps in prop::collection::vec(step(), 0..120),
        cancels in prop::bool::weighted(0.1),
    ) {
        let mut run = Simulation::new(&edges, 9);
        run.decide();
        let hold = HoldReason::User;
        for step in steps {
            match step {
                _ if run.state.end.is_some() => break,
                Step::Finish(place, fails) if !run.in_flight.is_empty() => run.finish(place, fails),
                Step::Pause if !run.state.user_hold => run.write(0, Event::RunPaused { reason: hold }),
                Step::Resume if run.state.user_hold => run.write(0, Event::RunResumed { reason: hold }),
                Step::Restart => run.in_flight.clear(),
                Step::Finish(..) | Step::Pause | Step::Resume => {}
            }
            run.decide();
        }
        if run.state.end.is_none() {
            if run.state.user_hold {
                run.write(0, Event::RunResumed { reason: hold });
            }
            if cancels {
                run.in_flight.clear();
                run.write(0, Event::RunCancelling {});
            }
            run.decide();
        }
        for _ in 0..1_000 {
            if run.state.end.is_some() {
                break;
            }
            prop_assert!(!run.in_flight.is_empty(), "nothing can go on: {:?}", run.state.tasks);
            run.finish(0, false);
            run.decide();
        }
        let end = run.state.end.clone().expect("the run ends");
        let merged = run.state.tasks.values().all(|task| task.status == TaskStatus::Merged);
        let exhausted = run.state.tasks.values().any(|task| task.is_exhausted);
        // A run that is cancelled with its last merge is cancelled.
        let is_cancelled = run.state.is_cancelling;
        prop_assert_eq!(end.status == End::Cancelled, is_cancelled);
        prop_assert_eq!(end.status == End::Completed, merged && !is_cancelled);
        prop_assert_eq!(end.status == End::Failed, exhausted && !merged && !is_cancelled);
        // The log alone gives the same state.
        let mut again = State::new(Timestamp::UNIX_EPOCH, false);
        for entry in &run.log {
            again.fold(entry);
        }
        prop_assert_eq!(again, run.state);
    }
}
