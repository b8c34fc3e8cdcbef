//! Decision on what a run does next. Pure: the same state gives the same actions, so that a restart continues where the
//! process ended.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::Work;
use crate::agent::Place;
use crate::change;
use crate::event::{CrStatus, End, Event, TaskStatus};
use crate::greeting::{self, Greeting, Interview};
use crate::plan::Node;
use crate::request::Approval;
use crate::state::{Plan, State, Task};
use crate::wait::Wait;

/// Failed tasks whose errors the end of a run names.
const MAX_TOLD: usize = 5;
/// Attempts of one task that its agents fail.
pub const MAX_FAILURES: u32 = 4;

/// Next step of a run. Equal actions are the same piece of work, so one that runs is not started again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Fetch the repository.
    Attach,
    /// Run a turn of the Captain, or continue it.
    Captain { turn: u32 },
    /// Make a checkout for an attempt and submit its first dispatch.
    Start { task: String, attempt: u32 },
    /// Follow a dispatch of an agent to its end. All but the first of an attempt are submitted by this.
    Follow(Place),
    /// Push the branch of a finished attempt.
    Push { task: String, attempt: u32 },
    /// Merge the inputs of a refinery, or publish what its agent has made of them.
    Merge { task: String, attempt: u32 },
    /// Write transitions that need no work.
    Record(Vec<Transition>),
}

/// Transition that follows from the state alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transition {
    /// The bridge speaks first, in place of the Captain.
    Greet,
    /// A plan that needs no approval is executed.
    Execute,
    /// A change request that needs no approval is approved.
    Approve {
        cr_id: String,
    },
    /// The addition of a change request is carried out as it is.
    Apply {
        cr_id: String,
    },
    Retry {
        task: String,
        attempt: u32,
    },
    Exhaust {
        task: String,
        attempt: u32,
    },
    /// The merge of a cancelled run.
    Abandon {
        task: String,
        attempt: u32,
    },
    /// The last one.
    Complete {
        end: Outcome,
        error: Option<String>,
    },
}

/// End of a run, in the order of this enum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Completed => End::Completed,
            Outcome::Failed => End::Failed,
            Outcome::Cancelled => End::Cancelled,
        }
    }
}

/// Next steps of a run, and the time of the earliest that has to wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub wake: Option<Timestamp>,
}

impl Decision {
    /// True if nothing waits; otherwise notes when it is over.
    fn is_due(&mut self, wait: Option<&Wait>, now: Timestamp) -> bool {
        let until = wait.map(|wait| wait.until).filter(|until| *until > now);
        self.wake = self.wake.into_iter().chain(until).min();
        until.is_none()
    }
}

/// Actions that the state asks for. At most `max_parallel` attempts run at once.
pub fn decide(state: &State, max_parallel: usize, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    if state.end.is_some() {
        return decision;
    }
    if state.is_cancelling {
        decision.actions = cancel(state);
        return decision;
    }
    for (id, task) in &state.tasks {
        let actions = continue_task(id, task);
        if !actions.is_empty() && decision.is_due(task.wait.as_ref(), now) {
            decision.actions.extend(actions);
        }
    }
    go_on(state, max_parallel, now, &mut decision);
    decision
}

