//! HTTP listener for events and results that servers send later. Each execution has an unguessable path
//! that is removed with it; messages must be signed.

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
/// Capacity of the message queue of one execution; a full queue delays the answer to the server.
const WAITING: usize = 64;
/// Interval between attempts to bind an address that is in use.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct CallbackServer {
    listen: SocketAddr,
    /// Base URL for servers; `None` until the listener is bound.
    url: watch::Receiver<Option<String>>,
    expected: Expected,
    /// Server task; aborted when this is dropped.
    _server: JoinSet<()>,
}

type Expected = Arc<Mutex<HashMap<String, mpsc::Sender<Message>>>>;

/// Receives the messages of one execution; dropping it removes the path.
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
    /// Binds the listener. If the address is in use, a background task binds it once it is free: an earlier
    /// generation of this adapter releases it when its last execution has ended.
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
            tracing::info!(address = %address, "listening for callbacks");
            axum::serve(listener, router).await
        };
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!("the callback listener failed: {error}");
            }
        });
        Ok(Self {
            listen,
            url,
            expected,
            _server: server,
        })
    }

    /// Reason why no callback can be received yet; `None` when the listener is bound.
    pub(crate) fn closed(&self) -> Option<String> {
        let listen = self.listen;
        self.url.borrow().is_none().then(|| {
            format!(
                "callbacks cannot be received yet: {listen} is in use, by a draining generation of this adapter or by another \
                 program; executions wait"
            )
        })
    }

    /// Registers an execution; waits until the listener is bound.
    pub(crate) async fn expect(&self) -> Result<DeferredMessages> {
        let mut url = self.url.clone();
        let url = url.wait_for(Option::is_some).await;
        let url = url.ok().and_then(|url| url.clone()).ok_or_else(|| {
            AdapterError::new("adapter_unavailable", "the callback listener has failed")
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

/// Binds the address; `None` if it is in use.
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
    /// The next message. Cancel-safe.
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
    // 410 is final, so that a server stops repeating a result that has arrived.
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
