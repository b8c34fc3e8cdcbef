//! Decision on what a run does next. Pure: the same state gives the same actions, so that a restart continues where the
//! process ended.

use std::collections::BTreeSet;

use crate::Work;
use crate::agent::Place;
use crate::change;
use crate::event::{CrStatus, End, Event, TaskStatus};
use crate::plan::Node;
use crate::request::Approval;
use crate::state::{Plan, State, Task};

/// Attempts of one task.
pub const MAX_ATTEMPTS: u32 = 4;

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

/// Actions that the state asks for. At most `max_parallel` attempts run at once.
pub fn decide(state: &State, max_parallel: usize) -> Vec<Action> {
    if state.end.is_some() {
        return Vec::new();
    }
    if state.is_cancelling {
        return cancel(state);
    }
    let mut actions: Vec<Action> = state
        .tasks
        .iter()
        .flat_map(|(id, task)| continue_task(id, task))
        .collect();
    let mut pending = state.with_status(CrStatus::Pending);
    if let Some(request) = pending.next().filter(|_| state.approval == Approval::Auto) {
        let cr_id = request.id.clone();
        actions.push(Action::Record(vec![Transition::Approve { cr_id }]));
    }
    if state.is_held() {
        return actions;
    }
    if state.repository.is_none() {
        actions.push(Action::Attach);
        return actions;
    }
    let captain = &state.captain;
    let approved = state.with_status(CrStatus::Approved).next();
    let is_asked = !captain.results.is_empty()
        || (state.plan == Plan::Open && !captain.messages.is_empty())
        || approved.is_some_and(|request| !request.is_direct());
    if let Some(request) = approved.filter(|request| request.is_direct()) {
        // Before anything starts, since it can add what a task must wait for.
        let cr_id = request.id.clone();
        actions.push(Action::Record(vec![Transition::Apply { cr_id }]));
        return actions;
    }
    if is_asked {
        actions.push(Action::Captain {
            turn: captain.turns + 1,
        });
    }
    if state.plan == Plan::Open {
        return actions;
    }
    if state.plan == Plan::Final {
        if !state.plan_review {
            actions.push(Action::Record(vec![Transition::Execute]));
        }
        return actions;
    }
    start(state, max_parallel, &mut actions);
    if actions.is_empty() {
        actions.push(complete(state));
    }
    actions
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
fn start(state: &State, max_parallel: usize, actions: &mut Vec<Action>) {
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
            TaskStatus::Running => {
                for (number, agent) in task.agents.iter().enumerate() {
                    if !agent.is_started && free > 0 {
                        free -= 1;
                        actions.push(Action::Follow(Place {
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
                    actions.push(Action::Merge {
                        task: id,
                        attempt: attempt.max(1),
                    });
                }
            }
            TaskStatus::Pending => {
                if task.is_scheduled || free > 0 {
                    free -= usize::from(!task.is_scheduled);
                    actions.push(Action::Start {
                        task: id,
                        attempt: attempt.max(1),
                    });
                }
            }
            TaskStatus::Failed | TaskStatus::Stale if task.is_exhausted => {}
            TaskStatus::Failed | TaskStatus::Stale if attempt < MAX_ATTEMPTS => {
                transitions.push(Transition::Retry { task: id, attempt });
            }
            TaskStatus::Failed | TaskStatus::Stale => {
                transitions.push(Transition::Exhaust { task: id, attempt });
            }
            TaskStatus::Done | TaskStatus::MergeReady | TaskStatus::Merged => {}
        }
    }
    if !transitions.is_empty() {
        actions.push(Action::Record(transitions));
    }
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
    let open = state
        .tasks
        .iter()
        .filter(|(_, task)| task.status != TaskStatus::Merged);
    let open: Vec<_> = open.collect();
    let failed: BTreeSet<_> = open
        .iter()
        .filter(|(_, task)| task.is_exhausted)
        .map(|(id, _)| id.as_str())
        .collect();
    let (end, error) = match open.is_empty() {
        true => (Outcome::Completed, None),
        false => {
            let blocked = open
                .iter()
                .filter(|(_, task)| task.status == TaskStatus::Pending)
                .map(|(id, _)| id.as_str());
            let [failed, blocked] = [list(failed.iter().copied()), list(blocked)];
            let blocked = match blocked.as_str() {
                "" => String::new(),
                blocked => format!("; not started because of that: {blocked}"),
            };
            (
                Outcome::Failed,
                Some(format!("all attempts failed: {failed}{blocked}")),
            )
        }
    };
    Action::Record(vec![Transition::Complete { end, error }])
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
                let count =
                    |of: fn(&Task) -> bool| state.tasks.values().filter(|task| of(task)).count();
                let completed = Event::RunCompleted {
                    total_completed: count(|task| {
                        task.is_integrated() || task.status == TaskStatus::Done
                    }),
                    total_failed: count(|task| task.is_exhausted),
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
