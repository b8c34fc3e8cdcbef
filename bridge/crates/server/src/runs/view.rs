//! Runs and tasks as answers.

use serde_json::{Map, Value, json};

use super::moment;
use forge_base::event::Cursor;
use forge_base::time;
use forge_runs::change::ChangeRequest;
use forge_runs::command::status_name;
use forge_runs::event::{CrStatus, TaskStatus};
use forge_runs::files::FileChanges;
use forge_runs::plan::AgentType;
use forge_runs::request::RunRequest;
use forge_runs::state::{State, Task};
use forge_runs::wait::Wait;
use forge_store::record::{RunArtifactInfo, RunRecord, RunStatus};

/// A run in a list.
pub(super) fn brief(run: &RunRecord) -> Value {
    let request: Option<RunRequest> = serde_json::from_str(run.request.get()).ok();
    json!({
        "runId": run.id,
        "status": status_name(run.status),
        "repoUrl": request.as_ref().map(|request| &request.repo_url),
        "model": request.as_ref().map(|request| &request.model),
        "createdAt": time::format(run.created_at),
        "completedAt": moment(run.ended_at),
        "lastEventSeq": run.seq,
    })
}

/// A run with its tasks, its graph and the list of its artifacts.
pub(super) fn whole(
    run: &RunRecord,
    state: &State,
    artifacts: &[RunArtifactInfo],
    last: &Cursor,
    disk_wait: Option<&Wait>,
) -> Value {
    let mut view = brief(run);
    let (refineries, counted): (Vec<_>, Vec<_>) =
        state.tasks.values().partition(|task| task.is_refinery());
    let number = |tasks: &[&Task], of: &[TaskStatus]| {
        let of = tasks.iter().filter(|task| of.contains(&task.status));
        of.count()
    };
    let count = |of: &[TaskStatus]| number(&counted, of);
    let merged = count(&[TaskStatus::Merged]);
    let nodes = state.nodes().iter().map(|node| {
        let task = state.tasks.get(&node.id);
        json!({
            "id": node.id,
            "type": if node.is_refinery() { "refinery" } else { "task" },
            "agentType": node.agent_type,
            "dependencies": node.dependencies,
            "status": task.map_or(TaskStatus::Pending, |task| task.status),
        })
    });
    let tasks = state
        .tasks
        .keys()
        .filter_map(|id| Some((id.clone(), task(state, id)?)));
    let listed = artifacts.iter().map(|one| {
        let info = json!({ "type": one.kind, "size": one.size, "updatedAt": time::format(one.updated_at) });
        (one.path.clone(), info)
    });
    let is_open = |status| matches!(status, CrStatus::Pending | CrStatus::Approved);
    let active = state.change_requests.iter();
    let active = active.filter(|request| is_open(request.status));
    let more = json!({
        "currentPhase": phase(run.status),
        "startedAt": moment(state.started_at),
        "error": state.end.as_ref().and_then(|end| end.error.as_ref()),
        "ref": state.repository.as_ref().map(|attached| &attached.reference),
        "commit": state.repository.as_ref().map(|attached| &attached.commit),
        "target": format!("forge/integration/{}", run.id),
        "totalTasks": counted.len(),
        "completedTasks": merged + count(&[TaskStatus::Done, TaskStatus::MergeReady]),
        "mergedTasks": merged,
        "failedTasks": counted.iter().filter(|task| task.is_exhausted).count(),
        "runningTasks": count(&[TaskStatus::Running]),
        "totalRefineries": refineries.len(),
        "mergedRefineries": number(&refineries, &[TaskStatus::Merged]),
        "activeCRs": active.map(|request| &request.id).collect::<Vec<_>>(),
        "lastEventId": last,
        "wait": disk_wait.filter(|_| state.end.is_none()).or(state.wait.as_ref()).map(wait),
        "tokens": state.tokens,
        "costUsd": state.cost_usd(),
        "traceId": run.trace_id,
        "tasks": tasks.collect::<Map<_, _>>(),
        "dag": { "version": 1, "runId": run.id, "nodes": nodes.collect::<Vec<_>>() },
        "artifacts": listed.collect::<Map<_, _>>(),
    });
    if let (Value::Object(view), Value::Object(more)) = (&mut view, more) {
        view.extend(more);
    }
    view
}

fn phase(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Planning => "captain_interview",
        RunStatus::PlanReview => "plan_review",
        RunStatus::Executing => "execution",
        RunStatus::Paused => "paused",
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => "completed",
    }
}

/// A change request.
pub(super) fn change_request(request: &ChangeRequest) -> Value {
    json!({
        "crId": request.id,
        "title": request.title,
        "emittedBy": request.emitted_by,
        "status": request.status,
        "description": request.reason,
        "suggestedChanges": request.suggested_changes,
        "impact": request.impact,
        "overlay": request.addition,
        "rejectedBecause": request.rejected_because,
        "createdAt": time::format(request.created_at),
    })
}

/// A task with its parts.
pub(super) fn task_detail(state: &State, id: &str) -> Option<Value> {
    let mut view = task(state, id)?;
    let task = state.tasks.get(id)?;
    let is_listed = task.agent_type == AgentType::SubExecutor || !task.subtasks.is_empty();
    if is_listed {
        view["subtasks"] = json!(task.subtasks);
    }
    let agents = task.agents.iter().enumerate().skip(1);
    let agents = agents.map(|(number, agent)| {
        json!({
            "agent": number,
            "type": agent.agent_type,
            "title": agent.title,
            "parent": agent.parent.as_ref().map(|parent| parent.agent),
            "status": match (agent.is_started, agent.is_ended) {
                (_, true) => "ended",
                (true, false) => "running",
                (false, false) => "waiting",
            },
        })
    });
    view["agents"] = agents.collect();
    if !task.conflicts.is_empty() {
        view["conflicts"] = json!(task.conflicts);
    }
    if let Some(files) = &task.files {
        view["leftOut"] = json!(files.left_out);
    }
    Some(view)
}

/// Trouble that is waited for.
fn wait(wait: &Wait) -> Value {
    json!({
        "cause": wait.cause,
        "reason": wait.reason,
        "since": time::format(wait.since),
        "until": time::format(wait.until),
    })
}

/// A task of a run.
pub(super) fn task(state: &State, id: &str) -> Option<Value> {
    let task = state.tasks.get(id)?;
    let node = state.node(id)?;
    let mut view = json!({
        "taskId": id,
        "title": task.title,
        "type": task.agent_type,
        "status": task.status,
        "dependencies": node.dependencies,
    });
    let more = [
        ("branch", json!(task.branch)),
        (
            "attemptId",
            json!((task.attempt > 0).then(|| task.attempt.to_string())),
        ),
        ("agentId", json!(task.agent_id)),
        ("sandboxId", json!(task.sandbox_id)),
        ("startedAt", moment(task.started_at)),
        ("completedAt", moment(task.completed_at)),
        ("commit", json!(task.commit)),
        ("error", json!(task.error)),
        (
            "failures",
            json!((task.failures > 0).then_some(task.failures)),
        ),
        ("wait", json!(task.wait.as_ref().map(wait))),
        (
            "changedFiles",
            json!(task.files.as_ref().map(|files| files.changed_files)),
        ),
        (
            "leftOutCount",
            json!(task.files.as_ref().map(FileChanges::left_out_total)),
        ),
    ];
    for (name, value) in more {
        if !value.is_null() {
            view[name] = value;
        }
    }
    Some(view)
}
