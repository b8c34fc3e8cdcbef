//! Streams over the in-memory store: start, end, and every answer to a cursor.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures_util::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tower::ServiceExt as _;

use super::super::auth;
use super::super::testing::{Answered, Edge, event};
use super::super::token::{Scope, TokenHash};
use forge_base::event::{LogName, NewEvent, kind};
use forge_base::id::DispatchId;
use forge_store::contract::runs;
use forge_store::record::{AfterAttempt, DeliveryAttempt, Settlement};

/// `(id, type)` of the events in a body.
type Told = Vec<(String, String)>;

fn sse(text: &str) -> Told {
    let frames = text.split("\n\n").filter(|frame| frame.contains("data: "));
    frames
        .map(|frame| {
            let field = |name: &str| {
                let line = frame.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().to_owned()
            };
            (field("id: "), field("event: "))
        })
        .collect()
}

fn events(values: &[Value]) -> Told {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    values
        .iter()
        .map(|event| (text(&event["id"]), text(&event["type"])))
        .collect()
}

fn kinds(told: &Told) -> Vec<&str> {
    told.iter().map(|(_, kind)| kind.as_str()).collect()
}

async fn ask(edge: &Edge, path: &str, headers: &[(&str, &str)]) -> Answered {
    edge.send(request(path, headers)).await
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// Opens a stream that the test reads chunk by chunk.
async fn open(edge: &Edge, path: &str) -> BodyDataStream {
    let response = edge
        .router
        .clone()
        .oneshot(request(path, &[]))
        .await
        .unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.into_body().into_data_stream()
}

async fn next(stream: &mut BodyDataStream) -> String {
    let chunk = stream.next().await.expect("the stream goes on").unwrap();
    String::from_utf8(chunk.to_vec()).unwrap()
}

async fn settle(edge: &Edge, id: forge_base::id::DeliveryId, kinds: &[&'static str]) {
    let settlement = Settlement {
        at: Timestamp::now(),
        attempt: Some(DeliveryAttempt {
            number: 1,
            at: Timestamp::now(),
            duration_ms: 1,
            status: Some(200),
            error: None,
            answer: None,
        }),
        next: AfterAttempt::Delivered,
        events: kinds.iter().map(|kind| event(kind)).collect(),
        retention: Duration::from_secs(60),
    };
    edge.store.settle(id, settlement).await.unwrap();
}

fn path(id: DispatchId) -> String {
    format!("/api/v2/dispatch/{id}/events")
}

#[tokio::test]
async fn a_reader_cut_anywhere_and_resumed_sees_every_event_once() {
    let edge = Edge::new().await;
    let (id, delivery) = edge.done("task").await;
    settle(
        &edge,
        delivery,
        &[kind::CALLBACK_ATTEMPTED, kind::CALLBACK_DELIVERED],
    )
    .await;

    let whole = ask(&edge, &path(id), &[]).await;
    assert_eq!(
        whole.header("content-type"),
        "text/event-stream; charset=utf-8"
    );
    let whole = sse(&String::from_utf8_lossy(&whole.body));
    let expected = [kind::ACCEPTED, kind::QUEUED, kind::STARTED, kind::COMPLETED];
    assert_eq!(kinds(&whole), expected);

    for (seen, (cursor, _)) in whole.iter().enumerate() {
        let rest = &whole[seen + 1..];
        let after = format!("{}?after={cursor}", path(id));
        let resumed = [("last-event-id", cursor.as_str())];
        let by_header = ask(&edge, &format!("{}?after=0", path(id)), &resumed).await;
        for answer in [ask(&edge, &after, &[]).await, by_header] {
            assert_eq!(answer.status, if rest.is_empty() { 204 } else { 200 });
            assert_eq!(sse(&String::from_utf8_lossy(&answer.body)), rest);
        }
        let lines = ask(&edge, &after, &[("accept", "application/x-ndjson")]).await;
        let lines: Vec<Value> = String::from_utf8_lossy(&lines.body)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(events(&lines), rest);
    }
    let by_task = ask(&edge, "/api/v2/dispatch/task/events?after=0", &[]).await;
    assert_eq!(sse(&String::from_utf8_lossy(&by_task.body)), whole);
}

#[tokio::test]
async fn until_delivered_goes_on_to_the_end_of_the_callback() {
    let edge = Edge::new().await;
    let (id, delivery) = edge.done("task").await;
    let path = format!("{}?until=delivered", path(id));
    let mut stream = open(&edge, &path).await;
    assert_eq!(sse(&next(&mut stream).await).len(), 4);
    settle(
        &edge,
        delivery,
        &[kind::CALLBACK_ATTEMPTED, kind::CALLBACK_DELIVERED],
    )
    .await;
    let mut rest = String::new();
    while let Some(chunk) = stream.next().await {
        rest.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
    }
    let rest = sse(&rest);
    assert_eq!(
        kinds(&rest),
        [kind::CALLBACK_ATTEMPTED, kind::CALLBACK_DELIVERED]
    );
    let again = format!("{path}&after={}", rest[1].0);
    assert_eq!(ask(&edge, &again, &[]).await.status, 204);
}

#[tokio::test]
async fn what_is_no_cursor_of_this_log_is_refused() {
    let edge = Edge::new().await;
    let (id, _) = edge.done("task").await;
    let issued = edge.store.log_bounds().issued;
    let never = edge.store.log().cursor(issued + 1).to_string();
    let other = LogName::random().cursor(1).to_string();
    for path in [path(id), "/api/v2/events".to_owned()] {
        for cursor in ["1", "x", "-1", "00", never.as_str(), other.as_str()] {
            let answer = ask(&edge, &path, &[("last-event-id", cursor)]).await;
            assert_eq!(answer.status, 400, "{path} {cursor}");
            assert_eq!(answer.envelope()["details"][0]["field"], "after");
        }
    }
    let now = ask(&edge, &format!("{}?after=now", path(id)), &[]).await;
    assert_eq!(now.status, 204);
    assert_eq!(ask(&edge, &path(DispatchId::new()), &[]).await.status, 404);
}

#[tokio::test]
async fn the_newest_events_come_first_if_they_are_asked_for() {
    let edge = Edge::new().await;
    edge.done("task").await;
    let json = [("accept", "application/json")];
    let read = async |query: &str| {
        let page = ask(&edge, &format!("/api/v2/events?{query}"), &json).await;
        page.json()
    };
    let count = |page: &Value| page["events"].as_array().unwrap().len();
    let all = read("after=0").await;
    let newest = read("last=2").await;
    assert_eq!((count(&newest), count(&all) > 2), (2, true));
    assert_eq!(newest["nextCursor"], all["nextCursor"]);
    assert_eq!(read("last=1000").await, all);
    assert_eq!(count(&read("last=2&after=now").await), 0);
    let refused = ask(&edge, "/api/v2/events?last=0", &json).await;
    assert_eq!(refused.status, 400);
}

#[tokio::test]
async fn a_cursor_below_what_was_removed_is_expired() {
    let edge = Edge::new().await;
    let (_, delivery) = edge.done("old").await;
    settle(&edge, delivery, &[kind::CALLBACK_DELIVERED]).await;
    let later = Timestamp::now() + SignedDuration::from_hours(1);
    edge.store.sweep(later, 10).await.unwrap();
    let removed = edge.store.log_bounds().removed;
    assert!(removed > 0);
    let (_, _) = edge.done("new").await;

    let log = edge.store.log();
    let safe = log.cursor(removed).to_string();
    let page = |after: &str| format!("/api/v2/events?after={after}");
    let json = [("accept", "application/json")];
    let expired = ask(&edge, &page(&log.cursor(removed - 1).to_string()), &json).await;
    assert_eq!(expired.status, 410);
    let envelope = expired.envelope();
    assert_eq!(envelope["code"], "CURSOR_EXPIRED");
    assert_eq!(envelope["details"]["firstSafeCursor"], safe);
    for after in [safe.as_str(), "0"] {
        let answer = ask(&edge, &page(after), &json).await.json();
        let told = events(answer["events"].as_array().unwrap());
        assert_eq!(told.len(), 4, "{after}");
    }
}

#[tokio::test]
async fn pages_are_polled_until_there_is_nothing_more_to_come() {
    let edge = Edge::new().await;
    tokio::time::pause();
    let id = edge.accept("task").await;
    let lease = edge.begin(id).await;
    let json = [("accept", "application/json")];
    let mut told = Vec::new();
    let mut path = format!("{}?limit=2", path(id));
    for expected in [2, 1, 0] {
        let page = ask(&edge, &path, &json).await.json();
        let page_events = page["events"].as_array().unwrap();
        assert_eq!(page_events.len(), expected);
        told.extend(events(page_events));
        let cursor = page["nextCursor"].as_str().unwrap();
        path = format!("{}?limit=2&wait=60&after={cursor}", self::path(id));
        if expected == 1 {
            path = path.replace("wait=60", "wait=0");
        }
    }
    let asked = path.replace("wait=0", "wait=60");
    let waiting = ask(&edge, &asked, &json);
    let finishing = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        edge.finish(lease, None).await;
    };
    let begun = tokio::time::Instant::now();
    let (page, _) = tokio::join!(waiting, finishing);
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    let page = page.json();
    told.extend(events(page["events"].as_array().unwrap()));
    assert_eq!(
        kinds(&told),
        [kind::ACCEPTED, kind::QUEUED, kind::STARTED, kind::COMPLETED]
    );
    let end = format!(
        "{}?after={}",
        self::path(id),
        page["nextCursor"].as_str().unwrap()
    );
    assert_eq!(ask(&edge, &end, &json).await.status, 204);
}

#[tokio::test]
async fn a_silent_stream_says_how_far_it_looked() {
    let edge = Edge::new().await;
    tokio::time::pause();
    let mut firehose = open(&edge, "/api/v2/events?agentId=absent").await;
    let begun = tokio::time::Instant::now();
    let cursor = |position| edge.store.log().cursor(position);
    assert_eq!(
        next(&mut firehose).await,
        format!(": heartbeat\nid: {}\n\n", cursor(0))
    );
    edge.accept("task").await;
    assert_eq!(
        next(&mut firehose).await,
        format!(": heartbeat\nid: {}\n\n", cursor(2))
    );
    assert_eq!(begun.elapsed().as_secs(), 15);

    let request = request("/api/v2/events", &[("accept", "application/x-ndjson")]);
    let response = edge.router.clone().oneshot(request).await.unwrap();
    let mut lines = response.into_body().into_data_stream();
    assert_eq!(next(&mut lines).await, "\n");
    assert_eq!(next(&mut lines).await, "\n");
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn the_firehose_is_live_and_filtered() {
    let edge = Edge::new().await;
    edge.accept("before").await;
    let mut all = open(&edge, "/api/v2/events").await;
    let mut one = open(
        &edge,
        "/api/v2/events?taskId=b&type=execution.queued&after=0",
    )
    .await;
    assert!(next(&mut all).await.starts_with(": heartbeat"));
    assert!(next(&mut one).await.starts_with(": heartbeat"));
    edge.accept("a").await;
    edge.accept("b").await;
    let mut told = Vec::new();
    while told.len() < 4 {
        told.extend(sse(&next(&mut all).await));
    }
    assert_eq!(
        kinds(&told),
        [kind::ACCEPTED, kind::QUEUED, kind::ACCEPTED, kind::QUEUED]
    );
    assert_eq!(sse(&next(&mut one).await), [told[3].clone()]);
}

#[tokio::test]
async fn the_firehose_has_the_events_of_runs_that_no_dispatch_reports() {
    let edge = Edge::new().await;
    let mut all = open(&edge, "/api/v2/events").await;
    let mut one = open(&edge, "/api/v2/events?taskId=task&type=task.paused").await;
    assert!(next(&mut all).await.starts_with(": heartbeat"));
    assert!(next(&mut one).await.starts_with(": heartbeat"));
    let new = runs::run(None);
    let owner = format!(
        r#""dispatchId":null,"provider":null,"timestamp":"2027-01-15T08:00:01.000Z","runId":"{}""#,
        new.id
    );
    let changes = ["tool.call", "task.paused"].map(|kind| runs::of_task(kind, 1));
    let change = runs::change(new.id, 2, changes.to_vec());
    edge.store.open_run(new).await.unwrap();
    edge.store.append_run(change).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 3 {
        told.extend(sse(&next(&mut all).await));
    }
    assert_eq!(kinds(&told), ["run.created", "task.status", "task.paused"]);
    let of_task = next(&mut one).await;
    assert_eq!(sse(&of_task), [told[2].clone()]);
    assert!(of_task.contains(&owner), "{of_task}");
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_nothing_back() {
    let edge = Edge::new().await;
    let id = edge.accept("task").await;
    let lease = edge.begin(id).await;
    let mut slow = open(&edge, &path(id)).await;
    for _ in 0..50 {
        let deltas = (0..100).map(|_| NewEvent::new("assistant.text", Timestamp::now()));
        edge.tell(&lease, deltas.collect()).await;
    }
    edge.finish(lease, None).await;
    let (mut told, mut largest) = (Vec::new(), 0);
    while let Some(chunk) = slow.next().await {
        let events = sse(&String::from_utf8_lossy(&chunk.unwrap()));
        largest = largest.max(events.len());
        told.extend(events);
    }
    assert_eq!(told.len(), 5004);
    assert!(largest <= 128, "{largest} events in one chunk");
}

#[tokio::test]
async fn streams_end_when_the_listener_closes() {
    let edge = Edge::new().await;
    let id = edge.accept("task").await;
    let mut firehose = open(&edge, "/api/v2/events").await;
    let mut one = open(&edge, &path(id)).await;
    next(&mut firehose).await;
    next(&mut one).await;
    edge.closing.cancel();
    let mut left = 0;
    for mut stream in [firehose, one] {
        while stream.next().await.is_some() {
            left += 1;
        }
    }
    assert!(left <= 2, "{left} chunks after the end");
}

#[tokio::test]
async fn large_events_come_in_small_pages() {
    let edge = Edge::new().await;
    let id = edge.accept("task").await;
    let lease = edge.begin(id).await;
    for bytes in [10, 70_000, 30_000, 30_000, 30_000, 10, 10] {
        let data = Value::String("x".repeat(bytes));
        let large = NewEvent::new("assistant.text", Timestamp::now()).with(&data);
        edge.tell(&lease, vec![large]).await;
    }
    edge.finish(lease, None).await;
    let mut slow = open(&edge, &path(id)).await;
    let (mut told, mut pages) = (Vec::new(), Vec::new());
    while let Some(chunk) = slow.next().await {
        let chunk = chunk.unwrap();
        pages.push(chunk.len());
        told.extend(sse(&String::from_utf8_lossy(&chunk)));
    }
    assert_eq!(told.len(), 11);
    let mut ids: Vec<&String> = told.iter().map(|(id, _)| id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 11, "each once");
    assert_eq!(told[10].1, kind::COMPLETED);
    assert!(pages.iter().all(|bytes| *bytes < 80_000), "{pages:?}");
}

#[tokio::test]
async fn readers_leave_room() {
    let config = super::super::Config {
        max_streams: 1,
        ..super::super::Config::default()
    };
    let edge = Edge::with(config, &super::super::auth::Config::default()).await;
    let first = open(&edge, "/api/v2/events").await;
    let refused = ask(&edge, "/api/v2/events", &[]).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.envelope()["code"], "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "5");
    let page = [("accept", "application/json")];
    assert_eq!(ask(&edge, "/api/v2/events", &page).await.status, 200);
    drop(first);
    drop(open(&edge, "/api/v2/events").await);
}

#[tokio::test]
async fn a_dispatch_is_told_from_its_beginning_whatever_was_removed_around_it() {
    let edge = Edge::new().await;
    let id = edge.accept("task").await;
    let (_, delivery) = edge.done("old").await;
    settle(&edge, delivery, &[kind::CALLBACK_DELIVERED]).await;
    let later = Timestamp::now() + SignedDuration::from_hours(1);
    edge.store.sweep(later, 10).await.unwrap();
    assert!(edge.store.log_bounds().removed > 2);
    for query in ["", "?after=0"] {
        let json = [("accept", "application/json")];
        let answer = ask(&edge, &format!("{}{query}", path(id)), &json).await;
        let told = events(answer.json()["events"].as_array().unwrap());
        assert_eq!(kinds(&told), [kind::ACCEPTED, kind::QUEUED], "{query}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_heartbeat_after_its_token_has_expired() {
    let expires = Timestamp::now() + SignedDuration::from_millis(500);
    let auth = auth::Config {
        token: vec![TokenHash {
            hash: forge_base::digest::hex(&forge_base::digest::sha256("brief")),
            name: None,
            scopes: vec![Scope::Read],
            expires: Some(expires),
            requests_per_minute: None,
            space: None,
            identity: None,
        }],
        ..auth::Config::default()
    };
    let edge = Edge::with(super::super::Config::default(), &auth).await;
    let ndjson = [
        ("authorization", "Bearer brief"),
        ("accept", "application/x-ndjson"),
    ];
    let opened = edge
        .router
        .clone()
        .oneshot(request("/api/v2/events", &ndjson));
    let mut stream = opened.await.unwrap().into_body().into_data_stream();
    // Heartbeats follow each other at once, until the token has expired.
    tokio::time::pause();
    let last = loop {
        let line = next(&mut stream).await;
        if line != "\n" {
            break line;
        }
        tokio::task::yield_now().await;
    };
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["type"], "unauthorized", "{last}");
    assert_eq!(last["error"], "this token has expired", "{last}");
    assert!(stream.next().await.is_none());
}