/// Adds what is new to what has begun.
fn go_on(state: &State, max_parallel: usize, now: Timestamp, decision: &mut Decision) {
    let mut pending = state.with_status(CrStatus::Pending);
    if let Some(request) = pending.next().filter(|_| state.approval == Approval::Auto) {
        let cr_id = request.id.clone();
        let approve = Transition::Approve { cr_id };
        decision.actions.push(Action::Record(vec![approve]));
    }
    if state.is_held() {
        return;
    }
    if state.repository.is_none() {
        if decision.is_due(state.wait.as_ref(), now) {
            decision.actions.push(Action::Attach);
        }
        return;
    }
    let captain = &state.captain;
    let approved = state.with_status(CrStatus::Approved).next();
    let is_asked = captain.interview == Interview::Greeting
        || greeting::is_due(state) == Some(Greeting::Agent)
        || !captain.results.is_empty()
        || (state.plan == Plan::Open && !captain.messages.is_empty())
        || approved.is_some_and(|request| !request.is_direct());
    if let Some(request) = approved.filter(|request| request.is_direct()) {
        // Before anything starts, since it can add what a task must wait for.
        let cr_id = request.id.clone();
        let apply = Transition::Apply { cr_id };
        decision.actions.push(Action::Record(vec![apply]));
        return;
    }
    if greeting::is_due(state) == Some(Greeting::Static) {
        let greet = Action::Record(vec![Transition::Greet]);
        decision.actions.push(greet);
    }
    if is_asked && decision.is_due(state.wait.as_ref(), now) {
        decision.actions.push(Action::Captain {
            turn: captain.turns + 1,
        });
    }
    if state.plan == Plan::Open {
        return;
    }
    if state.plan == Plan::Final {
        if !state.plan_review {
            let execute = Transition::Execute;
            decision.actions.push(Action::Record(vec![execute]));
        }
        return;
    }
    start(state, max_parallel, now, decision);
    if decision.actions.is_empty() && decision.wake.is_none() {
        decision.actions.push(complete(state));
    }
}

/// Work that has begun goes on, also while the run is paused.
fn continue_task(id: &str, task: &Task) -> Vec<Action> {
    let (task_id, attempt) = (id.to_owned(), task.attempt);
    match task.status {
        TaskStatus::Running | TaskStatus::Done if task.is_refinery() && !is_followed(task) => {
            vec![Action::Merge {
                task: task_id,
                attempt,
            }]
        }
        TaskStatus::Running => {
            let agents = task.agents.iter().enumerate();
            let active = agents.filter(|(_, agent)| agent.is_active());
            let follow = active.map(|(number, agent)| {
                Action::Follow(Place {
                    task: id.to_owned(),
                    attempt,
                    agent: number,
                    round: agent.rounds,
                })
            });
            follow.collect()
        }
        TaskStatus::Done => vec![Action::Push {
            task: task_id,
            attempt,
        }],
        TaskStatus::Pending
        | TaskStatus::MergeReady
        | TaskStatus::Merged
        | TaskStatus::Failed
        | TaskStatus::Stale => Vec::new(),
    }
}

/// An attempt with agents that have not ended.
fn is_followed(task: &Task) -> bool {
    task.status == TaskStatus::Running && !task.agents.is_empty()
}

/// Number of places that a task takes.
fn places(task: &Task) -> usize {
    let is_starting = task.status == TaskStatus::Pending && task.is_scheduled;
    match task.status {
        TaskStatus::Running => task.agents.iter().filter(|one| one.is_active()).count(),
        _ => usize::from(is_starting && !task.is_refinery()),
    }
}

