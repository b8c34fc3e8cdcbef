//! A fake LangGraph server with scripted streams. The official client accepts it (`streams.rs`).

use std::sync::{Arc, Mutex};

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::bench::until;

const RUN: &str = "01a1fb7f-7e7d-72d9-8031-cdec9015b056";

/// Content of each stream, the last one repeated, and the final state.
#[derive(Clone)]
pub(crate) struct Script {
    streams: Vec<String>,
    /// `None`: the run stays active, whatever the streams do.
    values: Option<Value>,
}

impl Script {
    pub(crate) fn of(streams: &[&str]) -> Self {
        Self {
            streams: streams.iter().map(|text| (*text).to_owned()).collect(),
            values: None,
        }
    }

    /// Ends the run with the last stream.
    pub(crate) fn then_over(self, values: &Value) -> Self {
        Self {
            values: Some(values.clone()),
            ..self
        }
    }
}

pub(crate) struct Fake {
    url: String,
    desk: Desk,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Desk {
    script: Script,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    after: Vec<String>,
    cancelled: bool,
}

impl Fake {
    pub(crate) async fn start(script: Script) -> Self {
        Self::serve(script, None).await
    }

    /// A fake that requires this key and streams nothing.
    pub(crate) async fn locked(key: &'static str) -> Self {
        Self::serve(Script::of(&[""]), Some(key)).await
    }

    async fn serve(script: Script, key: Option<&'static str>) -> Self {
        let desk = Desk {
            script,
            seen: Arc::default(),
        };
        let router = Router::new()
            .route(
                "/assistants/search",
                post(async || Json(json!([assistant()]))),
            )
            .route("/assistants/{id}", get(async || missing()))
            .route("/threads/{thread}/state", get(state))
            .route("/threads/{thread}/runs", post(create))
            .route("/threads/{thread}/runs/{run}", get(look))
            .route("/threads/{thread}/runs/{run}/stream", get(stream))
            .route("/threads/{thread}/runs/{run}/cancel", post(cancel))
            .route_layer(middleware::from_fn_with_state(key, door))
            // Open without a key.
            .route("/ok", get(async || Json(json!({"ok": true}))))
            .route("/info", get(async || Json(json!({"version": "0.16.7"}))))
            .with_state(desk.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its handle"
        )]
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, desk, task }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The `Last-Event-ID` of each stream request.
    pub(crate) fn asked_after(&self) -> Vec<String> {
        self.desk.seen.lock().unwrap().after.clone()
    }

    /// Waits for the cancellation of the run.
    pub(crate) async fn cancelled(&self) {
        let is = async || self.desk.seen.lock().unwrap().cancelled.then_some(());
        until("the cancel", is).await;
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn door(State(key): State<Option<&'static str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get("x-api-key");
    match key {
        Some(key) if given.is_none_or(|given| given != key) => {
            StatusCode::FORBIDDEN.into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))).into_response()
}

fn assistant() -> Value {
    json!({
        "assistant_id": RUN, "graph_id": "agent", "config": {}, "context": {}, "metadata": {},
        "name": "agent", "created_at": "2026-11-21T00:26:36.529229+00:00", "version": 1,
        "updated_at": "2026-11-21T00:26:36.529229+00:00", "description": null,
    })
}

fn run(thread: &str, status: &str) -> Json<Value> {
    Json(json!({
        "run_id": RUN, "thread_id": thread, "assistant_id": RUN, "metadata": {}, "status": status,
        "kwargs": {}, "multitask_strategy": "reject", "created_at": "2026-11-21T00:26:36.529229+00:00",
        "updated_at": "2026-11-21T00:26:36.529229+00:00", "langsmith_session_name": "default",
    }))
}

impl Desk {
    fn is_over(&self) -> bool {
        let served = self.seen.lock().unwrap().after.len();
        self.script.values.is_some() && served >= self.script.streams.len()
    }
}

async fn create(Path(thread): Path<String>) -> Json<Value> {
    run(&thread, "pending")
}

async fn look(State(desk): State<Desk>, Path((thread, _)): Path<(String, String)>) -> Json<Value> {
    run(&thread, if desk.is_over() { "success" } else { "running" })
}

async fn state(State(desk): State<Desk>) -> Response {
    match &desk.script.values {
        Some(values) if desk.is_over() => Json(json!({
            "values": values, "next": [], "tasks": [], "interrupts": [], "metadata": {},
            "created_at": "2026-11-21T00:26:36.529229+00:00", "checkpoint": {},
            "parent_checkpoint": {}, "checkpoint_id": RUN, "parent_checkpoint_id": RUN,
        }))
        .into_response(),
        Some(_) | None => missing(),
    }
}

async fn stream(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    let after = headers["last-event-id"].to_str().unwrap().to_owned();
    let mut seen = desk.seen.lock().unwrap();
    let streams = &desk.script.streams;
    let text = streams[seen.after.len().min(streams.len() - 1)].clone();
    seen.after.push(after);
    ([("content-type", "text/event-stream; charset=utf-8")], text).into_response()
}

async fn cancel(State(desk): State<Desk>) -> Json<Value> {
    desk.seen.lock().unwrap().cancelled = true;
    Json(json!({}))
}
