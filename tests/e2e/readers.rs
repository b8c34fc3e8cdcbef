//! Clients that are slow or use up capacity: readers that do not read, requests that never end, silent connections.

use reqwest::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::api::quiet;
use super::harness::socket::{connect, rest};
use super::harness::{Bridge, until};

const ALL: &str = "GET /api/v2/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A client that sends a request and does not read the answer.
async fn lazy(bridge: &Bridge, request: &str) -> TcpStream {
    let mut stream = connect(&bridge.api).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn firehose(bridge: &Bridge) -> StatusCode {
    let request = bridge.api.request(Method::GET, "/api/v2/events?after=now");
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn hundreds_that_never_read_delay_no_other() {
    let bridge = Bridge::start().await;
    let mut readers = Vec::new();
    for _ in 0..250 {
        readers.push(lazy(&bridge, ALL).await);
    }
    for number in 0..4 {
        let result = bridge
            .api
            .run(quiet(&format!("task-{number}"), "stream:150"))
            .await;
        assert_eq!(result["status"], "ok", "{result}");
    }
    // All are still connected, and one that begins to read has missed nothing.
    let mut late = readers.pop().unwrap();
    let mut told = String::new();
    let mut piece = vec![0; 64 * 1024];
    while told.matches("event: execution.completed\n").count() < 4 {
        let read = late.read(&mut piece).await.unwrap();
        assert!(read > 0, "the stream ended early");
        told.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    assert_eq!(told.matches("event: assistant.text\n").count(), 600);
    bridge.stop().await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut_and_its_seat_is_free() {
    let bridge = Bridge::with(&[
        ("BRIDGE_HTTP_WRITE_TIMEOUT", "300ms"),
        ("BRIDGE_HTTP_MAX_STREAMS", "1"),
    ])
    .await;
    let lazy = lazy(&bridge, ALL).await;
    // Waits for the answer without reading it.
    lazy.peek(&mut [0]).await.unwrap();
    assert_eq!(firehose(&bridge).await, StatusCode::TOO_MANY_REQUESTS);
    let result = bridge.api.run(quiet("flood", "stream:20000")).await;
    assert_eq!(result["status"], "ok", "{result}");
    until("the seat to be free", || async {
        (firehose(&bridge).await == StatusCode::OK).then_some(())
    })
    .await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_reader_that_goes_away_frees_its_seat() {
    let bridge = Bridge::with(&[("BRIDGE_HTTP_MAX_STREAMS", "1")]).await;
    for _ in 0..3 {
        until("a seat", || async {
            (firehose(&bridge).await == StatusCode::OK).then_some(())
        })
        .await;
    }
    bridge.stop().await;
}

#[tokio::test]
async fn connections_that_ask_nothing_make_room() {
    let bridge = Bridge::with(&[
        ("BRIDGE_HTTP_HEADER_TIMEOUT", "200ms"),
        ("BRIDGE_HTTP_MAX_CONNECTIONS", "3"),
    ])
    .await;
    let silent = lazy(&bridge, "").await;
    let slow = lazy(&bridge, "GET /api/health HTTP/1.1\r\nhost: loc").await;
    let idle = lazy(
        &bridge,
        "GET /api/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n",
    )
    .await;
    // Waits until one of them is closed.
    let (status, _) = bridge.api.get("/api/health/live").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(rest(silent).await, "");
    let told = rest(slow).await;
    assert!(told.is_empty() || told.starts_with("HTTP/1.1 4"), "{told}");
    assert!(rest(idle).await.starts_with("HTTP/1.1 200"));
    bridge.stop().await;
}
