//! Runs: create, read, command. The event stream is in `stream.rs`.

mod artifacts;
mod changes;
pub(super) mod stream;
mod view;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::Shared;
use super::auth::{Reader, Sender, Submitter};
use super::body::Body;
use super::dispatch::submit_headers;
use super::error::{Code, Failure, problem};
use super::query::{NoQuery, Query, page_cursor};
use forge_base::id::RunId;
use forge_base::time;
use forge_dispatch::validate::fields::{Complaints, Fields};
use forge_dispatch::validate::read_budget;
use forge_runs::command::{Command, NotNow, PauseMode, status_name};
use forge_runs::request::read_message;
use forge_runs::state::State as RunState;
use forge_runs::{Error, Runs};
use forge_store::Store;
use forge_store::record::{RunFilter, RunRecord, RunStatus};

const MAX_LISTED: u64 = 200;
/// Reads of a run and its artifacts until no event is between them.
const CONSISTENT_READS: usize = 8;

/// `Retry-After` while the bound on live runs is reached. Runs take long.
const RUN_PLACE_WAIT: Duration = Duration::from_secs(30);

const STATUSES: [RunStatus; 7] = [
    RunStatus::Planning,
    RunStatus::PlanReview,
    RunStatus::Executing,
    RunStatus::Paused,
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
];

/// Routes of runs.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/runs", post(create).get(list))
        .route("/api/v1/runs/{runId}", get(show))
        .route("/api/v1/runs/{runId}/stream", get(stream::stream))
        .route("/api/v1/runs/{runId}/events", get(stream::page))
        .route("/api/v1/runs/{runId}/pause", post(pause))
        .route("/api/v1/runs/{runId}/resume", post(resume))
        .route("/api/v1/runs/{runId}/cancel", post(cancel))
        .route("/api/v1/runs/{runId}/plan/approve", post(approve))
        .route("/api/v1/runs/{runId}/plan/reopen", post(reopen))
        .route("/api/v1/runs/{runId}/tasks", get(tasks))
        .route("/api/v1/runs/{runId}/tasks/{taskId}", get(task))
        .route("/api/v1/runs/{runId}/retry", post(retry))
        .route(
            "/api/v1/runs/{runId}/tasks/{taskId}/retry",
            post(retry_task),
        )
        .route("/api/v1/runs/{runId}/change-requests", get(changes::list))
        .route(
            "/api/v1/runs/{runId}/change-requests/{crId}/approve",
            post(changes::approve),
        )
        .route(
            "/api/v1/runs/{runId}/change-requests/{crId}/reject",
            post(changes::reject),
        )
        .route(
            "/api/v1/runs/{runId}/artifacts/{*path}",
            get(artifacts::show),
        )
        .route("/api/v1/runs/{runId}/verify", get(verify))
        .route("/api/v1/captain/message", post(message))
}

