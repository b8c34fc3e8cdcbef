//! Test server whose answers depend on the message.

use std::convert::Infallible;
use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use forge_adapter_transport::http::{Http, Limits};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(crate) struct Server {
    pub(crate) url: String,
    desk: Desk,
    /// The server's thread ends when this is dropped.
    _open: oneshot::Sender<()>,
}

/// Method, path, headers and body.
type Request = (Method, String, HeaderMap, String);

#[derive(Clone, Default)]
struct Desk {
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let desk = Desk::default();
        let router = Router::new().fallback(answer).with_state(desk.clone());
        let (open, closed) = oneshot::channel::<()>();
        let (address, bound) = oneshot::channel();
        // Dropping the thread's runtime cuts every connection, like a killed process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                address.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router).into_future() => served.unwrap(),
                    _ = closed => {}
                }
            });
        });
        let url = format!("http://{}/run", bound.await.unwrap());
        Self {
            url,
            desk,
            _open: open,
        }
    }

    /// The newest request of this method.
    pub(crate) fn last(&self, method: &Method) -> Option<(String, HeaderMap, String)> {
        let requests = self.desk.requests.lock().unwrap();
        let last = requests.iter().rev().find(|request| request.0 == *method);
        last.map(|(_, path, headers, body)| (path.clone(), headers.clone(), body.clone()))
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        let requests = self.desk.requests.lock().unwrap();
        requests
            .iter()
            .map(|(method, path, _, _)| format!("{method} {path}"))
            .collect()
    }
}

