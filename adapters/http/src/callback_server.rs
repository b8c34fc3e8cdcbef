//! The adapter's own door for what servers send later. Each execution has a path of its own that nobody can
//! guess and that is gone with it; what comes has to be signed.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use forge_adapter_api::{AdapterError, Result};
use forge_adapter_transport::wire::{self, Message};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::config::Callback;
use crate::signing::Signing;

const BODY_BYTES: usize = 16 << 20;
/// Messages of one execution that wait to be read; the server is held up by more.
const WAITING: usize = 64;
/// Between two attempts to open the door where somebody else listens.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct CallbackServer {
    listen: SocketAddr,
    /// What servers are told, once it is open.
    url: watch::Receiver<Option<String>>,
    expected: Expected,
    /// Ends with the door.
    _server: JoinSet<()>,
}

type Expected = Arc<Mutex<HashMap<String, mpsc::Sender<Message>>>>;

/// What comes for one execution, as long as this lives.
pub(crate) struct DeferredMessages {
    pub(crate) url: String,
    key: String,
    expected: Expected,
    received: mpsc::Receiver<Message>,
}

#[derive(Clone)]
struct Waiters {
    expected: Expected,
    signing: Arc<Signing>,
}

impl CallbackServer {
    /// Where somebody else listens it opens when they have left, as an earlier edition of this adapter does once
    /// nothing runs on it any more.
    pub(crate) async fn open(callback: &Callback, signing: Arc<Signing>) -> io::Result<Self> {
        let listen = callback.listen;
        let public_url = callback.public_url.clone();
        let told = move |listener: &TcpListener| match &public_url {
            Some(url) => Ok(url.trim_end_matches('/').to_owned()),
            None => listener
                .local_addr()
                .map(|address| format!("http://{address}")),
        };
        let found = bind(listen).await?;
        let (opened, url) = watch::channel(found.as_ref().map(&told).transpose()?);
        let expected = Expected::default();
        let desk = Waiters {
            expected: Arc::clone(&expected),
            signing,
        };
        let router = Router::new()
            .route("/callback/{key}", post(receive))
            .layer(DefaultBodyLimit::max(BODY_BYTES))
            .with_state(desk);
        let serve = async move {
            let listener = match found {
                Some(listener) => listener,
                None => {
                    let listener = released(listen).await?;
                    opened.send_replace(Some(told(&listener)?));
                    listener
                }
            };
            let address = listener.local_addr()?;
            tracing::info!(address = %address, "callbacks of the server are taken here");
            axum::serve(listener, router).await
        };
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!("the door for callbacks is closed: {error}");
            }
        });
        Ok(Self {
            listen,
            url,
            expected,
            _server: server,
        })
    }

    /// Why nothing can come in yet.
    pub(crate) fn closed(&self) -> Option<String> {
        let listen = self.listen;
        self.url.borrow().is_none().then(|| {
            format!(
                "callbacks cannot be taken yet: {listen} is in use, by an earlier edition of this adapter that drains or \
                 by another program; executions wait"
            )
        })
    }

    /// Waits until the door is open.
    pub(crate) async fn expect(&self) -> Result<DeferredMessages> {
        let mut url = self.url.clone();
        let url = url.wait_for(Option::is_some).await;
        let url = url.ok().and_then(|url| url.clone()).ok_or_else(|| {
            AdapterError::new("adapter_unavailable", "the door for callbacks is closed")
        })?;
        let key = Uuid::new_v4().simple().to_string();
        let (sender, received) = mpsc::channel(WAITING);
        lock(&self.expected).insert(key.clone(), sender);
        Ok(DeferredMessages {
            url: format!("{url}/callback/{key}"),
            key,
            expected: Arc::clone(&self.expected),
            received,
        })
    }
}

/// `None` where somebody else listens.
async fn bind(listen: SocketAddr) -> io::Result<Option<TcpListener>> {
    match TcpListener::bind(listen).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        bound => bound.map(Some),
    }
}

async fn released(listen: SocketAddr) -> io::Result<TcpListener> {
    loop {
        tokio::time::sleep(RETRY).await;
        if let Some(listener) = bind(listen).await? {
            return Ok(listener);
        }
    }
}

impl DeferredMessages {
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.received.recv().await
    }
}

impl Drop for DeferredMessages {
    fn drop(&mut self) {
        lock(&self.expected).remove(&self.key);
    }
}

async fn receive(
    State(desk): State<Waiters>,
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
