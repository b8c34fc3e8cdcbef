//! Readers of the event streams over TCP: cut anywhere, slow, late.

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::Bridge;
use super::harness::api::{answer, quiet};

/// Complete frames of an SSE text, cut where it was cut: `(id, type)` of each event, and the last id
/// that a browser would have kept.
fn read(text: &str) -> (Vec<(String, String)>, Option<String>) {
    let mut events = Vec::new();
    let mut last = None;
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    for frame in whole.split("\n\n") {
        let field = |name: &str| {
            frame
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        last = field("id: ").or(last);
        if let (Some(id), Some(kind), Some(_)) = (field("id: "), field("event: "), field("data: "))
        {
            events.push((id, kind));
        }
    }
    (events, last)
}

async fn stream(bridge: &Bridge, id: &str, after: Option<&str>) -> (StatusCode, String) {
    let mut request = bridge
        .api
        .request(Method::GET, &format!("/api/v2/dispatch/{id}/events"));
    if let Some(cursor) = after {
        request = request.header("last-event-id", cursor);
    }
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_reader_cut_at_any_byte_sees_every_event_once() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("task", "stream:3")).await;
    let (_, whole) = stream(&bridge, &id, None).await;
    let (all, end) = read(&whole);
    assert_eq!(
        all.iter()
            .filter(|(_, kind)| kind == "assistant.text")
            .count(),
        3,
        "{whole}"
    );
    assert_eq!(all.last().unwrap().1, "execution.completed");
    for cut in (0..whole.len())
        .filter(|cut| whole.is_char_boundary(*cut))
        .step_by(7)
    {
        let (mut seen, last) = read(&whole[..cut]);
        let (_, rest) = stream(&bridge, &id, last.as_deref()).await;
        seen.extend(read(&rest).0);
        assert_eq!(seen, all, "cut at {cut}");
    }
    let (status, body) = stream(&bridge, &id, end.as_deref()).await;
    assert_eq!((status, body.as_str()), (StatusCode::NO_CONTENT, ""));
    bridge.stop().await;
}

#[tokio::test]
async fn a_reader_that_never_reads_delays_nobody() {
    let bridge = Bridge::start().await;
    let address = bridge.api.url.strip_prefix("http://").unwrap();
    let mut lazy = TcpStream::connect(address).await.unwrap();
    let ask = "GET /api/v2/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    lazy.write_all(ask.as_bytes()).await.unwrap();
    let result = bridge.api.run(quiet("flood", "stream:20000")).await;
    assert_eq!(result["status"], "ok", "{result}");
    let count = result["events"]["count"].as_u64().unwrap();
    assert!(count >= 20_000, "{count}");
    let last = result["events"]["lastCursor"].as_str().unwrap();
    let mut told = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    let end = format!("id: {last}\n");
    // It may take its time; it loses nothing.
    while !told
        .windows(end.len())
        .rev()
        .take(piece.len() + end.len())
        .any(|w| w == end.as_bytes())
    {
        let read = lazy.read(&mut piece).await.unwrap();
        assert!(read > 0, "the stream ended early");
        told.extend_from_slice(&piece[..read]);
    }
    let told = String::from_utf8(told).unwrap();
    let deltas = told.matches("event: assistant.text\n").count();
    assert!(deltas >= 20_000, "{deltas}");
    bridge.stop().await;
}

#[tokio::test]
async fn the_three_encodings_tell_the_same() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("task", "stream:5")).await;
    let sse = read(&stream(&bridge, &id, None).await.1).0;
    let path = format!("/api/v2/dispatch/{id}/events");
    let ndjson = bridge
        .api
        .request(Method::GET, &path)
        .header("accept", "application/x-ndjson");
    let ndjson = ndjson.send().await.unwrap().text().await.unwrap();
    let lines = ndjson.lines().filter(|line| !line.is_empty());
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let page = bridge.api.events(&id).await;
    assert_eq!(lines, page);
    let ids: Vec<&str> = page
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        sse.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>()
    );
    let numbers: Vec<u64> = page
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=page.len() as u64).collect::<Vec<_>>());
    bridge.stop().await;
}

#[tokio::test]
async fn a_cursor_of_another_history_is_refused() {
    let bridge = Bridge::start().await;
    for cursor in ["000000000000-1", "nonsense", "17"] {
        let path = format!("/api/v2/events?after={cursor}");
        let (status, body) = answer(bridge.api.request(Method::GET, &path)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{cursor}: {body}");
    }
    bridge.stop().await;
}
