//! Retention: expired dispatches are removed as a whole, with a clear answer to old cursors; pending work is kept.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{answer, owed, quiet};
use super::harness::process::{Home, Process};
use super::harness::{Answer, Api, CallbackSink, until};

const SHORT: [(&str, &str); 2] = [
    ("BRIDGE_RETENTION_RECORDS", "300ms"),
    ("BRIDGE_RETENTION_EVERY", "50ms"),
];

/// Reads a page of all events.
async fn page(api: &Api, query: &str) -> (StatusCode, Value) {
    let request = api.request(Method::GET, &format!("/api/v2/events?{query}"));
    answer(request.header("accept", "application/json")).await
}

/// Position of a cursor in its log.
fn number(cursor: &Value) -> u64 {
    cursor
        .as_str()
        .unwrap()
        .rsplit_once('-')
        .unwrap()
        .1
        .parse()
        .unwrap()
}

/// Runs a dispatch; returns its id and the cursor of its last event, from the callback.
async fn done(process: &Process, task: &str, sink: &CallbackSink) -> (String, Value) {
    let before = sink.received().len();
    let id = process
        .api
        .dispatch(owed(task, "stream:5", &sink.url("/cb")))
        .await;
    let received = sink.until(before + 1).await;
    let result: Value = serde_json::from_slice(&received[before].body).unwrap();
    assert_eq!(result["dispatchId"], json!(id));
    (id, result["events"]["lastCursor"].clone())
}

async fn gone(api: &Api, id: &str) {
    until("the end of its retention", || async {
        let (status, _) = api.get(&format!("/api/v2/dispatch/{id}")).await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_finished_goes_and_its_cursors_say_so() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&SHORT);
    let bridge = home.start();
    let api = &bridge.api;
    let before = page(api, "after=now").await.1["nextCursor"].clone();
    let (id, last) = done(&bridge, "t", &sink).await;
    gone(api, &id).await;

    for path in ["", "/events", "/output"] {
        let (status, refusal) = api.get(&format!("/api/v2/dispatch/{id}{path}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {refusal}");
        assert_eq!(refusal["code"], "NOT_FOUND", "{path}: {refusal}");
    }
    assert_eq!(
        api.get("/api/v2/dispatches").await.1["dispatches"],
        json!([])
    );
    assert_eq!(
        api.get("/api/v2/deliveries").await.1["deliveries"],
        json!([])
    );

    let (status, refusal) = page(api, &format!("after={}", before.as_str().unwrap())).await;
    assert_eq!(status, StatusCode::GONE, "{refusal}");
    assert_eq!(refusal["code"], "CURSOR_EXPIRED");
    let safe = &refusal["details"]["firstSafeCursor"];
    assert!(number(safe) >= number(&last), "{safe} is not after {last}");
    let (status, rest) = page(api, &format!("after={}", safe.as_str().unwrap())).await;
    assert_eq!(status, StatusCode::OK, "{rest}");
    let (status, rest) = page(api, "after=0").await;
    assert_eq!(status, StatusCode::OK, "{rest}");

    // The task id is free again.
    let (again, _) = done(&bridge, "t", &sink).await;
    assert_ne!(again, id);
}

#[tokio::test]
async fn ids_are_not_given_out_again_when_the_newest_events_are_removed() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&SHORT);
    let mut newest = 0;
    let mut logs = Vec::new();
    for round in 0..3 {
        let bridge = home.start();
        // Nothing has been appended since the newest events were removed and the process was killed.
        let started = page(&bridge.api, "after=now").await.1["nextCursor"].clone();
        assert!(number(&started) >= newest, "{started} after {newest}");
        let (id, last) = done(&bridge, &format!("t{round}"), &sink).await;
        assert!(number(&last) > number(&started), "{last} after {started}");
        gone(&bridge.api, &id).await;
        let ended = page(&bridge.api, "after=now").await.1["nextCursor"].clone();
        assert!(number(&ended) >= number(&last), "{ended} after {last}");
        newest = number(&ended);
        logs.push(
            ended
                .as_str()
                .unwrap()
                .rsplit_once('-')
                .unwrap()
                .0
                .to_owned(),
        );
        bridge.kill();
    }
    assert!(
        logs.windows(2).all(|pair| pair[0] == pair[1]),
        "one history: {logs:?}"
    );
}

#[tokio::test]
async fn what_is_still_owed_is_kept() {
    let (well, ill) = (CallbackSink::start().await, CallbackSink::start().await);
    ill.answer(Answer::status(503).header("retry-after", "3600"));
    let home = Home::new(&SHORT);
    let bridge = home.start();
    let api = &bridge.api;
    let running = api.dispatch(quiet("running", "slow:3600000")).await;
    let (undelivered, _) = done(&bridge, "undelivered", &ill).await;
    let (delivered, _) = done(&bridge, "delivered", &well).await;
    gone(api, &delivered).await;

    for (id, status) in [(&running, "running"), (&undelivered, "finished")] {
        let (code, record) = api.get(&format!("/api/v2/dispatch/{id}")).await;
        assert_eq!(
            (code, &record["status"]),
            (StatusCode::OK, &json!(status)),
            "{record}"
        );
    }
    let delivery = api.get(&format!("/api/v2/dispatch/{undelivered}")).await.1;
    let delivery = delivery["deliveries"][0]["href"]
        .as_str()
        .unwrap()
        .to_owned();

    // Removed like the others once it is delivered.
    ill.answer(Answer::status(200));
    let (status, _) = api.post(&format!("{delivery}/retry"), &json!({})).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    gone(api, &undelivered).await;
}

#[tokio::test]
async fn killed_between_two_steps_it_goes_on_and_takes_nothing_that_is_owed() {
    let (well, ill) = (CallbackSink::start().await, CallbackSink::start().await);
    ill.answer(Answer::status(503).header("retry-after", "3600"));
    let mut home = Home::new(&[
        ("BRIDGE_RETENTION_RECORDS", "1ms"),
        ("BRIDGE_RETENTION_EVERY", "1h"),
    ]);
    let mut set =
        |name: &str, value: &str| home.variables.insert(name.to_owned(), value.to_owned());
    // One dispatch per step; the first round is at the start, with an empty store.
    set("BRIDGE_RETENTION_STEP", "1");
    let bridge = home.start();
    let (owing, _) = done(&bridge, "owing", &ill).await;
    let mut ids = Vec::new();
    for number in 0..12 {
        ids.push(done(&bridge, &format!("t{number}"), &well).await.0);
    }
    for id in &ids {
        bridge.api.delivery_is(id, "delivered").await;
    }
    bridge.kill();
    home.variables
        .insert("BRIDGE_CRASH_POINT".to_owned(), "sweep.after:5".to_owned());
    home.run_to_its_end();
    home.variables.remove("BRIDGE_CRASH_POINT");
    home.variables
        .insert("BRIDGE_RETENTION_EVERY".to_owned(), "50ms".to_owned());
    let bridge = home.start();
    for id in &ids {
        gone(&bridge.api, id).await;
    }
    let (status, record) = bridge.api.get(&format!("/api/v2/dispatch/{owing}")).await;
    assert_eq!(status, StatusCode::OK, "{record}");
    assert_eq!(record["deliveries"][0]["status"], "pending", "{record}");
}
