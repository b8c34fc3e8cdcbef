//! Requests of clients that change a run. Pure: each becomes events, or the reason why the state does not allow it.

use forge_adapter_api::request::Budget;
use jiff::Timestamp;
use serde_json::{Value, json};

use forge_store::record::RunStatus;

use crate::change;
use crate::decide::changed;
use crate::event::{CrStatus, Event, HoldReason, TaskStatus};
use crate::state::{State, Task};
use crate::wait::whole_ms;

/// Request of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A message to the Captain.
    Message(String),
    /// Nothing new starts.
    Pause(PauseMode),
    Resume,
    Cancel,
    ApprovePlan,
    ReopenPlan,
    /// Continues a run that ended without completing, or tries at once what waits.
    Retry {
        budget: Option<Budget>,
    },
    /// The same for one task.
    RetryTask(String),
    ApproveChange(String),
    RejectChange {
        id: String,
        reason: Option<String>,
    },
}

/// Effect of a pause on what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// Asks running agents to end with what they have, where their adapters take messages; others run to their end.
    WrapUp,
    /// Cancels running agents; a resume repeats their attempts.
    Abort,
}

/// Reason why a request is not possible now.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum NotNow {
    #[error("{message}")]
    InvalidState { message: String, details: Value },
    #[error("the run has no task {0:?}")]
    NoTask(String),
    #[error("the run has no change request {0:?}")]
    NoChange(String),
}

impl Command {
    /// Events of the request, each with its attempt.
    pub fn events(&self, state: &State, now: Timestamp) -> Result<Vec<(u32, Event)>, NotNow> {
        let status = state.status();
        if let Command::ApproveChange(id) | Command::RejectChange { id, .. } = self {
            return decide_change(self, state, status, id);
        }
        match self {
            Command::Retry { budget } => return retry_run(state, status, *budget, now),
            Command::RetryTask(id) => return retry_task(state, status, id, now),
            _ if status.is_ended() => return Err(refused(status, "the run has ended")),
            _ => {}
        }
        let of_run = |events: Vec<Event>| Ok(events.into_iter().map(|event| (0, event)).collect());
        match self {
            Command::Message(content) if status == RunStatus::Planning => {
                of_run(vec![Event::UserMessage {
                    content: content.clone(),
                }])
            }
            Command::Message(_) => Err(refused(
                status,
                "the Captain takes messages only while the run is planned",
            )),
            Command::Pause(_) if state.user_hold => {
                Err(refused(status, "the run is paused already"))
            }
            Command::Pause(_) => of_run(vec![Event::RunPaused {
                reason: HoldReason::User,
                cr_id: None,
            }]),
            Command::Resume => {
                let pending = state.with_status(CrStatus::Pending);
                let pending: Vec<_> = pending.map(|request| &*request.id).collect();
                if !pending.is_empty() {
                    let message = format!("approve or reject first: {}", pending.join(", "));
                    let details = json!({
                        "status": status_name(status), "pendingChangeRequests": pending
                    });
                    return Err(NotNow::InvalidState { message, details });
                }
                if !state.user_hold {
                    return Err(refused(status, "the run is not paused"));
                }
                of_run(vec![Event::RunResumed {
                    reason: HoldReason::User,
                    cr_id: None,
                }])
            }
            Command::Cancel if state.is_cancelling => of_run(Vec::new()),
            Command::Cancel => of_run(vec![Event::RunCancelling {}]),
            Command::ApprovePlan if status == RunStatus::PlanReview => {
                of_run(vec![Event::PlanApproved {}, Event::RunExecuting {}])
            }
            Command::ReopenPlan if status == RunStatus::PlanReview => {
                of_run(vec![Event::PlanReopened {}])
            }
            Command::ApprovePlan | Command::ReopenPlan => {
                Err(refused(status, "no plan waits for an approval"))
            }
            Command::Retry { .. }
            | Command::RetryTask(_)
            | Command::ApproveChange(_)
            | Command::RejectChange { .. } => of_run(Vec::new()),
        }
    }
}

