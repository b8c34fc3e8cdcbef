//! A fake gateway for what a real one of this version does not do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

/// Interval in which it says that it is there; it announces ten times this.
const TICK: Duration = Duration::from_millis(100);

/// Answers to a request, by its method and the number of earlier ones with the same.
pub(crate) type Respond = fn(&str, usize) -> Vec<Value>;

pub(crate) struct Fake {
    pub(crate) url: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Fake {
    /// Answers each handshake with this frame, and each later request with those of `respond`, which get its id.
    pub(crate) async fn start(hello: Value, respond: Respond) -> Self {
        Self::saying(hello, respond, None).await
    }

    /// Like [`Fake::start`], and sends this message after the handshake.
    pub(crate) async fn saying(hello: Value, respond: Respond, message: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let connections = Arc::<AtomicUsize>::default();
        let requests = Arc::<Mutex<Vec<Value>>>::default();
        let (counted, seen) = (Arc::clone(&connections), Arc::clone(&requests));
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its runtime"
        )]
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                let Ok(mut socket) = accept_async(stream).await else {
                    continue;
                };
                let mut outgoing = vec![event("connect.challenge")];
                let mut message = message.clone();
                loop {
                    for frame in outgoing.drain(..) {
                        // The adapter ends a connection whose message it does not take.
                        let _ = socket.send(Message::text(frame.to_string())).await;
                    }
                    let request = tokio::select! {
                        request = socket.next() => request,
                        () = tokio::time::sleep(TICK) => {
                            outgoing.push(event("tick"));
                            continue;
                        }
                    };
                    let Some(Ok(Message::Text(request))) = request else {
                        break;
                    };
                    let request: Value = serde_json::from_str(&request).unwrap();
                    let method = request["method"].as_str().unwrap();
                    let earlier = of_method(&seen, method).len();
                    let answers = match method {
                        "connect" => vec![hello.clone()],
                        method => respond(method, earlier),
                    };
                    outgoing.extend(answers.into_iter().map(|mut answer| {
                        answer["type"] = "res".into();
                        answer["id"] = request["id"].clone();
                        answer
                    }));
                    if let Some(message) = message.take().filter(|_| method == "connect") {
                        let hello = outgoing.pop().unwrap();
                        let _ = socket.send(Message::text(hello.to_string())).await;
                        let _ = socket.send(Message::text(message)).await;
                    }
                    seen.lock().unwrap().push(request);
                }
            }
        });
        Self {
            url,
            connections,
            requests,
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Parameters of the requests with this method.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        of_method(&self.requests, method)
    }
}

fn of_method(requests: &Mutex<Vec<Value>>, method: &str) -> Vec<Value> {
    let requests = requests.lock().unwrap();
    let of_method = requests
        .iter()
        .filter(|request| request["method"] == method);
    of_method.map(|request| request["params"].clone()).collect()
}

fn event(name: &str) -> Value {
    json!({"type": "event", "event": name, "payload": {"nonce": "n", "ts": 1}})
}

pub(crate) fn ok(payload: Value) -> Value {
    let mut frame = json!({"ok": true});
    frame["payload"] = payload;
    frame
}

/// A hello with all scopes but this one.
pub(crate) fn hello_without(scope: &str) -> Value {
    let mut scopes = vec![
        "operator.read",
        "operator.write",
        "operator.admin",
        "operator.approvals",
    ];
    scopes.retain(|granted| *granted != scope);
    let tick = TICK.as_millis() * 10;
    ok(json!({"type": "hello-ok", "auth": {"scopes": scopes}, "policy": {"tickIntervalMs": tick}}))
}
