//! Decision on what a run does next. Pure: the same state gives the same actions, so that a restart continues where the
//! process ended.

use std::collections::BTreeSet;

use crate::event::{End, Event, TaskStatus};
use crate::plan::Node;
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
    /// Follow the dispatch of an attempt to its end.
    Follow { task: String, attempt: u32 },
    /// Push the branch of a finished attempt.
    Push { task: String, attempt: u32 },
    /// Merge the inputs of a refinery.
    Merge { task: String, attempt: u32 },
    /// Write transitions that need no work.
    Record(Vec<Transition>),
}

/// Transition that follows from the state alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transition {
    /// A plan that needs no approval is executed.
    Execute,
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
        .filter_map(|(id, task)| continue_task(id, task))
        .collect();
    if state.user_hold {
        return actions;
    }
    if state.repository.is_none() {
        actions.push(Action::Attach);
        return actions;
    }
    let captain = &state.captain;
    let is_asked =
        !captain.results.is_empty() || (state.plan == Plan::Open && !captain.messages.is_empty());
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
fn continue_task(id: &str, task: &Task) -> Option<Action> {
    let (task_id, attempt) = (id.to_owned(), task.attempt);
    match task.status {
        TaskStatus::Running if task.is_refinery() => Some(Action::Merge {
            task: task_id,
            attempt,
        }),
        TaskStatus::Running => Some(Action::Follow {
            task: task_id,
            attempt,
        }),
        TaskStatus::Done if !task.is_refinery() => Some(Action::Push {
            task: task_id,
            attempt,
        }),
        TaskStatus::Pending
        | TaskStatus::Done
        | TaskStatus::MergeReady
        | TaskStatus::Merged
        | TaskStatus::Failed
        | TaskStatus::Stale => None,
    }
}

/// Starts what is ready, retries what failed.
fn start(state: &State, max_parallel: usize, actions: &mut Vec<Action>) {
    let running = |task: &&Task| {
        let is_starting = task.status == TaskStatus::Pending && task.is_scheduled;
        !task.is_refinery() && (is_starting || task.status == TaskStatus::Running)
    };
    let mut free = max_parallel.saturating_sub(state.tasks.values().filter(running).count());
    let mut is_merging = state
        .tasks
        .values()
        .any(|task| task.is_refinery() && task.status == TaskStatus::Running);
    let mut transitions = Vec::new();
    for node in state.nodes() {
        let Some(task) = state.tasks.get(&node.id) else {
            continue;
        };
        let (id, attempt) = (node.id.clone(), task.attempt);
        match task.status {
            TaskStatus::Pending if !is_ready(state, node) => {}
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
            TaskStatus::Running
            | TaskStatus::Done
            | TaskStatus::MergeReady
            | TaskStatus::Merged => {}
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
    let (merges, attempts): (Vec<_>, Vec<_>) = running.partition(|(_, task)| task.is_refinery());
    if !attempts.is_empty() {
        return attempts
            .into_iter()
            .filter_map(|(id, task)| continue_task(id, task))
            .collect();
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
    /// Events of the transition, each with its attempt.
    pub fn events(&self, state: &State, elapsed_ms: u64) -> Vec<(u32, Event)> {
        let status = |id: &str| {
            state
                .tasks
                .get(id)
                .map_or(TaskStatus::Pending, |task| task.status)
        };
        match self {
            Transition::Execute => vec![(0, Event::RunExecuting {})],
            Transition::Retry { task, attempt } => {
                let next = attempt + 1;
                vec![
                    (
                        *attempt,
                        changed(task, status(task), TaskStatus::Pending, *attempt),
                    ),
                    (
                        next,
                        Event::TaskRetried {
                            task_id: task.clone(),
                        },
                    ),
                ]
            }
            Transition::Exhaust { task, attempt } => vec![(
                *attempt,
                Event::TaskExhausted {
                    task_id: task.clone(),
                },
            )],
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
