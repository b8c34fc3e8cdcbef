//! HTTP/1 listener with bounds on connections, heads, bodies and idle time, and an orderly end. Knows neither routes
//! nor the bridge: its HTTP interface and adapters that receive callbacks use it.
#![forbid(unsafe_code)]

pub mod body;
mod keep_alive;
mod socket;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use keep_alive::KeepAliveTimer;
use socket::{ReadActivity, Socket};

/// Time for draining a request body that was left unread, so that the client reads the answer instead of getting a
/// reset.
pub const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes drained.
const LINGER_BYTES: usize = 32 * 1024 * 1024;
/// Time after shutdown during which connections in the listen backlog are still accepted, time that such a connection
/// has to send its request, and time for draining an idle connection.
const LAST_CALL: Duration = Duration::from_millis(50);

/// Bounds of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent connections; further ones wait in the kernel's listen backlog.
    pub max_connections: usize,
    /// Headers of a request; above it the answer is 431.
    pub max_headers: usize,
    /// Read buffer and write buffer of a connection, each; a head that does not fit is answered 431.
    pub buffer_bytes: usize,
    /// Time for the head of a request; after it the connection is closed.
    pub header_timeout: Duration,
    /// Time after which a connection that is idle between two requests is closed, `header_timeout` at the earliest
    /// while no connection slot is free.
    pub idle_timeout: Duration,
    /// Time after which a connection is closed if its client reads nothing of an answer.
    pub write_timeout: Duration,
    /// Time that requests in progress have to end after the listener closed.
    pub close_grace: Duration,
}

/// Supplies the TLS configuration for each new connection.
pub type Tls = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// Answer of a handler; boxed, because hyper needs a future that can be moved.
pub type Answer<B> = BoxFuture<'static, Response<B>>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Open file limit of the process; connections use a share of it, because everything else needs descriptors too.
pub fn open_file_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let descriptors = limit.current.and_then(|limit| usize::try_from(limit).ok());
    descriptors.unwrap_or(usize::MAX)
}

/// Serves until `shutdown`; then closes the socket, gives requests in progress `limits.close_grace` to end, and cuts
/// off the others. `other_runtime` gets the number of open connections and names the runtime of a new one; `None` is
/// the runtime of the caller.
pub async fn serve<H, B>(
    listener: TcpListener,
    limits: Limits,
    tls: Option<Tls>,
    mut other_runtime: impl FnMut(usize) -> Option<Handle>,
    shutdown: CancellationToken,
    handler: H,
) where
    H: Fn(SocketAddr, Request<Incoming>) -> Answer<B> + Clone + Send + Unpin + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    let most = limits.max_connections.clamp(1, Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(most));
    let limits = Arc::new(limits);
    // Clients that connected before the shutdown are still answered.
    let mut last_call = pin!(last_call(&shutdown));
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut last_call => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                socket::prepare(&stream, limits.write_timeout);
                let connection = Connection {
                    handler: handler.clone(),
                    peer,
                    places: Arc::clone(&permits),
                    limits: Arc::clone(&limits),
                    shutdown: shutdown.clone(),
                };
                let (cut, tls) = (cut.clone(), tls.clone());
                let live = async move |stream| {
                    let _held = permit;
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = connection.open(stream, tls) => {}
                    }
                };
                match other_runtime(connections.len()) {
                    Some(elsewhere) => {
                        let moved = async move {
                            match stream.into_std().and_then(TcpStream::from_std) {
                                Ok(stream) => live(stream).await,
                                Err(error) => tracing::warn!(
                                    "a connection could not be moved to the second runtime: {error}"
                                ),
                            }
                        };
                        connections.spawn_on(moved, &elsewhere);
                    }
                    None => {
                        connections.spawn(live(stream));
                    }
                }
            }
            Err(error) => {
                if is_of_one_connection(&error) {
                    continue;
                }
                tracing::warn!("accepting a connection failed: {error}");
                // Most likely out of descriptors: an immediate retry would only burn CPU time.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    let ended = tokio::time::timeout(limits.close_grace, connections.wait()).await;
    if ended.is_err() {
        tracing::warn!(connections = connections.len(), "connections cut off");
        cut.cancel();
        connections.wait().await;
    }
}

/// Completes [`LAST_CALL`] after `shutdown`.
async fn last_call(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(LAST_CALL).await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned();
    let permit = permit.await.expect("this semaphore is never closed");
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, permit))
}

/// True if the client disconnected before it was accepted; the listener is not affected.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

struct Connection<H> {
    handler: H,
    peer: SocketAddr,
    places: Arc<Semaphore>,
    limits: Arc<Limits>,
    shutdown: CancellationToken,
}

impl<H, B> Connection<H>
where
    H: Fn(SocketAddr, Request<Incoming>) -> Answer<B> + Clone + Send + Unpin + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    async fn open(self, stream: TcpStream, tls: Option<Tls>) {
        if self.shutdown.is_cancelled() {
            // Wait for the request, so that it is read and answered before the connection shuts down.
            let _ = tokio::time::timeout(LAST_CALL, stream.readable()).await;
        }
        let Some(tls) = tls else {
            return self.run(stream).await;
        };
        // A slow handshake occupies only its own connection slot, for `header_timeout` at most.
        let shaking = TlsAcceptor::from(tls()).accept(stream);
        let shaken = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = tokio::time::timeout(self.limits.header_timeout, shaking) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => Box::pin(self.run(stream)).await,
            Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        }
    }

    async fn run<S: AsyncRead + AsyncWrite + Unpin + Send>(self, stream: S) {
        let Self {
            handler,
            peer,
            places,
            limits,
            shutdown,
        } = self;
        let service = service_fn(move |request| handler(peer, request).map(Ok::<_, Infallible>));
        let heard = ReadActivity::default();
        let socket = Socket::new(stream, limits.write_timeout, heard.clone());
        let timer = KeepAliveTimer::new(limits.header_timeout, limits.idle_timeout, places, heard);
        let mut serving = http1::Builder::new()
            .timer(timer)
            .header_read_timeout(limits.header_timeout)
            .max_headers(limits.max_headers)
            .max_header_size(limits.buffer_bytes)
            .max_buf_size(limits.buffer_bytes)
            .serve_connection(TokioIo::new(socket), service);
        let served = tokio::select! {
            biased;
            ended = poll_fn(|context| serving.poll_without_shutdown(context)) => Some(ended),
            () = shutdown.cancelled() => None,
        };
        let (ended, linger_time) = match served {
            Some(ended) => (ended, LINGER),
            None => {
                Pin::new(&mut serving).graceful_shutdown();
                let mut end = poll_fn(|context| serving.poll_without_shutdown(context));
                // A connection between two requests ends at once and has no answer to lose.
                match (&mut end).now_or_never() {
                    Some(ended) => (ended, LAST_CALL),
                    None => (end.await, LINGER),
                }
            }
        };
        // Disconnects and malformed HTTP are not errors of the bridge.
        if let Err(error) = ended {
            tracing::debug!("connection ended: {error}");
        }
        let stream = serving.into_parts().io.into_inner().into_inner();
        let _ = tokio::time::timeout(linger_time, linger(stream)).await;
    }
}

/// Drains unread bytes before closing: otherwise the kernel sends a reset, which can overtake the answer.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut taken = 0;
    let mut buffer = vec![0; 16 * 1024];
    while taken < LINGER_BYTES {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => taken += read,
        }
    }
    Ok(())
}
