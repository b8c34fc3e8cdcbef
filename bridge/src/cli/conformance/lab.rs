//! Local agent that a checked adapter talks to: answers by a script, and keeps each request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forge_base::digest::hex;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, LOCATION};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Interval of the bytes of a slow answer.
const DRIP: Duration = Duration::from_millis(20);

/// Answers to the requests of a run, in their order; the last one repeats.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Script {
    start: Vec<Reply>,
    emit: Vec<Reply>,
    /// The adapter is given a session in its environment.
    pub(super) given: bool,
    /// The agent is not there.
    pub(super) absent: bool,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    /// A session, or `{"blocked": false}`.
    #[default]
    Good,
    /// A session whose id has other characters than those of this project.
    OddSession,
    /// A session, after which the agent is gone.
    Gone,
    /// Status and body.
    Json(u16, String),
    Page,
    Redirect,
    Hang,
    Drip,
}

pub(super) struct Session {
    pub(super) id: String,
    pub(super) key: [u8; 32],
}

/// Request as received.
pub(super) struct Received {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Time until it was answered or given up.
    pub(super) took: Duration,
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) sessions: Vec<Session>,
    pub(super) received: Vec<Received>,
    starts: usize,
    emits: usize,
}

/// A listening agent.
pub(super) struct Lab {
    agent: Arc<Agent>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

struct Agent {
    script: Script,
    record: Mutex<Record>,
    /// Cancelled to close the port; `closed` follows.
    leave: CancellationToken,
    closed: CancellationToken,
    /// Time after which an unanswered request must have been given up, else `overdue` is cancelled.
    limit: Duration,
    overdue: CancellationToken,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Lab {
    pub(super) fn start(listener: TcpListener, script: Script, limit: Duration) -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let agent = Arc::new(Agent {
            script,
            record: Mutex::default(),
            leave: stop.child_token(),
            closed: CancellationToken::new(),
            limit,
            overdue: CancellationToken::new(),
        });
        let accepting = accept(listener, Arc::clone(&agent), tracker.clone(), stop.clone());
        tracker.spawn(accepting);
        Self {
            agent,
            tracker,
            stop,
        }
    }

    /// Creates a session that no request has asked for; returns its id and its key in base64.
    pub(super) fn give_session(&self) -> (String, String) {
        self.agent.new_session(false)
    }

    /// Cancelled when the adapter still waits for an answer after the limit.
    pub(super) fn overdue(&self) -> CancellationToken {
        self.agent.overdue.clone()
    }

    /// Closes the port and all connections; returns the record of the run.
    pub(super) async fn stop(self) -> Record {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        std::mem::take(&mut *lock(&self.agent.record))
    }
}

fn lock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(
    listener: TcpListener,
    agent: Arc<Agent>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let accepted: Option<std::io::Result<(_, SocketAddr)>> =
            agent.leave.run_until_cancelled(listener.accept()).await;
        let stream = match accepted {
            None => break,
            Some(Err(_)) => continue,
            Some(Ok((stream, _))) => stream,
        };
        let (agent, stop) = (Arc::clone(&agent), stop.clone());
        tracker.spawn(async move {
            let service = service_fn(|request| agent.receive(request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // An adapter that gives up closes the connection, which is an error here.
            let _ = stop.run_until_cancelled(connection).await;
        });
    }
    drop(listener);
    agent.closed.cancel();
}

impl Agent {
    async fn receive(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        // A body that breaks off is kept as an empty one, which no signature matches.
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let path = head.uri.path().to_owned();
        let (reply, taken) = self.note(Received {
            path: path.clone(),
            headers: head.headers,
            body: body.unwrap_or_default(),
            took: Duration::MAX,
        });
        let is_start = path == "/session/start";
        let response = match reply {
            Reply::Good | Reply::OddSession | Reply::Gone if is_start => {
                let (id, key) = self.new_session(matches!(reply, Reply::OddSession));
                let session = json!({"session_id": id, "session_key": key, "expires_at": "2099-01-01T00:00:00Z"});
                let mut response = plain(200, "application/json", session.to_string());
                if matches!(reply, Reply::Gone) {
                    self.leave.cancel();
                    self.closed.cancelled().await;
                    let close = hyper::header::HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                response
            }
            Reply::Good | Reply::OddSession | Reply::Gone => {
                plain(200, "application/json", r#"{"blocked": false}"#)
            }
            Reply::Json(status, text) => plain(status, "application/json", text),
            Reply::Page => plain(
                200,
                "text/html",
                "<!doctype html><p>Sign in to the network</p>",
            ),
            Reply::Redirect => {
                let mut response = plain(307, "text/plain", "");
                let to = hyper::header::HeaderValue::from_static("/elsewhere");
                response.headers_mut().insert(LOCATION, to);
                response
            }
            Reply::Hang => {
                let _held = taken;
                tokio::time::sleep(self.limit).await;
                self.overdue.cancel();
                std::future::pending().await
            }
            Reply::Drip => {
                let drops = stream::unfold(taken, |taken: Taken| async {
                    tokio::time::sleep(DRIP).await;
                    if taken.begun.elapsed() > taken.agent.limit {
                        taken.agent.overdue.cancel();
                    }
                    Some((Ok(Frame::data(Bytes::from_static(b" "))), taken))
                });
                Response::new(StreamBody::new(drops).boxed_unsync())
            }
        };
        Ok(response)
    }

    /// Keeps a request; returns the reply of the script, and a guard that notes the end of the request.
    fn note(self: &Arc<Self>, received: Received) -> (Reply, Taken) {
        let mut record = lock(&self.record);
        let of = |replies: &[Reply], number: usize| {
            let reply = replies.get(number).or(replies.last());
            reply.cloned().unwrap_or_default()
        };
        let reply = match received.path.as_str() {
            "/session/start" => {
                record.starts += 1;
                of(&self.script.start, record.starts - 1)
            }
            "/emit" => {
                record.emits += 1;
                of(&self.script.emit, record.emits - 1)
            }
            "/health" => Reply::Json(200, r#"{"status": "ok", "version": "1.0.0"}"#.to_owned()),
            // The end of a redirect is an answer that must not be read.
            _ => Reply::Json(
                200,
                r#"{"blocked": true, "message": "redirected"}"#.to_owned(),
            ),
        };
        record.received.push(received);
        let taken = Taken {
            agent: Arc::clone(self),
            index: record.received.len() - 1,
            begun: Instant::now(),
        };
        (reply, taken)
    }

    fn new_session(&self, odd: bool) -> (String, String) {
        let key = rand::random::<[u8; 32]>();
        let tail = hex(&rand::random::<[u8; 6]>());
        let id = match odd {
            true => format!("Sitzung/é☕ \"{tail}\""),
            false => format!("sess_{tail}"),
        };
        let session = Session {
            id: id.clone(),
            key,
        };
        lock(&self.record).sessions.push(session);
        (id, BASE64_STANDARD.encode(key))
    }
}

/// Notes the time of a request when it has ended.
struct Taken {
    agent: Arc<Agent>,
    index: usize,
    begun: Instant,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(received) = lock(&self.agent.record).received.get_mut(self.index) {
            received.took = self.begun.elapsed();
        }
    }
}

fn plain(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind);
    let body = Full::new(body.into()).boxed_unsync();
    response.body(body).expect("the parts are constants")
}
