//! HTTP listener for events and results that servers send later. Each execution has an unguessable path
//! that is removed with it; messages must be signed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{AdapterError, Result};
use forge_adapter_transport::wire::Message;
use forge_listener::{Answer, Limits};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::callback_request::{Callbacks, PATH};
use crate::config::Callback;
use crate::signing::Signing;

const MOST_CONNECTIONS: usize = 64;
/// Capacity of the message queue of one execution; a full queue delays the answer to the server.
const WAITING: usize = 64;
/// Interval between attempts to bind an address that is in use.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct CallbackServer {
    listen: SocketAddr,
    /// Base URL for servers; `None` until the listener is bound.
    url: watch::Receiver<Option<String>>,
    callbacks: Callbacks,
    /// Server task; aborted when this is dropped.
    _server: JoinSet<()>,
    /// Ends the connections.
    _closing: DropGuard,
}

/// Receives the messages of one execution; dropping it removes the path.
pub(crate) struct DeferredMessages {
    pub(crate) url: String,
    key: String,
    callbacks: Callbacks,
    received: mpsc::Receiver<Message>,
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
        let callbacks = Callbacks::new(signing);
        let handler = {
            let callbacks = callbacks.clone();
            move |_, request| -> Answer<_> { Box::pin(callbacks.clone().answer(request)) }
        };
        let closing = CancellationToken::new();
        let shutdown = closing.clone();
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
            forge_listener::serve(listener, limits(), None, |_| None, shutdown, handler).await;
            io::Result::Ok(())
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
            callbacks,
            _server: server,
            _closing: closing.drop_guard(),
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
        self.callbacks.expect(key.clone(), sender);
        Ok(DeferredMessages {
            url: format!("{url}{PATH}{key}"),
            key,
            callbacks: self.callbacks.clone(),
            received,
        })
    }
}

/// Bounds of the listener. It shares the process's descriptors with the bridge, whose listener takes half of them.
fn limits() -> Limits {
    Limits {
        max_connections: MOST_CONNECTIONS.min(forge_listener::open_file_limit() / 8),
        max_headers: 100,
        buffer_bytes: 64 * 1024,
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(30),
        write_timeout: Duration::from_secs(30),
        close_grace: Duration::from_secs(5),
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
        self.callbacks.forget(&self.key);
    }
}
