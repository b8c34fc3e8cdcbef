//! A model endpoint on loopback whose answers are selected by markers in the last prompt, so that real agent programs
//! run without a model. Supports Anthropic Messages, OpenAI Chat and Responses, and Gemini:
//!
//! | marker | answer |
//! |---|---|
//! | `CALL <tool> {json}` | a call of this tool; several markers make several calls. Once a result is sent: `tool said:
//! …` |
//! | `<prompt> THEN <prompt>` | in Chat Completions: the second one after the answer to the first |
//! | `SLOW` | 200 deltas, one every 100 ms |
//! | `HANG` | no answer |
//! | `THINK` | a thought before the text; `THINKONLY` a thought without a text |
//! | `EMPTY` | nothing, and no output tokens; `BLANK` white space |
//! | `FAIL<status>` | this HTTP status; `FAILONCE<status>` only the first time. With `SOON`, Chat Completions allows an
//! immediate retry, and with `USEDUP` it is the end of a daily quota |
//! | `RETRYAFTER<seconds>` | sets `Retry-After` of a failure |
//! | `CUTOFF`, `ENDEARLY`, `HALFEVENT`, `GARBLED` | a stream that fails after its third event: see `fault.rs`; with
//! `FAULTONCE` only the first stream of the endpoint |
//! | `ODDLY` | half a surrogate pair in `pong`, and token counts as floats |
//! | `MEDIATYPES` | the media types of the files in the request |
//! | a JSON schema in the request | a sample that follows it |
//! | otherwise | `pong: ` and the end of the prompt |
//!
//! Requests that the real service refuses are refused: see `strict`. Prompts can be wrapped in reminders of the program; the last text that is not a reminder decides.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod accidents;
mod anthropic;
mod fault;
mod gemini;
pub mod gloo;
mod openai;
mod plan;
mod responses;
mod script;
mod strict;
mod wire;

pub use script::Answer;

use std::collections::{HashSet, VecDeque};
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running endpoint; stopped on drop.
pub struct Model {
    url: String,
    desk: Desk,
    server: JoinHandle<()>,
}

/// A request as received.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
    /// Time of arrival.
    pub at: Instant,
}

impl Model {
    /// Starts an endpoint on a free loopback port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let desk = Desk::default();
        let router = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::disable())
            .with_state(desk.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its handle, not with an app"
        )]
        let server = tokio::spawn(async move {
            axum::serve(listener, router).into_future().await.unwrap();
        });
        Self { url, desk, server }
    }

    /// Address without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Breaks all streams and stops, like a killed process.
    pub fn kill(self) {
        self.desk.0.killed.send_replace(true);
    }

    /// Gives these answers to the next requests that are valid, in place of those that markers select.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.desk.0.script.lock().unwrap().extend(answers);
    }

    /// All requests for an answer, oldest first.
    pub fn requests(&self) -> Vec<Received> {
        self.desk.0.received.lock().unwrap().clone()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// State of the endpoint across requests.
#[derive(Clone, Default)]
pub(crate) struct Desk(Arc<Memory>);

#[derive(Default)]
struct Memory {
    received: Mutex<Vec<Received>>,
    script: Mutex<VecDeque<Answer>>,
    failed: Mutex<HashSet<String>>,
    count: AtomicU64,
    killed: watch::Sender<bool>,
}

impl Desk {
    /// A unique number.
    fn number(&self) -> u64 {
        self.0.count.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if this prompt was not seen before, and records it.
    fn is_first(&self, prompt: &str) -> bool {
        self.0.failed.lock().unwrap().insert(prompt.to_owned())
    }

    /// Waits until the endpoint is killed.
    fn killed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut killed = self.0.killed.subscribe();
        async move {
            // An error means that the endpoint was dropped.
            let _ = killed.wait_for(|killed| *killed).await;
        }
    }
}

async fn answer(
    state: State<Desk>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let asked = String::from_utf8_lossy(&body).into_owned();
    let desk = state.0.clone();
    let response = asked_answer(state, method, uri, headers, body).await;
    fault::put_in(response, &asked, &desk)
}

async fn asked_answer(
    State(desk): State<Desk>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if method == Method::HEAD {
        return StatusCode::OK.into_response();
    }
    let path = uri.path().to_owned();
    if method == Method::GET && path.ends_with("/models") {
        return axum::Json(
            json!({"object": "list", "data": [{"id": "fake-1", "object": "model"}]}),
        )
        .into_response();
    }
    if method == Method::GET && path.ends_with("/credits") {
        return axum::Json(json!({"balance": "5.00", "total_used": "0"})).into_response();
    }
    if method == Method::GET && path.ends_with("/generation") {
        let id = uri.query().unwrap_or_default();
        return axum::Json(json!({"data": {"id": id, "total_cost": 0.00123}})).into_response();
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if path.ends_with("/messages/count_tokens") {
        return axum::Json(json!({"input_tokens": 11})).into_response();
    }
    desk.0.received.lock().unwrap().push(Received {
        path: path.clone(),
        headers,
        body: body.clone(),
        at: Instant::now(),
    });
    if let Some(refusal) = strict::refusal(&path, &body) {
        return refusal;
    }
    let scripted = desk.0.script.lock().unwrap().pop_front();
    if let Some(answer) = scripted {
        return answer.into_response();
    }
    if path.ends_with("/messages") {
        return anthropic::answer(&desk, &body).await;
    }
    if path.ends_with("/chat/completions") {
        return openai::answer(&desk, &body).await;
    }
    if path.ends_with("/responses") {
        return responses::answer(&desk, &body).await;
    }
    if path.ends_with(":generateContent") {
        return gemini::whole(&desk, &body).await;
    }
    if path.ends_with(":streamGenerateContent") {
        return gemini::streamed(&desk, &body).await;
    }
    let error =
        json!({"type": "error", "error": {"type": "not_found_error", "message": "not found"}});
    (StatusCode::NOT_FOUND, axum::Json(error)).into_response()
}