/// Starts what is ready, retries what failed.
fn start(state: &State, max_parallel: usize, now: Timestamp, decision: &mut Decision) {
    let taken: usize = state.tasks.values().map(places).sum();
    let mut free = max_parallel.saturating_sub(taken);
    let is_merging = |task: &Task| {
        let is_under_way = matches!(task.status, TaskStatus::Running | TaskStatus::Done);
        task.is_refinery() && is_under_way
    };
    let mut is_merging = state.tasks.values().any(is_merging);
    let approved = state.with_status(CrStatus::Approved);
    let waiting: BTreeSet<_> = approved.flat_map(|request| &request.impact).collect();
    let mut transitions = Vec::new();
    for node in state.nodes() {
        let Some(task) = state.tasks.get(&node.id) else {
            continue;
        };
        let (id, attempt) = (node.id.clone(), task.attempt);
        match task.status {
            TaskStatus::Pending if !task.is_scheduled && waiting.contains(&node.id) => {}
            TaskStatus::Pending if !is_ready(state, node) => {}
            TaskStatus::Pending if !decision.is_due(task.wait.as_ref(), now) => {}
            TaskStatus::Running => {
                for (number, agent) in task.agents.iter().enumerate() {
                    if !agent.is_started && free > 0 {
                        free -= 1;
                        decision.actions.push(Action::Follow(Place {
                            task: id.clone(),
                            attempt,
                            agent: number,
                            round: 0,
                        }));
                    }
                }
            }
            TaskStatus::Pending if task.is_refinery() => {
                if !std::mem::replace(&mut is_merging, true) {
                    decision.actions.push(Action::Merge {
                        task: id,
                        attempt: attempt.max(1),
                    });
                }
            }
            // It would end at once.
            TaskStatus::Pending if state.is_spent() => {}
            TaskStatus::Pending => {
                if task.is_scheduled || free > 0 {
                    free -= usize::from(!task.is_scheduled);
                    decision.actions.push(Action::Start {
                        task: id,
                        attempt: attempt.max(1),
                    });
                }
            }
            TaskStatus::Failed | TaskStatus::Stale if task.is_exhausted => {}
            TaskStatus::Failed | TaskStatus::Stale if is_given_up(state, task) => {
                transitions.push(Transition::Exhaust { task: id, attempt });
            }
            TaskStatus::Failed | TaskStatus::Stale => {
                if decision.is_due(task.wait.as_ref(), now) {
                    transitions.push(Transition::Retry { task: id, attempt });
                }
            }
            TaskStatus::Done | TaskStatus::MergeReady | TaskStatus::Merged => {}
        }
    }
    if !transitions.is_empty() {
        decision.actions.push(Action::Record(transitions));
    }
}

/// A further attempt would end like those before it.
fn is_given_up(state: &State, task: &Task) -> bool {
    task.failures >= MAX_FAILURES || state.is_spent()
}

/// The gate: what a refinery merged must be merged, other results must be pushed.
fn is_ready(state: &State, node: &Node) -> bool {
    node.dependencies
        .iter()
        .all(|id| match state.tasks.get(id) {
            Some(task) if task.is_refinery() => task.status == TaskStatus::Merged,
            Some(task) => task.is_integrated(),
            None => false,
        })
}

/// Nothing runs and nothing can start.
fn complete(state: &State) -> Action {
    let open = state.tasks.iter();
    let open = open.filter(|(_, task)| task.status != TaskStatus::Merged);
    let open: Vec<_> = open.collect();
    let (end, error) = match open.is_empty() {
        true => (Outcome::Completed, None),
        false => (Outcome::Failed, Some(failure(state, &open))),
    };
    Action::Record(vec![Transition::Complete { end, error }])
}

/// Reasons why these tasks are not merged.
fn failure(state: &State, open: &[(&String, &Task)]) -> String {
    let failed = open.iter().filter(|(_, task)| task.is_exhausted);
    let told = failed.clone().take(MAX_TOLD).map(|(id, task)| {
        let error = task.error.as_deref().unwrap_or("it ended without a reason");
        format!("{id} failed: {error}")
    });
    let more = failed.count().saturating_sub(MAX_TOLD);
    let more = (more > 0).then(|| format!("{more} more tasks failed"));
    let spent = state.is_spent();
    let spent = spent.then(|| "the budget of the run is used up".to_owned());
    let blocked = open
        .iter()
        .filter(|(_, task)| task.status == TaskStatus::Pending);
    let blocked = list(blocked.map(|(id, _)| id.as_str()));
    let blocked = (!blocked.is_empty()).then(|| format!("not started because of that: {blocked}"));
    let parts = spent.into_iter().chain(told).chain(more).chain(blocked);
    parts.collect::<Vec<_>>().join("; ")
}

fn list<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    ids.collect::<Vec<_>>().join(", ")
}

