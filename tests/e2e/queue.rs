//! Order of queued dispatches: concurrency limits, priorities, sessions, start times.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::harness::api::{JsonBody, owed, quiet, with};
use super::harness::{Bridge, CallbackSink};

/// Starts a bridge whose adapter has this number of slots, and that soon drops cancelled executions which hang.
async fn narrow(places: &str, variables: &[(&str, &str)]) -> Bridge {
    let ours = [
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", places),
        ("BRIDGE_DISPATCH_CANCEL_GRACE", "50ms"),
    ];
    Bridge::with(&[&ours, variables].concat()).await
}

/// Occupies a slot until it is cancelled.
async fn blocker(bridge: &Bridge) -> String {
    let id = bridge.api.dispatch(quiet("blocker", "hang")).await;
    bridge.api.running(&id).await;
    id
}

/// Position of this event of a dispatch in the event log.
async fn position(bridge: &Bridge, id: &str, kind: &str) -> u64 {
    let events = bridge.api.events(id).await;
    let event = events.iter().find(|event| event["type"] == kind).unwrap();
    let (_, position) = event["id"].as_str().unwrap().rsplit_once('-').unwrap();
    position.parse().unwrap()
}

async fn order(bridge: &Bridge, ids: &[String]) -> Vec<usize> {
    let mut started = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        bridge.api.finished(id).await;
        started.push((position(bridge, id, "execution.started").await, number));
    }
    started.sort_unstable();
    started.into_iter().map(|(_, number)| number).collect()
}

#[tokio::test]
async fn the_more_important_starts_first_then_the_older() {
    let bridge = narrow("1", &[]).await;
    let blocker = blocker(&bridge).await;
    let mut ids = Vec::new();
    for (number, priority) in [-10, 0, 3, 0, 10, -10].into_iter().enumerate() {
        let body = quiet(&format!("t{number}"), "ok");
        ids.push(
            bridge
                .api
                .dispatch(with(body, &json!({"priority": priority})))
                .await,
        );
    }
    bridge.api.cancel(&blocker).await;
    assert_eq!(order(&bridge, &ids).await, [4, 2, 1, 3, 0, 5]);
    bridge.stop().await;
}

#[tokio::test]
async fn as_many_run_as_there_are_places() {
    let bridge = narrow("3", &[]).await;
    let mut ids = Vec::new();
    for number in 0..9 {
        ids.push(
            bridge
                .api
                .dispatch(quiet(&format!("t{number}"), "slow:50"))
                .await,
        );
    }
    let mut changes = Vec::new();
    for id in &ids {
        bridge.api.finished(id).await;
        changes.push((position(&bridge, id, "execution.started").await, 1));
        changes.push((position(&bridge, id, "execution.completed").await, -1));
    }
    changes.sort_unstable();
    let mut running = 0;
    let at_once = changes.into_iter().map(|(_, change)| {
        running += change;
        running
    });
    // A slot is released only after the end of its execution is on disk.
    assert_eq!(at_once.max(), Some(3));
    bridge.stop().await;
}