async fn answer(
    State(desk): State<Desk>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let polls = {
        let mut requests = desk.requests.lock().unwrap();
        requests.push((method.clone(), uri.path().to_owned(), headers, text.clone()));
        requests
            .iter()
            .filter(|(method, _, _, _)| method == Method::GET)
            .count()
    };
    match (method, uri.path()) {
        (Method::GET, "/runs/1") if polls < 3 => {
            json_of(StatusCode::OK, &json!({"status": "running"}))
        }
        (Method::GET, "/runs/1") => json_of(StatusCode::OK, &done("polled")),
        (Method::GET, "/runs/never") => json_of(StatusCode::OK, &json!({"status": "queued"})),
        (Method::GET, "/runs/gone") => StatusCode::NOT_FOUND.into_response(),
        (Method::POST, "/run") => run(&serde_json::from_str(&text).unwrap()).await,
        (Method::DELETE, _) | (Method::POST, "/runs/never/cancel") => {
            StatusCode::NO_CONTENT.into_response()
        }
        (_, _) => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

async fn run(request: &Value) -> Response {
    let message = request["message"].as_str().unwrap();
    let delta = |text: &str| json!({"type": "assistant.text", "data": {"delta": text}}).to_string();
    let (word, _) = message.split_once(' ').unwrap_or((message, ""));
    match word {
        "sse" => sse(stream::iter(vec![
            ": hello\n\n".to_owned(),
            format!("data: {}\n\n", delta("po")),
            "event: assistant.text\ndata: {\"delta\":\"ng\"}\n\n".to_owned(),
            format!(
                "event: result\ndata: {}\n\n",
                json!({"status": "ok", "sessionId": "s-1", "usage": {"inputTokens": 3}})
            ),
        ])),
        "lines" => {
            let text = format!("{}\n\n{}", delta("pong"), done("pong"));
            ([("content-type", "application/x-ndjson")], text).into_response()
        }
        "half" => sse(stream::iter(vec![
            format!("data: {}\n\n", delta("ha")),
            "data: {\"status\":".to_owned(),
        ])),
        "cut" => sse(stream::iter(vec![format!("data: {}\n\n", delta("ha"))])),
        "odd" => sse(stream::iter(vec!["data: {\"a\":\n\n".to_owned()])),
        "slow" => {
            let first = stream::iter(vec![format!("data: {}\n\n", delta("begun"))]);
            let mut response = sse(first.chain(stream::pending()));
            response
                .headers_mut()
                .insert("location", "/runs/never".parse().unwrap());
            response
        }
        "hang" => std::future::pending().await,
        "later" => json_of(StatusCode::ACCEPTED, &json!({"statusUrl": "/runs/1"})),
        "never" => json_of(
            StatusCode::ACCEPTED,
            &json!({"links": {"self": "/runs/never", "cancel": "/runs/never/cancel"}}),
        ),
        "gone" => json_of(StatusCode::ACCEPTED, &json!({"statusUrl": "/runs/gone"})),
        "lost" => StatusCode::ACCEPTED.into_response(),
        "elsewhere" => json_of(
            StatusCode::ACCEPTED,
            &json!({"statusUrl": "http://127.0.0.1:1/runs/1"}),
        ),
        "callback" => {
            let url = request["callbackUrl"].as_str().unwrap().to_owned();
            call_back(&url).await;
            StatusCode::ACCEPTED.into_response()
        }
        "text" => "not JSON".into_response(),
        "nothing" => json_of(StatusCode::OK, &json!({"fine": true})),
        "fail" => json_of(
            StatusCode::OK,
            &json!({"status": "error", "errorCode": "odd", "error": "as asked"}),
        ),
        _ => match word.parse() {
            Ok(status) => (
                StatusCode::from_u16(status).unwrap(),
                [("retry-after", "7")],
                "refused",
            )
                .into_response(),
            Err(_) => json_of(StatusCode::OK, &done(&format!("pong: {message}"))),
        },
    }
}

/// Sends an event and the result, preceded by forged and malformed callbacks that must be rejected.
async fn call_back(url: &str) {
    let client = Http::new(Limits::default()).unwrap();
    let send = async |url: &str, secret: &str, id: &str, body: Value| {
        let body = body.to_string();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let now = i64::try_from(now.as_secs()).unwrap();
        let signature = Webhook::new(secret)
            .unwrap()
            .sign(id, now, body.as_bytes())
            .unwrap();
        let request = client
            .request(Method::POST, url)
            .header("webhook-id", id)
            .header("webhook-timestamp", now);
        request
            .header("webhook-signature", signature)
            .body(body)
            .send()
            .await
            .unwrap()
            .status()
    };
    let unsigned = client.request(Method::POST, url);
    let unsigned = unsigned.body(done("forged").to_string()).send().await;
    assert_eq!(unsigned.unwrap().status(), 401);
    let (base, key) = url.rsplit_once('/').unwrap();
    let guess = format!("{base}/0123");
    let event = json!({"type": "assistant.text", "data": {"delta": "called"}});
    // No two executions share an id.
    let id = |n: u32| format!("{key}-{n}");
    for (url, secret, id, body, status) in [
        (url, "whsec_AAAA", id(1), done("forged"), 401),
        (&guess, SECRET, id(1), done("guessed"), 410),
        (url, SECRET, id(1), json!({"odd": 1}), 400),
        (url, SECRET, id(1), event.clone(), 204),
        // The same message again, as after a lost answer.
        (url, SECRET, id(1), event, 204),
        (url, SECRET, id(2), done("called"), 204),
    ] {
        assert_eq!(send(url, secret, &id, body).await, status, "{id}");
    }
}

fn done(output: &str) -> Value {
    json!({"status": "ok", "output": output, "usage": {"inputTokens": 3, "outputTokens": 2}})
}

fn json_of(status: StatusCode, body: &Value) -> Response {
    (
        status,
        [("content-type", "application/json")],
        body.to_string(),
    )
        .into_response()
}

fn sse(pieces: impl Stream<Item = String> + Send + 'static) -> Response {
    let pieces = pieces.then(|piece| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok::<_, Infallible>(piece)
    });
    (
        [("content-type", "text/event-stream")],
        Body::from_stream(pieces),
    )
        .into_response()
}