fn decide_change(
    command: &Command,
    state: &State,
    status: RunStatus,
    id: &str,
) -> Result<Vec<(u32, Event)>, NotNow> {
    let request = state.change_request(id);
    let request = request.ok_or_else(|| NotNow::NoChange(id.to_owned()))?;
    if status.is_ended() || request.status != CrStatus::Pending {
        let details = json!({ "status": request.status });
        let message = "the change request is not pending".to_owned();
        return Err(NotNow::InvalidState { message, details });
    }
    Ok(match command {
        Command::RejectChange { reason, .. } => {
            change::decided(id, CrStatus::Rejected, reason.clone())
        }
        _ => change::decided(id, CrStatus::Approved, None),
    })
}

/// Events that continue a run: all tasks that failed, and those that wait. An ended run is reopened.
fn retry_run(
    state: &State,
    status: RunStatus,
    budget: Option<Budget>,
    now: Timestamp,
) -> Result<Vec<(u32, Event)>, NotNow> {
    if status == RunStatus::Completed {
        return Err(refused(status, "the run is completed"));
    }
    let mut events = Vec::new();
    if status.is_ended() || budget.is_some() {
        events.push((0, Event::RunReopened { budget }));
    }
    if let Some(wait) = state.wait.as_ref().filter(|_| !status.is_ended()) {
        let waiting = Event::RunWaiting {
            cause: wait.cause,
            reason: wait.reason.clone(),
            until: whole_ms(now),
        };
        events.push((0, waiting));
    }
    for (id, task) in &state.tasks {
        events.extend(retry(id, task, now));
    }
    match events.is_empty() {
        true => Err(refused(status, "nothing of the run failed or waits")),
        false => Ok(events),
    }
}

fn retry_task(
    state: &State,
    status: RunStatus,
    id: &str,
    now: Timestamp,
) -> Result<Vec<(u32, Event)>, NotNow> {
    let task = state.tasks.get(id);
    let task = task.ok_or_else(|| NotNow::NoTask(id.to_owned()))?;
    if status == RunStatus::Completed {
        return Err(refused(status, "the run is completed"));
    }
    let events = retry(id, task, now);
    if events.is_empty() {
        let message = "only a task that failed, became stale or waits can be retried";
        return Err(refused(status, message));
    }
    let reopened = Event::RunReopened { budget: None };
    let reopened = status.is_ended().then_some((0, reopened));
    Ok(reopened.into_iter().chain(events).collect())
}

/// Events that try a task again: with a new attempt, or what is left of one that has a result. None if nothing of it
/// failed or waits.
fn retry(id: &str, task: &Task, now: Timestamp) -> Vec<(u32, Event)> {
    let Task {
        attempt, status, ..
    } = *task;
    match status {
        TaskStatus::Failed if task.result_kept => {
            vec![(attempt, changed(id, status, TaskStatus::Done, attempt))]
        }
        TaskStatus::Failed | TaskStatus::Stale => {
            let retried = Event::TaskRetried {
                task_id: id.to_owned(),
                by_user: true,
            };
            let pending = changed(id, status, TaskStatus::Pending, attempt);
            vec![(attempt, pending), (attempt + 1, retried)]
        }
        TaskStatus::Pending | TaskStatus::Running | TaskStatus::Done => {
            let waiting = task.wait.as_ref().map(|wait| Event::TaskWaiting {
                task_id: id.to_owned(),
                cause: wait.cause,
                reason: wait.reason.clone(),
                until: whole_ms(now),
            });
            waiting.into_iter().map(|event| (attempt, event)).collect()
        }
        TaskStatus::MergeReady | TaskStatus::Merged => Vec::new(),
    }
}

fn refused(status: RunStatus, message: &str) -> NotNow {
    NotNow::InvalidState {
        message: message.to_owned(),
        details: json!({ "status": status_name(status) }),
    }
}

/// Name of a status on the wire.
pub fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Planning => "planning",
        RunStatus::PlanReview => "plan_review",
        RunStatus::Executing => "executing",
        RunStatus::Paused => "paused",
        RunStatus::Completed => "completed",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}
