//! Artifacts by their path in the run.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::super::auth::Reader;
use super::super::error::{Code, Failure};
use super::super::query::NoQuery;
use super::find;
use forge_runs::state::State as RunState;
use forge_store::Store;

pub(super) async fn show(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path((id, path)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let (run, state) = find(store.as_ref(), &id).await?;
    let found = match stored_path(&state, &id, &path) {
        Some(stored) => store.run_artifact(run.id, &stored).await?,
        None => None,
    };
    let found = found.ok_or_else(|| {
        let message = format!("the run has no artifact {path:?}; GET /api/v1/runs/{id} lists them");
        Failure::new(Code::ArtifactNotFound, message)
    })?;
    let kind = match found.path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => "text/markdown; charset=utf-8",
        Some("json") => "application/json; charset=utf-8",
        Some("yaml" | "yml") => "text/yaml; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::CONTENT_SECURITY_POLICY,
            "sandbox; default-src 'none'",
        ),
    ];
    Ok((headers, found.bytes).into_response())
}

/// Path as the store has it: artifacts are rows, so a path that is not exactly one of theirs finds nothing. The
/// prefixes of the public design are taken off; `walkthroughs/<taskId>-walkthrough.md` is that of the latest attempt.
fn stored_path(state: &RunState, run: &str, path: &str) -> Option<String> {
    let path = path.strip_prefix(".forge/").unwrap_or(path);
    let of_run = path
        .strip_prefix("artifacts/")
        .and_then(|rest| rest.strip_prefix(run));
    let path = of_run
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(path);
    let latest = path
        .strip_prefix("walkthroughs/")
        .and_then(|rest| rest.strip_suffix("-walkthrough.md"));
    match latest {
        Some(task) => state.tasks.get(task)?.walkthrough.clone(),
        None => Some(path.to_owned()),
    }
}
