//! Approval routes: list held and decided dispatches, approve and reject them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::auth::{Admin, Auth, Reader};
use super::body::Body;
use super::error::{Code, Failure};
use super::query::{NoQuery, Query, page_cursor};
use super::record::{View, find};
use forge_base::id::DispatchId;
use forge_base::time;
use forge_dispatch::Dispatcher;
use forge_store::Store;
use forge_store::record::{Approval, ApprovalFilter, ApprovalStatus, Decision};

const STATUSES: [(&str, ApprovalStatus); 3] = [
    ("waiting", ApprovalStatus::Waiting),
    ("approved", ApprovalStatus::Approved),
    ("rejected", ApprovalStatus::Rejected),
];
const MAX_LISTED: u64 = 200;
/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 1_000;

pub(super) async fn list(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let status = query.choice("status", &STATUSES);
    let filter = ApprovalFilter {
        status: status.unwrap_or(ApprovalStatus::Waiting),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish()?;
    let page = store.approvals(filter).await?;
    let now = Timestamp::now();
    let mut approvals = Vec::with_capacity(page.items.len());
    for approval in page.items {
        approvals.push(view(store.as_ref(), approval, now).await?);
    }
    Ok(Json(
        json!({ "approvals": approvals, "nextCursor": page_cursor(page.next) }),
    ))
}

/// Approval with the call that it is about.
async fn view(store: &dyn Store, approval: Approval, now: Timestamp) -> Result<Value, Failure> {
    let (name, _) = STATUSES
        .into_iter()
        .find(|(_, status)| *status == approval.status)
        .expect("every status has a name");
    let request = store.request(approval.dispatch.id).await?;
    let request: Value = serde_json::from_str(request.get()).unwrap_or_default();
    let decision = approval.decision.map(|decision| {
        json!({
            "at": time::format(decision.at), "by": decision.by, "reason": decision.reason,
        })
    });
    Ok(json!({
        "status": name, "decision": decision, "entry": request["model"],
        "args": request["message"], "caller": request["caller"],
        "dispatch": View::brief(approval.dispatch, now),
    }))
}

pub(super) async fn approve(
    Admin(caller): Admin,
    _: NoQuery,
    State(auth): State<Auth>,
    State(dispatcher): State<Dispatcher>,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
    body: Option<Body>,
) -> Result<Json<Value>, Failure> {
    let id = find(store.as_ref(), caller, &id).await?.id;
    let decision = decision(auth.name(caller), body)?;
    dispatcher.approve(id, decision).await?;
    Ok(decided(id, "approved"))
}

pub(super) async fn reject(
    Admin(caller): Admin,
    _: NoQuery,
    State(auth): State<Auth>,
    State(dispatcher): State<Dispatcher>,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
    body: Option<Body>,
) -> Result<Json<Value>, Failure> {
    let id = find(store.as_ref(), caller, &id).await?.id;
    let decision = decision(auth.name(caller), body)?;
    dispatcher.reject(id, decision).await?;
    Ok(decided(id, "rejected"))
}

fn decision(by: String, body: Option<Body>) -> Result<Decision, Failure> {
    let reason = match body.map(|body| body.tree) {
        None | Some(Value::Null) => None,
        Some(Value::Object(mut body)) => match body.remove("reason") {
            None | Some(Value::Null) => None,
            Some(Value::String(reason)) if reason.chars().count() <= MAX_REASON => Some(reason),
            Some(_) => {
                let message = format!("must be a text of at most {MAX_REASON} characters");
                return Err(Failure::field("reason", message));
            }
        },
        Some(_) => {
            let message = "the body must be a JSON object such as {\"reason\": \"…\"}";
            return Err(Failure::new(Code::InvalidRequest, message));
        }
    };
    Ok(Decision {
        at: Timestamp::now(),
        by,
        reason,
    })
}

fn decided(id: DispatchId, status: &str) -> Json<Value> {
    Json(json!({ "dispatchId": id, "status": status }))
}