/// Attempts are followed to their ends, which the driver requests; then the run ends.
fn cancel(state: &State) -> Vec<Action> {
    let running = state
        .tasks
        .iter()
        .filter(|(_, task)| task.status == TaskStatus::Running);
    let (attempts, merges): (Vec<_>, Vec<_>) = running.partition(|(_, task)| is_followed(task));
    if !attempts.is_empty() {
        let mut actions = Vec::new();
        for (id, task) in attempts {
            actions.extend(continue_task(id, task));
            // Those that wait for a place end at once, so that the agents that have started them end.
            let agents = task.agents.iter().enumerate();
            let waiting = agents.filter(|(_, agent)| !agent.is_started);
            actions.extend(waiting.map(|(number, _)| {
                Action::Follow(Place {
                    task: id.clone(),
                    attempt: task.attempt,
                    agent: number,
                    round: 0,
                })
            }));
        }
        return actions;
    }
    let abandoned = merges.into_iter().map(|(id, task)| Transition::Abandon {
        task: id.clone(),
        attempt: task.attempt,
    });
    let complete = Transition::Complete {
        end: Outcome::Cancelled,
        error: None,
    };
    vec![Action::Record(abandoned.chain([complete]).collect())]
}

impl Transition {
    /// Events of the transition, each with its attempt, and documents.
    pub(crate) fn work(&self, state: &State, elapsed_ms: u64) -> Work {
        let status = |id: &str| {
            let task = state.tasks.get(id);
            task.map_or(TaskStatus::Pending, |task| task.status)
        };
        let entries = match self {
            Transition::Greet => vec![(0, greeting::spoken())],
            Transition::Execute => vec![(0, Event::RunExecuting {})],
            Transition::Approve { cr_id } => change::decided(cr_id, CrStatus::Approved, None),
            Transition::Apply { cr_id } => {
                let request = state.change_request(cr_id);
                let addition = request.and_then(|request| request.addition.as_ref());
                return addition.map_or(Work::default(), |addition| {
                    change::apply(state, cr_id, addition)
                });
            }
            Transition::Retry { task, attempt } => {
                let retried = Event::TaskRetried {
                    task_id: task.clone(),
                    by_user: false,
                };
                vec![
                    (
                        *attempt,
                        changed(task, status(task), TaskStatus::Pending, *attempt),
                    ),
                    (attempt + 1, retried),
                ]
            }
            Transition::Exhaust { task, attempt } => {
                let exhausted = Event::TaskExhausted {
                    task_id: task.clone(),
                };
                vec![(*attempt, exhausted)]
            }
            Transition::Abandon { task, attempt } => {
                vec![(
                    *attempt,
                    changed(task, status(task), TaskStatus::Failed, *attempt),
                )]
            }
            Transition::Complete { end, error } => {
                let is_completed =
                    |task: &Task| task.is_integrated() || task.status == TaskStatus::Done;
                let count = |is_refinery: bool, of: fn(&Task) -> bool| {
                    let tasks = state.tasks.values();
                    let tasks = tasks.filter(|task| task.is_refinery() == is_refinery);
                    tasks.filter(|task| of(task)).count()
                };
                let completed = Event::RunCompleted {
                    total_completed: count(false, is_completed),
                    total_failed: count(false, |task| task.is_exhausted),
                    refineries_completed: count(true, is_completed),
                    refineries_failed: count(true, |task| task.is_exhausted),
                    duration: elapsed_ms,
                    status: (*end).into(),
                    error: error.clone(),
                };
                vec![(0, completed)]
            }
        };
        Work {
            entries,
            ..Work::default()
        }
    }
}

/// Event of a task's transition.
pub fn changed(task: &str, from: TaskStatus, to: TaskStatus, attempt: u32) -> Event {
    Event::TaskChanged {
        task_id: task.to_owned(),
        previous_status: from,
        new_status: to,
        attempt,
        reason: None,
    }
}

#[cfg(test)]
mod tests;
