//! The accept loop: how many connections, how long they may dawdle, and how they end. Knows nothing
//! of routes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::Config;
use super::observe::{MAX_HEADER_BYTES, MAX_HEADERS};

/// After an answer that left a body unread, this much of it is still taken, so that the client gets
/// to read the answer instead of a reset.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 32 * 1024 * 1024;

/// Serves until `shutdown`; then the socket closes, requests under way end within
/// `config.close_grace`, and the rest is cut off.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    let permits = Arc::new(Semaphore::new(config.max_connections));
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let connection = Connection {
                    router: router.clone(),
                    header_timeout: config.header_timeout,
                    shutdown: shutdown.clone(),
                };
                let cut = cut.clone();
                connections.spawn(async move {
                    let _held = permit;
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = connection.run(stream) => {}
                    }
                });
            }
            Err(error) => {
                if is_of_one_connection(&error) {
                    continue;
                }
                tracing::warn!("no connection was accepted: {error}");
                // Out of descriptors, most likely: trying at once would only burn the processor.
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

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned();
    let permit = permit.await.expect("this semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    // Fails only when the connection is gone already, which its first read says better.
    let _ = stream.set_nodelay(true);
    Ok((stream, permit))
}

/// The client went away before it was accepted; the listener is well.
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
    header_timeout: Duration,
    shutdown: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let answer = router.clone().oneshot(request.map(Body::new));
            let answer: BoxFuture<'static, Result<Response, Infallible>> = Box::pin(answer);
            answer
        });
        let mut serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_timeout)
            .max_headers(2 * MAX_HEADERS)
            .max_header_size(2 * MAX_HEADER_BYTES)
            .max_buf_size(4 * MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut told = false;
        let ended = loop {
            tokio::select! {
                ended = poll_fn(|context| serving.poll_without_shutdown(context)) => break ended,
                () = self.shutdown.cancelled(), if !told => {
                    told = true;
                    std::pin::Pin::new(&mut serving).graceful_shutdown();
                }
            }
        };
        // Clients that go away and bytes that are no HTTP are not failures of ours.
        if let Err(error) = ended {
            tracing::debug!("connection ended: {error}");
        }
        let stream = serving.into_parts().io.into_inner();
        let _ = tokio::time::timeout(LINGER, linger(stream)).await;
    }
}

/// Closing with bytes unread makes the kernel send a reset, which can overtake the answer.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
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
