//! Accept loop: limits on connections, their timeouts, and their shutdown. Independent of routes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::future::{BoxFuture, FutureExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::Config;
use super::keep_alive::KeepAliveTimer;
use super::limit::Peer;
use super::request_span::{MAX_HEADER_BYTES, MAX_HEADERS};
use super::socket::{self, ReadActivity, Socket};
use super::tls::Tls;
use forge_base::tasks::IoRuntime;

/// Time for draining a request body that was left unread, so that the client reads the answer instead of getting a
/// reset.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes drained.
const LINGER_BYTES: usize = 32 * 1024 * 1024;
/// Time after shutdown during which connections in the listen backlog are still accepted, time that such a connection
/// has to send its request, and time for draining an idle connection.
const LAST_CALL: Duration = Duration::from_millis(50);
/// Size of the read buffer and of the write buffer of a connection. Above [`MAX_HEADER_BYTES`], so that too large
/// headers are refused with the envelope.
const BUFFER_BYTES: usize = MAX_HEADER_BYTES + MAX_HEADER_BYTES / 2;

/// Number of connections up to which all run in the runtime that accepts them: with few threads for many connections
/// a request rarely has to wake one. Above it every other connection runs in a second runtime.
const CROWD: usize = 256;

/// Serves until `shutdown`; then closes the socket, gives requests in progress `config.close_grace` to end, and
/// cuts off the others.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let mut elsewhere = None;
    let mut goes_elsewhere = false;
    let cut = CancellationToken::new();
    let permits = Arc::new(Semaphore::new(most_connections(config)));
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
                socket::prepare(&stream, config.write_timeout);
                let connection = Connection {
                    router: router.clone(),
                    peer,
                    places: Arc::clone(&permits),
                    header_timeout: config.header_timeout,
                    idle_timeout: config.idle_timeout,
                    write_timeout: config.write_timeout,
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
                goes_elsewhere = !goes_elsewhere && connections.len() >= CROWD;
                if goes_elsewhere && elsewhere.is_none() {
                    // If no threads can be started, the connection stays in this runtime.
                    elsewhere = IoRuntime::new().ok();
                }
                match &elsewhere {
                    Some(elsewhere) if goes_elsewhere => {
                        let moved = async move {
                            match stream.into_std().and_then(TcpStream::from_std) {
                                Ok(stream) => live(stream).await,
                                Err(error) => tracing::warn!(
                                    "a connection could not be moved to the second runtime: {error}"
                                ),
                            }
                        };
                        connections.spawn_on(moved, elsewhere.handle());
                    }
                    Some(_) | None => {
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
    let ended = tokio::time::timeout(config.close_grace, connections.wait()).await;
    if ended.is_err() {
        tracing::warn!(connections = connections.len(), "connections cut off");
        cut.cancel();
        connections.wait().await;
    }
}

/// `config.max_connections`, at most half of the open file limit: store, adapters and callbacks need descriptors
/// too.
fn most_connections(config: &Config) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let descriptors = limit.current.and_then(|limit| usize::try_from(limit).ok());
    let most = descriptors.map_or(usize::MAX, |limit| (limit / 2).max(1));
    if config.max_connections > most {
        tracing::warn!(
            "http.max_connections is lowered to {most}: the system allows {} open files; raise it \
             with ulimit -n",
            most * 2
        );
    }
    config
        .max_connections
        .clamp(1, most.min(Semaphore::MAX_PERMITS))
}

/// Completes [`LAST_CALL`] after `shutdown`.
async fn last_call(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(LAST_CALL).await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned();
    let permit = permit.await.expect("this semaphore is never closed");
    let (stream, address) = listener.accept().await?;
    Ok((stream, address.ip().into(), permit))
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

struct Connection {
    router: Router,
    peer: Peer,
    places: Arc<Semaphore>,
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    shutdown: CancellationToken,
}

impl Connection {
    async fn open(self, stream: TcpStream, tls: Option<Tls>) {
        if self.shutdown.is_cancelled() {
            // Wait for the request, so that it is read and answered before the connection shuts down.
            let _ = tokio::time::timeout(LAST_CALL, stream.readable()).await;
        }
        let Some(tls) = tls else {
            return self.run(stream).await;
        };
        // A slow handshake occupies only its own connection slot, for `header_timeout` at most.
        let shaken = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = tokio::time::timeout(self.header_timeout, tls.accept(stream)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => Box::pin(self.run(stream)).await,
            Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        }
    }

    async fn run<S: AsyncRead + AsyncWrite + Unpin + Send>(self, stream: S) {
        let router = self.router;
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(self.peer);
            let answer = router.clone().oneshot(request.map(Body::new));
            let answer: BoxFuture<'static, Result<Response, Infallible>> = Box::pin(answer);
            answer
        });
        let heard = ReadActivity::default();
        let socket = Socket::new(stream, self.write_timeout, heard.clone());
        let patience =
            KeepAliveTimer::new(self.header_timeout, self.idle_timeout, self.places, heard);
        let mut serving = http1::Builder::new()
            .timer(patience)
            .header_read_timeout(self.header_timeout)
            .max_headers(2 * MAX_HEADERS)
            .max_header_size(BUFFER_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(socket), service);
        let served = tokio::select! {
            biased;
            ended = poll_fn(|context| serving.poll_without_shutdown(context)) => Some(ended),
            () = self.shutdown.cancelled() => None,
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

#[cfg(test)]
mod tests;
