//! Dispatch routes: submit, show, wait, list, cancel.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::auth::{Auth, Caller, Reader, Sender, Submitter};
use super::body::Body;
use super::error::{Code, Failure};
use super::external::identity;
use super::query::{NoQuery, Query, page_cursor};
use super::record::{Links, View, find, find_all};
use super::{ProcessState, deliveries, follow};
use forge_base::id::DispatchId;
use forge_dispatch::Dispatcher;
use forge_dispatch::attachments::MAX_BYTES as MAX_ATTACHMENT_BYTES;
use forge_dispatch::request;
use forge_dispatch::submit::{self, SubmitHeaders};
use forge_external::External;
use forge_store::Store;
use forge_store::record::{Content, DispatchFilter, Status};

const MAX_WAIT_SECONDS: u64 = 60;
const MAX_LISTED: u64 = 200;

pub(super) async fn submit(
    caller: Submitter,
    _: NoQuery,
    State(dispatcher): State<Dispatcher>,
    State(external): State<External>,
    State(auth): State<Auth>,
    headers: HeaderMap,
    Body { tree, .. }: Body,
) -> Result<Response, Failure> {
    let mut submitted = submit_headers(&headers)?;
    if submit::uses_external(&tree) {
        submitted.caller = Some(identity(&external, &auth, caller.caller, &headers));
    }
    submitted.submitter = auth.submitter(caller.caller);
    submitted.key_owner = caller.caller.key_owner;
    let headers = submitted;
    let answer = match caller.over {
        None => dispatcher.submit(tree, &headers).await?,
        Some(over) => dispatcher.recall(&tree, &headers).await?.ok_or(over)?,
    };
    Ok(accepted(&answer))
}

pub(super) async fn show(
    Reader(caller): Reader,
    State(store): State<Arc<dyn Store>>,
    State(dispatcher): State<Dispatcher>,
    State(life): State<ProcessState>,
    Path(id): Path<String>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let wait = query.number("wait", 0..=MAX_WAIT_SECONDS).unwrap_or(0);
    let all = query.flag("all");
    query.finish()?;
    if all {
        return every(store.as_ref(), &dispatcher, caller, &id).await;
    }
    let dispatch = find(store.as_ref(), caller, &id).await?;
    let wait = Duration::from_secs(wait);
    let dispatch = follow::until_finished(store.as_ref(), dispatch, wait, &life.closing).await?;
    let view = View::whole(store.as_ref(), &dispatcher, dispatch).await?;
    Ok(Json(json!(view)))
}

/// The request as it can be posted again, without its secrets.
pub(super) async fn request(
    Reader(caller): Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    #[derive(Deserialize)]
    struct Stored {
        #[serde(default)]
        attachments: Vec<IgnoredAny>,
    }
    let id = find(store.as_ref(), caller, &id).await?.id;
    let stored = store.request(id).await?;
    let Stored { attachments } = serde_json::from_str(stored.get()).map_err(Failure::internal)?;
    let mut contents = Vec::with_capacity(attachments.len());
    for position in 0..attachments.len() {
        let content = Content::Attachment(position);
        let content = store.content(id, content, 0, MAX_ATTACHMENT_BYTES).await?;
        contents.push(content.map(|content| content.bytes));
    }
    let request = request::to_wire(&stored, &contents).map_err(Failure::internal)?;
    Ok(Json(request))
}

pub(super) async fn list(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    State(dispatcher): State<Dispatcher>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    let page = store.dispatches(filter(query)?).await?;
    Ok(Json(json!({
        "dispatches": View::listed(&dispatcher, page.items).await?,
        "nextCursor": page_cursor(page.next),
    })))
}

pub(super) async fn cancel(
    Sender(caller): Sender,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    State(dispatcher): State<Dispatcher>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let dispatch = find(store.as_ref(), caller, &id).await?;
    let cancelled = dispatcher.cancel(dispatch.id).await?;
    let gone = || Failure::new(Code::NotFound, format!("there is no dispatch {id:?}"));
    Ok(Json(json!({ "cancelled": cancelled.ok_or_else(gone)? })))
}