async fn create(
    caller: Submitter,
    _: NoQuery,
    State(runs): State<Runs>,
    headers: HeaderMap,
    Body { tree, .. }: Body,
) -> Result<Response, Failure> {
    let key = submit_headers(&headers)?.idempotency_key;
    if key
        .as_deref()
        .is_some_and(|key| !(1..=256).contains(&key.len()))
    {
        return Err(Failure::field(
            "Idempotency-Key",
            "must have 1 to 256 bytes",
        ));
    }
    if let Some(over) = caller.over {
        return Err(over);
    }
    let run = runs.create(&tree, caller.caller.key_owner, key).await?;
    let body = json!({ "runId": run.id, "status": status_name(run.status) });
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

async fn list(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let choices = STATUSES.map(|status| (status_name(status), status));
    let filter = RunFilter {
        status: query.choice("status", &choices),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish()?;
    let page = store.runs(filter).await?;
    let runs: Vec<_> = page.items.iter().map(view::brief).collect();
    Ok(Json(
        json!({ "runs": runs, "nextCursor": page_cursor(page.next) }),
    ))
}

async fn show(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    State(runs): State<Runs>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let disk_wait = runs.disk_wait();
    let waits = disk_wait.is_some();
    let (run, state) = find(store.as_ref(), &id).await?;
    let [(_, tag), _] = tagged(&run, waits);
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    let mut known = known.into_iter().flat_map(|list| list.split(','));
    if known.any(|one| one.trim().trim_start_matches("W/") == tag) {
        return Ok((StatusCode::NOT_MODIFIED, tagged(&run, waits)).into_response());
    }
    let (mut run, mut state) = (run, state);
    let mut artifacts = store.run_artifacts(run.id).await?;
    // Both are of one moment, as the tag says. A run that changes all the time is answered in the end.
    for _ in 0..CONSISTENT_READS {
        let (later, its_state) = find(store.as_ref(), &id).await?;
        if later.seq == run.seq {
            break;
        }
        artifacts = store.run_artifacts(run.id).await?;
        (run, state) = (later, its_state);
    }
    let tagged = tagged(&run, waits);
    let cursor = store.log().cursor(run.last_position);
    let view = view::whole(&run, &state, &artifacts, &cursor, disk_wait.as_ref());
    Ok((tagged, Json(view)).into_response())
}

/// Headers of a run as it is after an event, and while something besides it lets it wait.
fn tagged(run: &RunRecord, waits: bool) -> [(HeaderName, String); 2] {
    let waits = if waits { ":waits" } else { "" };
    let tag = format!("\"{}:{}{waits}\"", run.id, run.seq);
    [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
    ]
}

async fn tasks(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let (_, state) = find(store.as_ref(), &id).await?;
    let tasks = state
        .nodes()
        .iter()
        .filter_map(|node| view::task(&state, &node.id));
    Ok(Json(tasks.collect()))
}

async fn task(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path((id, task)): Path<(String, String)>,
) -> Result<Json<Value>, Failure> {
    let (run, state) = find(store.as_ref(), &id).await?;
    let mut found = view::task_detail(&state, &task).ok_or_else(|| no_task(&task))?;
    let known = &state.tasks[&task];
    let artifacts = store.run_artifacts(run.id).await?;
    let document = format!("tasks/{task}.md");
    let own = format!("{task}/");
    let paths = artifacts.iter().map(|artifact| &artifact.path);
    let paths = paths.filter(|path| **path == document || path.starts_with(&own));
    found["artifacts"] = json!(paths.collect::<Vec<_>>());
    if let Some(path) = &known.walkthrough {
        let content = store.run_artifact(run.id, path).await?;
        found["walkthrough"] =
            json!(content.map(|one| String::from_utf8_lossy(&one.bytes).into_owned()));
    }
    Ok(Json(found))
}

async fn pause(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path(id): Path<String>,
    body: Option<Body>,
) -> Answer {
    let modes = [("wrap_up", PauseMode::WrapUp), ("abort", PauseMode::Abort)];
    let mode = read(body, |fields| fields.choice("mode", &modes))?.flatten();
    let mode = mode.unwrap_or(PauseMode::WrapUp);
    command(&runs, &id, Command::Pause(mode)).await
}

async fn resume(_: Sender, _: NoQuery, State(runs): State<Runs>, Path(id): Path<String>) -> Answer {
    command(&runs, &id, Command::Resume).await
}

async fn cancel(_: Sender, _: NoQuery, State(runs): State<Runs>, Path(id): Path<String>) -> Answer {
    command(&runs, &id, Command::Cancel).await
}

async fn approve(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path(id): Path<String>,
) -> Answer {
    command(&runs, &id, Command::ApprovePlan).await
}

async fn reopen(_: Sender, _: NoQuery, State(runs): State<Runs>, Path(id): Path<String>) -> Answer {
    command(&runs, &id, Command::ReopenPlan).await
}

async fn retry(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path(id): Path<String>,
    body: Option<Body>,
) -> Answer {
    let budget = read(body, read_budget)?.flatten();
    command(&runs, &id, Command::Retry { budget }).await
}

async fn retry_task(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path((id, task)): Path<(String, String)>,
) -> Answer {
    command(&runs, &id, Command::RetryTask(task)).await
}

type Answer = Result<Json<Value>, Failure>;

async fn command(runs: &Runs, id: &str, command: Command) -> Answer {
    let id = parse(id)?;
    let status = runs.command(id, command).await?;
    Ok(Json(json!({ "status": status_name(status) })))
}

async fn message(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    body: Body,
) -> Result<Response, Failure> {
    let given = read(Some(body), |fields| {
        let (id, content) = (
            fields.required_text("runId"),
            fields.required_text("message"),
        );
        let content = read_message(fields, content);
        Some((id?.to_owned(), content?.to_owned()))
    })?;
    let missing = ["runId", "message"].map(|name| problem(name, "is required"));
    let (id, content) = given
        .flatten()
        .ok_or_else(|| Failure::fields(missing.into()))?;
    let run = parse(&id)?;
    runs.command(run, Command::Message(content)).await?;
    let body = json!({ "acknowledged": true });
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

async fn verify(_: Reader, _: NoQuery, State(runs): State<Runs>, Path(id): Path<String>) -> Answer {
    let run = parse(&id)?;
    Ok(Json(json!(runs.verify(run).await?)))
}

/// Members of a body; `None` without a body, or for `null`.
fn read<T>(body: Option<Body>, read: impl FnOnce(&Fields<'_>) -> T) -> Result<Option<T>, Failure> {
    let Some(Body { tree, .. }) = body.filter(|body| !body.tree.is_null()) else {
        return Ok(None);
    };
    let complaints = Complaints::default();
    let found = Fields::read(&tree, "", &complaints).map(|fields| read(&fields));
    match complaints.into_parts().0 {
        errors if errors.is_empty() => Ok(found),
        errors => Err(Error::Invalid(errors).into()),
    }
}

/// Id of a run; another text names no run.
fn parse(id: &str) -> Result<RunId, Failure> {
    id.parse().map_err(|_| unknown(id))
}

/// The run of a path, with its state.
async fn find(store: &dyn Store, id: &str) -> Result<(RunRecord, RunState), Failure> {
    let run = store.run(parse(id)?).await?.ok_or_else(|| unknown(id))?;
    let state = RunState::stored(&run)?;
    Ok((run, state))
}

fn unknown(id: &str) -> Failure {
    let message = format!("there is no run {id:?}, or its retention is over");
    Failure::new(Code::RunNotFound, message)
}

fn no_task(id: &str) -> Failure {
    Failure::new(Code::TaskNotFound, format!("the run has no task {id:?}"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(id) => unknown(&id.to_string()),
            Error::Invalid(fields) => {
                let fields = fields
                    .into_iter()
                    .map(|field| problem(&field.field, field.message));
                Failure::fields(fields.collect())
            }
            Error::Conflict(id) => {
                let message = "this key was already used for a run with another body";
                Failure::new(Code::Conflict, message).with_details(json!({ "runId": id }))
            }
            Error::NotNow(NotNow::NoTask(id)) => no_task(&id),
            Error::NotNow(NotNow::NoChange(id)) => {
                let message = format!("the run has no change request {id:?}");
                Failure::new(Code::ChangeRequestNotFound, message)
            }
            Error::NotNow(NotNow::InvalidState { message, details }) => {
                Failure::new(Code::InvalidState, message).with_details(details)
            }
            Error::TooMany(refused) => {
                let code = match refused.is_of_caller {
                    true => Code::RateLimited,
                    false => Code::QueueFull,
                };
                let (setting, live, max) = (refused.setting(), refused.live, refused.max);
                Failure::new(code, refused.to_string())
                    .with_details(json!({ "setting": setting, "live": live, "max": max }))
                    .after(RUN_PLACE_WAIT)
            }
            Error::Unavailable(message) => Failure::new(Code::RunsUnavailable, message),
            Error::Stopping => Failure::new(
                Code::Draining,
                "the bridge stops; send it again to the next one",
            ),
            Error::Store(error) => error.into(),
        }
    }
}

/// Time on the wire, or `null`.
fn moment(at: Option<jiff::Timestamp>) -> Value {
    json!(at.map(time::format))
}
