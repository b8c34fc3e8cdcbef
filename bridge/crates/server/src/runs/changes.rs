//! Change requests of a run: list, approve, reject.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::super::auth::{Reader, Sender};
use super::super::body::Body;
use super::super::query::NoQuery;
use super::{Answer, find, parse, read, view};
use crate::error::Failure;
use forge_runs::Runs;
use forge_runs::command::Command;
use forge_store::Store;

const MAX_REASON: usize = 4096;

pub(super) async fn list(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let (_, state) = find(store.as_ref(), &id).await?;
    let all = state.change_requests.iter().map(view::change_request);
    Ok(Json(all.collect()))
}

pub(super) async fn approve(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path((id, change)): Path<(String, String)>,
) -> Answer {
    runs.command(parse(&id)?, Command::ApproveChange(change))
        .await?;
    Ok(Json(json!({ "status": "approved" })))
}

pub(super) async fn reject(
    _: Sender,
    _: NoQuery,
    State(runs): State<Runs>,
    Path((id, change)): Path<(String, String)>,
    body: Option<Body>,
) -> Answer {
    let reason = read(body, |fields| {
        let reason = fields.text("reason")?;
        if reason.len() > MAX_REASON {
            fields.complain("reason", format!("must have at most {MAX_REASON} bytes"));
        }
        Some(reason.to_owned())
    })?;
    let command = Command::RejectChange {
        id: change,
        reason: reason.flatten(),
    };
    runs.command(parse(&id)?, command).await?;
    Ok(Json(json!({ "status": "rejected" })))
}
