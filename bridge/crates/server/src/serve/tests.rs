//! The accept loop with real sockets: limits and shutdown.

use std::thread;
use std::time::Duration;

use axum::routing::get;
use forge_listener::LINGER;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

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

/// Sends a request and returns everything the server sends until it closes.
async fn exchange(address: SocketAddr, request: Vec<u8>) -> String {
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    let writing = async move {
        // The server can close before the whole request is sent.
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

/// Reads to the end of an answer to [`ASK`], its closing brace; false if the connection closes first.
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
    // The timeout still applies within the next head.
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
    let head = "POST /api/v2/dispatch HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
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

/// A client that keeps an idle connection open and does not read cannot delay the shutdown.
#[tokio::test]
async fn an_idle_connection_is_not_waited_for() {
    let served = served(Config::default()).await;
    let mut used = TcpStream::connect(served.address).await.unwrap();
    used.write_all(ASK).await.unwrap();
    assert!(answered(&mut used).await);
    let _new = TcpStream::connect(served.address).await.unwrap();
    // Only timers are left to wait for, so the paused clock shows how long the shutdown waited.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    served.shutdown.cancel();
    served.tasks.wait().await;
    assert!(begun.elapsed() < LINGER, "{:?}", begun.elapsed());
}
