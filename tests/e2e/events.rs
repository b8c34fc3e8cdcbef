//! Readers of event streams over TCP: disconnected at any byte, slow, late.

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::api::{Api, answer, owed, quiet};
use super::harness::{Bridge, CallbackSink, until};

/// Parses the complete frames of a truncated SSE stream: `(id, type)` of each event, and the last id that a browser
/// would keep.
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
async fn a_reader_that_never_reads_delays_no_other() {
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
    // The reader is slow and loses nothing.
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

/// Text of a stream of lines after an event, without keepalives.
async fn lines(api: &Api, path: &str, after: Option<&str>) -> String {
    let query = after.map_or_else(String::new, |cursor| format!("?after={cursor}"));
    let request = api.request(Method::GET, &format!("{path}{query}"));
    let request = request.header("accept", "application/x-ndjson");
    let text = request.send().await.unwrap().text().await.unwrap();
    let is_event = |line: &&str| !line.starts_with(':') && *line != "\n";
    text.split_inclusive('\n').filter(is_event).collect()
}

/// Cuts a stream of lines that has ended at every byte, and continues it after the last whole line: the lines of both
/// parts must be those of the whole. `id` is the member with the cursor. Returns the number of events.
pub(crate) async fn cut_anywhere(api: &Api, path: &str, id: &str) -> usize {
    let whole = lines(api, path, None).await;
    let mut continued = None;
    for cut in 0..=whole.len() {
        let before = &whole.as_bytes()[..cut];
        let kept = before.iter().rposition(|byte| *byte == b'\n');
        let kept = kept.map_or(0, |end| end + 1);
        // The remainder of the stream depends on the last whole line alone.
        if continued != Some(kept) {
            continued = Some(kept);
            let last = whole[..kept].lines().last();
            let last: Option<Value> = last.map(|line| serde_json::from_str(line).unwrap());
            let cursor = last.as_ref().map(|event| event[id].as_str().unwrap());
            let rest = lines(api, path, cursor).await;
            assert!(rest == whole[kept..], "cut at {cut}, after {cursor:?}");
        }
    }
    whole.lines().count()
}

#[tokio::test]
async fn lines_cut_at_any_byte_continue_with_the_last_whole_one() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("task", "stream:3")).await;
    bridge.api.finished(&id).await;
    let path = format!("/api/v2/dispatch/{id}/events");
    let count = cut_anywhere(&bridge.api, &path, "id").await;
    assert!(count >= 7, "{count}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_stream_until_delivered_ends_with_the_callback() {
    let bridge = Bridge::start().await;
    let sink = CallbackSink::start().await;
    let id = bridge
        .api
        .dispatch(owed("task", "ok", &sink.url("/hook")))
        .await;
    let path = format!("/api/v2/dispatch/{id}/events?until=delivered");
    let ask = async |extra: String| {
        let request = bridge.api.request(Method::GET, &format!("{path}{extra}"));
        let response = request.send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    };
    let (_, told) = ask(String::new()).await;
    let (events, end) = read(&told);
    let kinds: Vec<&str> = events.iter().map(|(_, kind)| kind.as_str()).collect();
    let finished = kinds.iter().position(|kind| *kind == "execution.completed");
    assert!(finished.unwrap() < kinds.len() - 1, "{kinds:?}");
    assert_eq!(*kinds.last().unwrap(), "callback.delivered");
    for extra in [format!("&after={}", end.unwrap()), "&after=now".to_owned()] {
        let (status, body) = ask(extra).await;
        assert_eq!((status, body.as_str()), (StatusCode::NO_CONTENT, ""));
    }
    let completed = &events[finished.unwrap()].0;
    let (status, rest) = ask(format!("&after={completed}")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(read(&rest).0, events[finished.unwrap() + 1..]);
    bridge.stop().await;
}

#[tokio::test]
async fn retention_expires_cursors_and_leaves_what_still_runs_whole() {
    let bridge = Bridge::with(&[
        ("BRIDGE_RETENTION_RECORDS", "1ms"),
        ("BRIDGE_RETENTION_EVERY", "20ms"),
    ])
    .await;
    let running = bridge.api.dispatch(quiet("running", "hang")).await;
    until("the first to run", || async {
        let (_, record) = bridge.api.get(&format!("/api/v2/dispatch/{running}")).await;
        (record["status"] == "running").then_some(())
    })
    .await;
    let old = bridge.api.dispatch(quiet("old", "ok")).await;
    until("the second to be removed", || async {
        let (status, _) = bridge.api.get(&format!("/api/v2/dispatch/{old}")).await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    let page = async |path: &str| {
        let request = bridge.api.request(Method::GET, path);
        answer(request.header("accept", "application/json")).await
    };
    let path = format!("/api/v2/dispatch/{running}/events");
    let (_, begun) = page(&path).await;
    let events = begun["events"].as_array().unwrap();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[0], "execution.accepted",
        "nothing of it is missing: {kinds:?}"
    );
    let first = events[0]["id"].as_str().unwrap();
    let (status, gone) = page(&format!("/api/v2/events?after={first}")).await;
    assert_eq!(
        (status, gone["code"].as_str()),
        (StatusCode::GONE, Some("CURSOR_EXPIRED"))
    );
    let safe = gone["details"]["firstSafeCursor"].as_str().unwrap();
    for after in [safe, "0", "now"] {
        let (status, body) = page(&format!("/api/v2/events?after={after}")).await;
        assert_eq!(status, StatusCode::OK, "{after}: {body}");
    }
    let (status, _) = page(&format!("{path}?after={first}")).await;
    assert_eq!(status, StatusCode::OK, "its own cursor holds");
    let (status, _) = page(&format!("/api/v2/dispatch/{old}/events")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let cancel = format!("/api/v2/dispatch/{running}/cancel");
    bridge.api.post(&cancel, &Value::Null).await;
    until("the first to be removed", || async {
        let (status, _) = page(&path).await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_cursor_of_another_history_is_refused() {
    let bridge = Bridge::start().await;
    let other = Bridge::start().await;
    let id = other.api.dispatch(quiet("task", "ok")).await;
    other.api.finished(&id).await;
    let foreign = other.api.events(&id).await[0]["id"].clone();
    other.stop().await;
    for cursor in [
        foreign.as_str().unwrap(),
        "000000000000-1",
        "nonsense",
        "17",
    ] {
        let path = format!("/api/v2/events?after={cursor}");
        let (status, body) = answer(bridge.api.request(Method::GET, &path)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{cursor}: {body}");
    }
    bridge.stop().await;
}