#[tokio::test]
async fn one_session_runs_one_after_another_and_others_beside_it() {
    let bridge = narrow("4", &[]).await;
    let api = &bridge.api;
    let in_session = |task: &str, model: &str, session: &str| {
        with(
            quiet(task, model),
            &json!({"sessionId": session, "priority": 0}),
        )
    };
    let first = api.dispatch(in_session("first", "hang", "one")).await;
    api.running(&first).await;
    let second = api.dispatch(in_session("second", "session", "one")).await;
    let urgent = with(
        in_session("third", "session", "one"),
        &json!({"priority": 10}),
    );
    let third = api.dispatch(urgent).await;
    let other = api.dispatch(in_session("other", "session", "two")).await;
    assert_eq!(api.finished(&other).await["result"]["sessionId"], "two");
    for id in [&second, &third] {
        assert_eq!(
            api.record(id).await["status"],
            "queued",
            "the first still runs"
        );
    }
    api.cancel(&first).await;
    let third = api.finished(&third).await;
    assert_eq!(
        third["result"]["output"], "hello\nhello",
        "it came after the second"
    );
    assert_eq!(third["sessionId"], "one");
    assert_eq!(api.finished(&second).await["result"]["output"], "hello");

    // A dispatch that is cancelled while it waits does not block the next one of its session.
    let first = api.dispatch(in_session("a", "hang", "three")).await;
    api.running(&first).await;
    let second = api.dispatch(in_session("b", "ok", "three")).await;
    let third = api.dispatch(in_session("c", "ok", "three")).await;
    assert!(api.cancel(&second).await);
    assert!(api.cancel(&first).await);
    assert_eq!(api.finished(&third).await["result"]["status"], "ok");
    bridge.stop().await;
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_again() {
    let bridge = narrow("1", &[("BRIDGE_DISPATCH_QUEUE_LIMIT", "2")]).await;
    let api = &bridge.api;
    let blocker = blocker(&bridge).await;
    let mut ids = Vec::new();
    for task in ["one", "two"] {
        ids.push(api.dispatch(quiet(task, "ok")).await);
    }
    let body = quiet("three", "ok");
    let request = api
        .request(Method::POST, "/api/v2/dispatch")
        .json_body(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = response.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(seconds > 0);
    api.refused(&body, 429, "QUEUE_FULL").await;
    // A duplicate is answered even if the queue is full.
    let (status, known) = api.post("/api/v2/dispatch", &quiet("one", "ok")).await;
    assert_eq!((status.as_u16(), &known["duplicate"]), (202, &json!(true)));
    api.cancel(&blocker).await;
    for id in &ids {
        api.finished(id).await;
    }
    assert_eq!(api.run(body).await["status"], "ok");
    bridge.stop().await;
}

#[tokio::test]
async fn what_waits_too_long_ends_without_having_run() {
    let sink = CallbackSink::start().await;
    let bridge = narrow("1", &[]).await;
    let api = &bridge.api;
    let blocker = blocker(&bridge).await;
    let soon = (Timestamp::now() + Duration::from_millis(300)).to_string();
    let mut ids = Vec::new();
    for (task, extra) in [
        ("patience", json!({"queueTimeoutSeconds": 0.3})),
        ("deadline", json!({"deadline": soon})),
        (
            "both",
            json!({"notBefore": soon, "queueTimeoutSeconds": 0.1}),
        ),
    ] {
        let body = owed(task, "ok", &sink.url(&format!("/{task}")));
        ids.push(api.dispatch(with(body, &extra)).await);
    }
    for id in &ids {
        let record = api.finished(id).await;
        assert_eq!(record["result"]["errorCode"], "queue_timeout", "{record}");
        assert_eq!(record["result"]["attempt"], 0);
        api.delivery_is(id, "delivered").await;
    }
    assert_eq!(api.record(&blocker).await["status"], "running");
    api.cancel(&blocker).await;
    api.finished(&blocker).await;
    bridge.stop().await;
    assert_eq!(sink.received().len(), 3);
}

#[tokio::test]
async fn nothing_starts_before_its_time() {
    let bridge = narrow("4", &[]).await;
    let api = &bridge.api;
    let time = Timestamp::now() + Duration::from_millis(700);
    let delayed = json!({"notBefore": time.to_string()});
    let id = api.dispatch(with(quiet("delayed", "ok"), &delayed)).await;
    let record = api.finished(&id).await;
    let started: Timestamp = record["startedAt"].as_str().unwrap().parse().unwrap();
    // Times on the wire are in milliseconds.
    assert!(
        started.as_millisecond() >= time.as_millisecond(),
        "{started} {time}"
    );

    let tomorrow = (Timestamp::now() + Duration::from_secs(86_400)).to_string();
    let id = api
        .dispatch(with(
            quiet("tomorrow", "ok"),
            &json!({"notBefore": tomorrow}),
        ))
        .await;
    assert_eq!(api.record(&id).await["status"], "accepted");
    assert!(api.cancel(&id).await);
    assert_eq!(api.record(&id).await["errorCode"], "cancelled");
    let impossible = json!({"notBefore": tomorrow, "deadline": tomorrow});
    api.refused(
        &with(quiet("never", "ok"), &impossible),
        400,
        "INVALID_REQUEST",
    )
    .await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_backlog_is_served_to_its_end() {
    let bridge = narrow("8", &[]).await;
    let api = &bridge.api;
    let posts = (0..150).map(|number| api.dispatch(quiet(&format!("t{number}"), "ok")));
    for id in join_all(posts).await {
        assert_eq!(api.finished(&id).await["outcome"], "ok");
    }
    bridge.stop().await;
}
