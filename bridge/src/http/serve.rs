//! The accept loop: how many connections, how long they may dawdle, and how they end. Knows nothing
//! of routes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures_util::future::BoxFuture;
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
use super::limit::Peer;
use super::observe::{MAX_HEADER_BYTES, MAX_HEADERS};
use super::patience::Patience;
use super::socket::{self, Heard, Socket};
use super::tls::Tls;
use crate::tasks::Edge;

/// After an answer that left a body unread, this much of it is still taken, so that the client gets
/// to read the answer instead of a reset.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 32 * 1024 * 1024;
/// Once it is to end: how long the socket still takes what has come to it, and a new connection may take to
/// say what it wants.
const LAST_CALL: Duration = Duration::from_millis(50);
/// What a connection holds of what came, and of what its client has not taken yet. Above our own
/// limit of headers, so that we are the ones to refuse them.
const BUFFER_BYTES: usize = MAX_HEADER_BYTES + MAX_HEADER_BYTES / 2;

/// As long as there are no more connections than this, all live in the runtime that accepts them: where few threads
/// serve many, none has to be woken for each. Beyond, they are spread.
const CROWD: usize = 256;

/// Serves until `shutdown`; then the socket closes, requests under way end within
/// `config.close_grace`, and the rest is cut off.
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
    // Who has connected by then is still answered.
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
                    // Where no more threads are to be had it stays.
                    elsewhere = Edge::new().ok();
                }
                match &elsewhere {
                    Some(elsewhere) if goes_elsewhere => {
                        let moved = async move {
                            match stream.into_std().and_then(TcpStream::from_std) {
                                Ok(stream) => live(stream).await,
                                Err(error) => tracing::warn!("a connection was lost: {error}"),
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

/// As configured, but the store, the adapters and callbacks need descriptors too.
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

/// Ends a moment after `shutdown`.
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
            // It is read before the connection is told to end, so that it is answered.
            let _ = tokio::time::timeout(LAST_CALL, stream.readable()).await;
        }
        let Some(tls) = tls else {
            return self.run(stream).await;
        };
        // A handshake that dawdles holds nothing but its own place, and that for no longer than headers may.
        let shaken = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = tokio::time::timeout(self.header_timeout, tls.accept(stream)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => Box::pin(self.run(stream)).await,
            Ok(Err(error)) => tracing::debug!("no TLS handshake: {error}"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
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
        let heard = Heard::default();
        let socket = Socket::new(stream, self.write_timeout, heard.clone());
        let patience = Patience::new(self.header_timeout, self.idle_timeout, self.places, heard);
        let mut serving = http1::Builder::new()
            .timer(patience)
            .header_read_timeout(self.header_timeout)
            .max_headers(2 * MAX_HEADERS)
            .max_header_size(BUFFER_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(socket), service);
        let mut told = false;
        let ended = loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| serving.poll_without_shutdown(context)) => break ended,
                () = self.shutdown.cancelled(), if !told => {
                    told = true;
                    Pin::new(&mut serving).graceful_shutdown();
                }
            }
        };
        // Clients that go away and bytes that are no HTTP are not failures of ours.
        if let Err(error) = ended {
            tracing::debug!("connection ended: {error}");
        }
        let stream = serving.into_parts().io.into_inner().into_inner();
        let _ = tokio::time::timeout(LINGER, linger(stream)).await;
    }
}

/// Closing with bytes unread makes the kernel send a reset, which can overtake the answer.
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
mod tests {
    use std::net::SocketAddr;
    use std::thread;

    use axum::routing::get;

    use super::super::auth;
    use super::super::testing::Edge;
    use super::*;

    struct Served {
        address: SocketAddr,
        shutdown: CancellationToken,
        tasks: TaskTracker,
        edge: Edge,
    }

    async fn served(config: Config) -> Served {
        let edge = Edge::with(config.clone(), &auth::Config::default()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, tasks) = (edge.closing.clone(), TaskTracker::new());
        let (router, token) = (edge.router.clone(), shutdown.clone());
        tasks.spawn(async move { serve(listener, router, &config, None, token).await });
        tasks.close();
        Served {
            address,
            shutdown,
            tasks,
            edge,
        }
    }

