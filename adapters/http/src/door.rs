//! The adapter's own door for what servers send later. Each execution has a path of its own that nobody can
//! guess and that is gone with it; what comes has to be signed.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use forge_adapter_transport::wire::{self, Message};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::config::Callback;
use crate::signing::Signing;

const BODY_BYTES: usize = 16 << 20;
/// Messages of one execution that wait to be read; the server is held up by more.
const WAITING: usize = 64;

pub(crate) struct Door {
    url: String,
    expected: Expected,
    /// Ends with the door.
    _server: JoinSet<()>,
}

type Expected = Arc<Mutex<HashMap<String, mpsc::Sender<Message>>>>;

/// What comes for one execution, as long as this lives.
pub(crate) struct Letters {
    pub(crate) url: String,
    key: String,
    expected: Expected,
    received: mpsc::Receiver<Message>,
}

#[derive(Clone)]
struct Desk {
    expected: Expected,
    signing: Arc<Signing>,
}

impl Door {
    pub(crate) async fn open(callback: &Callback, signing: Arc<Signing>) -> io::Result<Self> {
        let listener = TcpListener::bind(callback.listen).await?;
        let address: SocketAddr = listener.local_addr()?;
        let url = match &callback.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://{address}"),
        };
        let expected = Expected::default();
        let desk = Desk {
            expected: Arc::clone(&expected),
            signing,
        };
        let router = Router::new()
            .route("/callback/{key}", post(receive))
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .with_state(desk);
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!("the door for callbacks is closed: {error}");
            }
        });
        tracing::info!(address = %address, "callbacks of the server are taken here");
        Ok(Self {
            url,
            expected,
            _server: server,
        })
    }

    pub(crate) fn expect(&self) -> Letters {
        let key = Uuid::new_v4().simple().to_string();
        let (sender, received) = mpsc::channel(WAITING);
        lock(&self.expected).insert(key.clone(), sender);
        Letters {
            url: format!("{}/callback/{key}", self.url),
            key,
            expected: Arc::clone(&self.expected),
            received,
        }
    }
}

impl Letters {
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.received.recv().await
    }
}

impl Drop for Letters {
    fn drop(&mut self) {
        lock(&self.expected).remove(&self.key);
    }
}

async fn receive(
    State(desk): State<Desk>,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    if desk.signing.verify(&headers, &body).is_err() {
        return StatusCode::UNAUTHORIZED;
    }
    // Gone for good: whoever repeats a result that has arrived shall not go on.
    let Some(sender) = lock(&desk.expected).get(&key).cloned() else {
        return StatusCode::GONE;
    };
    let message = serde_json::from_slice(&body)
        .ok()
        .and_then(|value| wire::message(&value).ok());
    let Some(message) = message else {
        return StatusCode::BAD_REQUEST;
    };
    match sender.send(message).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::GONE,
    }
}

fn lock(expected: &Expected) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Message>>> {
    expected.lock().unwrap_or_else(PoisonError::into_inner)
}