/// Headers that belong to a dispatch; `dispatch::validate` checks their values.
pub(super) fn submit_headers(headers: &HeaderMap) -> Result<SubmitHeaders, Failure> {
    let text = |name| {
        let value: Option<&HeaderValue> = headers.get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    if headers.get_all("idempotency-key").iter().count() > 1 {
        return Err(Failure::field("Idempotency-Key", "must be given once"));
    }
    Ok(SubmitHeaders {
        idempotency_key: text("idempotency-key"),
        traceparent: text("traceparent"),
        ..SubmitHeaders::default()
    })
}

fn accepted(answer: &submit::Answer) -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Accepted<'a> {
        task_id: &'a str,
        dispatch_id: DispatchId,
        status: &'a str,
        provider: &'a str,
        duplicate: bool,
        warnings: &'a [String],
        links: Links,
    }
    let links = Links::of(answer.dispatch_id);
    let location = [(header::LOCATION, links.this.clone())];
    let body = Accepted {
        task_id: &answer.task_id,
        dispatch_id: answer.dispatch_id,
        status: "accepted",
        provider: &answer.provider,
        duplicate: answer.duplicate,
        warnings: &answer.warnings,
        links,
    };
    (StatusCode::ACCEPTED, location, Json(body)).into_response()
}

async fn every(
    store: &dyn Store,
    dispatcher: &Dispatcher,
    caller: Caller,
    id: &str,
) -> Result<Json<Value>, Failure> {
    let mut views = Vec::new();
    for dispatch in find_all(store, caller, id, MAX_LISTED as usize).await? {
        views.push(View::whole(store, dispatcher, dispatch).await?);
    }
    Ok(Json(json!({ "dispatches": views })))
}