    /// Everything that the server says until it closes.
    async fn exchange(address: SocketAddr, request: Vec<u8>) -> String {
        let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
        let writing = async move {
            // The server may have heard enough before it was all said.
            let _ = write.write_all(&request).await;
            write
        };
        let mut answer = Vec::new();
        let (_write, read) = tokio::join!(writing, read.read_to_end(&mut answer));
        read.unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn with_headers(headers: &str) -> Vec<u8> {
        let request = format!("GET /api/health/live HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        request.into_bytes()
    }

    const ASK: &[u8] = b"GET /api/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";

    /// An answer to [`ASK`] is complete with its last brace.
    async fn answered(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        while stream.read(&mut byte).await.unwrap() == 1 {
            if byte == *b"}" {
                return true;
            }
        }
        false
    }

    #[tokio::test]
    async fn between_two_requests_a_connection_may_rest() {
        let header_timeout = Duration::from_millis(20);
        let served = served(Config {
            header_timeout,
            ..Config::default()
        })
        .await;
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        for _ in 0..3 {
            stream.write_all(ASK).await.unwrap();
            assert!(answered(&mut stream).await);
            tokio::time::sleep(5 * header_timeout).await;
        }
        // The next head must not dawdle all the same.
        stream.write_all(b"GET /api/hea").await.unwrap();
        assert!(!answered(&mut stream).await);
    }

    #[tokio::test]
    async fn a_rest_ends_too() {
        let served = served(Config {
            idle_timeout: Duration::from_millis(20),
            ..Config::default()
        })
        .await;
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        assert!(answered(&mut stream).await);
        assert!(!answered(&mut stream).await);
    }

    #[tokio::test]
    async fn too_many_or_too_large_headers_are_431() {
        let served = served(Config::default()).await;
        let many = |count| "x: y\r\n".repeat(count);
        let large = |bytes| format!("x: {}\r\n", "y".repeat(bytes));
        let close = "connection: close\r\n";
        for (headers, status, ours) in [
            (many(90), "200", true),
            (many(120), "431", true),
            (many(300), "431", false),
            (large(60_000), "200", true),
            (large(70_000), "431", true),
            (large(200_000), "431", false),
        ] {
            let answer = exchange(served.address, with_headers(&format!("{close}{headers}"))).await;
            let line = answer.lines().next().unwrap_or_default();
            assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{line}");
            assert_eq!(answer.contains("x-request-id: req_"), ours, "{answer}");
            assert_eq!(
                answer.contains("HEADERS_TOO_LARGE"),
                ours && status == "431"
            );
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_too_much_reads_why() {
        let served = served(Config::default()).await;
        let head = "POST /api/v2/dispatch HTTP/1.1\r\nhost: localhost\r\n";
        let length = 11 << 20;
        let mut declared = format!("{head}content-length: {length}\r\n\r\n").into_bytes();
        declared.resize(declared.len() + length, b' ');
        let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for _ in 0..11 {
            chunked.extend_from_slice(b"100000\r\n");
            chunked.resize(chunked.len() + (1 << 20), b' ');
            chunked.extend_from_slice(b"\r\n");
        }
        for request in [declared, chunked] {
            let answer = exchange(served.address, request).await;
            assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
            assert!(answer.contains("PAYLOAD_TOO_LARGE"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_408() {
        let config = Config {
            body_timeout: Duration::from_millis(20),
            ..Config::default()
        };
        let served = served(config).await;
        let head =
            "POST /api/v2/dispatch HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
        let answer = exchange(served.address, head.into()).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("REQUEST_TIMEOUT"), "{answer}");
    }

    #[tokio::test]
    async fn who_connected_before_the_end_is_answered() {
        let edge = Edge::with(Config::default(), &auth::Config::default()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut early = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&with_headers("")).await.unwrap();
            early.push(stream);
        }
        edge.closing.cancel();
        let (config, router) = (Config::default(), edge.router.clone());
        let serving = serve(listener, router, &config, None, edge.closing.clone());
        let reading = async {
            for mut stream in early {
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
            }
        };
        tokio::join!(serving, reading);
    }

    #[tokio::test]
    async fn a_crowd_is_spread_and_ends_with_the_rest() {
        let here = thread::current().id();
        let thread = move || async move {
            let is_here = thread::current().id() == here;
            if is_here { "<here>" } else { "<elsewhere>" }
        };
        let router = Router::new().route("/api/health/live", get(thread));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (config, shutdown) = (Config::default(), CancellationToken::new());
        let serving = serve(listener, router, &config, None, shutdown.clone());
        let asking = async {
            let mut open = Vec::new();
            let mut elsewhere = 0;
            for _ in 0..CROWD + 4 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(ASK).await.unwrap();
                let mut answer = Vec::new();
                while !answer.ends_with(b">") {
                    answer.push(stream.read_u8().await.unwrap());
                }
                elsewhere += usize::from(answer.ends_with(b"<elsewhere>"));
                open.push(stream);
            }
            assert_eq!(elsewhere, 2, "every other one of those beyond the crowd");
            shutdown.cancel();
            for mut stream in open {
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            }
        };
        tokio::join!(serving, asking);
    }

    #[tokio::test]
    async fn shutting_down_ends_streams_and_idle_connections() {
        let served = served(Config::default()).await;
        let id = served.edge.accept("task").await;
        let path = format!("GET /api/v2/dispatch/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(path.as_bytes()).await.unwrap();
        let mut idle = TcpStream::connect(served.address).await.unwrap();
        idle.write_all(&with_headers("")).await.unwrap();
        let mut begin = [0; 12];
        for connection in [&mut stream, &mut idle] {
            connection.read_exact(&mut begin).await.unwrap();
            assert_eq!(&begin, b"HTTP/1.1 200");
        }
        served.shutdown.cancel();
        let (mut told, mut rest) = (String::new(), String::new());
        stream.read_to_string(&mut told).await.unwrap();
        idle.read_to_string(&mut rest).await.unwrap();
        assert!(told.ends_with("0\r\n\r\n"), "the stream ends whole: {told}");
        drop((stream, idle));
        served.tasks.wait().await;
        assert!(TcpStream::connect(served.address).await.is_err());
    }
}
