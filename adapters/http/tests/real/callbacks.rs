//! The callback listener against callers that no execution waits for.

use std::time::Duration;

use axum::http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bench::Bench;

const LIMIT: Duration = Duration::from_secs(20);

/// Sends a request without the body that it announces; returns the head of the answer.
async fn announce(authority: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(authority).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 16000000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_body_is_read_only_for_an_execution_that_waits() {
    let bench = Bench::new().await;
    bench.say("callback").await.succeeded();
    let (_, _, body) = bench.server.last(&Method::POST).unwrap();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let url = body["callbackUrl"].as_str().unwrap();
    let authority = url.split('/').nth(2).unwrap();
    let (_, ended) = url.split_once(authority).unwrap();
    for (path, status) in [
        (ended, "410"),
        ("/callback/0123456789abcdef", "410"),
        ("/callback/", "410"),
        ("/elsewhere", "404"),
    ] {
        let answer = timeout(LIMIT, announce(authority, path)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path}: waits for the body"));
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
    }
}