fn filter(mut query: Query) -> Result<DispatchFilter, Failure> {
    let statuses = [
        ("accepted", Status::Queued),
        ("queued", Status::Queued),
        ("running", Status::Running),
        ("finished", Status::Finished),
        ("ok", Status::Ok),
        ("error", Status::Error),
    ];
    let filter = DispatchFilter {
        status: query.choice("status", &statuses),
        provider: query.text("provider"),
        agent_id: query.text("agentId"),
        run_id: query.text("runId"),
        task_prefix: query.text("taskPrefix"),
        delivery: query.choice("callback", &deliveries::STATUSES),
        since: query.time("since"),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish().map(|()| filter)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::super::testing::Edge;
    use super::*;

    const DISPATCH: &str =
        r#"{"taskId":"t","agentId":"a","message":"m","callbackUrl":null,"provider":"echo"}"#;

    #[tokio::test]
    async fn an_accepted_dispatch_says_where_it_is() {
        let edge = Edge::new().await;
        let answer = edge.post("/api/v2/dispatch", DISPATCH).await;
        assert_eq!(answer.status, 202);
        let mut body = answer.json();
        let id = body["dispatchId"].take();
        assert_eq!(answer.header("location"), body["links"]["self"]);
        let id = id.as_str().unwrap();
        insta::assert_snapshot!(body.to_string().replace(id, "dsp_…"), @r#"{"dispatchId":null,"duplicate":false,"links":{"cancel":"/api/v2/dispatch/dsp_…/cancel","events":"/api/v2/dispatch/dsp_…/events","self":"/api/v2/dispatch/dsp_…"},"provider":"echo","status":"accepted","taskId":"t","warnings":[]}"#);
    }

    #[tokio::test]
    async fn an_unusable_idempotency_key_is_refused() {
        let edge = Edge::new().await;
        let long = "k".repeat(257);
        for keys in [vec![""], vec!["a", "b"], vec![long.as_str()], vec!["ü"]] {
            let mut request =
                Request::post("/api/v2/dispatch").header("content-type", "application/json");
            for key in &keys {
                request = request.header("idempotency-key", *key);
            }
            let answer = edge.send(request.body(DISPATCH.into()).unwrap()).await;
            assert_eq!(answer.status, 400, "{keys:?}");
            assert_eq!(answer.envelope()["details"][0]["field"], "Idempotency-Key");
        }
    }

    #[tokio::test]
    async fn a_dispatch_is_found_by_its_id_and_by_its_task() {
        let edge = Edge::new().await;
        let (first, _) = edge.done("task").await;
        let second = edge.accept("task").await;
        let by_id = edge.get(&format!("/api/v2/dispatch/{first}")).await.json();
        assert_eq!(by_id["dispatchId"], first.to_string());
        assert_eq!(
            (&by_id["status"], &by_id["outcome"]),
            (&json!("finished"), &json!("ok"))
        );
        assert_eq!(by_id["result"]["events"]["count"], 4);
        assert_eq!(by_id["deliveries"][0]["status"], "pending");
        let by_task = edge.get("/api/v2/dispatch/task").await.json();
        assert_eq!(by_task["dispatchId"], second.to_string());
        assert_eq!(by_task["status"], "queued");
        let all = edge.get("/api/v2/dispatch/task?all=true").await.json();
        assert_eq!(all["dispatches"].as_array().unwrap().len(), 2);
        assert_eq!(edge.get("/api/v2/dispatch/unknown").await.status, 404);
        assert_eq!(
            edge.get("/api/v2/dispatch/unknown?all=true").await.status,
            404
        );
    }

    #[tokio::test]
    async fn a_request_is_shown_as_it_can_be_posted_again() {
        let edge = Edge::new().await;
        let mut body: Value = serde_json::from_str(DISPATCH).unwrap();
        body["attachments"] = json!([
            {"name": "a", "mediaType": "text/plain", "data": "YQ=="},
            {"name": "b", "mediaType": "text/plain", "url": "https://a.example/b"},
        ]);
        let posted = edge.post("/api/v2/dispatch", body.to_string()).await;
        assert_eq!(posted.status, 202, "{}", posted.json());
        let mut shown = edge.get("/api/v2/dispatch/t/request").await.json();
        for (name, value) in body.as_object().unwrap() {
            assert_eq!(&shown[name], value, "{shown}");
        }
        let first = posted.json()["dispatchId"].clone();
        shown["taskId"] = "again".into();
        shown["retryOf"] = first.clone();
        let again = edge.post("/api/v2/dispatch", shown.to_string()).await;
        assert_eq!(again.json()["warnings"], posted.json()["warnings"]);
        let record = edge.get("/api/v2/dispatch/again").await.json();
        assert_eq!(record["retryOf"], first);
        let of_it = edge.get("/api/v2/dispatch/again/request").await.json();
        assert_eq!(of_it["attachments"], body["attachments"]);
        assert_eq!(of_it["retryOf"], first);
        assert_eq!(
            edge.get("/api/v2/dispatch/unknown/request").await.status,
            404
        );
    }

    #[tokio::test]
    async fn waiting_ends_with_the_result_or_with_the_time() {
        let edge = Edge::new().await;
        tokio::time::pause();
        let id = edge.accept("task").await;
        let lease = edge.begin(id).await;
        let path = format!("/api/v2/dispatch/{id}?wait=30");
        let begun = tokio::time::Instant::now();
        assert_eq!(edge.get(&path).await.json()["status"], "running");
        assert_eq!(begun.elapsed().as_secs(), 30);
        let finishing = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            edge.finish(lease, None).await;
        };
        let (answer, ()) = tokio::join!(edge.get(&path), finishing);
        assert_eq!(answer.json()["status"], "finished");
        assert_eq!(begun.elapsed().as_secs(), 35);
        assert_eq!(edge.get(&path.replace("30", "61")).await.status, 400);
    }

    #[tokio::test]
    async fn lists_continue_with_their_cursor() {
        let edge = Edge::new().await;
        for number in 0..5 {
            edge.accept(&format!("task-{number}")).await;
        }
        let mut path = "/api/v2/dispatches?limit=2&status=queued".to_owned();
        let mut tasks = Vec::new();
        loop {
            let page = edge.get(&path).await.json();
            let listed = page["dispatches"].as_array().unwrap().iter();
            tasks.extend(listed.map(|dispatch| dispatch["taskId"].as_str().unwrap().to_owned()));
            let Some(cursor) = page["nextCursor"].as_str() else {
                break;
            };
            path = format!("/api/v2/dispatches?limit=2&status=queued&cursor={cursor}");
        }
        assert_eq!(tasks, ["task-4", "task-3", "task-2", "task-1", "task-0"]);
    }

    #[tokio::test]
    async fn only_what_exists_can_be_cancelled() {
        let edge = Edge::new().await;
        edge.post("/api/v2/dispatch", DISPATCH).await;
        for cancelled in [true, false] {
            let answer = edge.post("/api/v2/dispatch/t/cancel", "").await;
            assert_eq!(answer.json(), json!({ "cancelled": cancelled }));
        }
        let record = edge.get("/api/v2/dispatch/t").await.json();
        assert_eq!(record["errorCode"], "cancelled");
        assert_eq!(
            edge.post("/api/v2/dispatch/unknown/cancel", "")
                .await
                .status,
            404
        );
    }
}
