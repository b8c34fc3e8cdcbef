//! Shutdown: the process ends when nothing is left to wait for, and immediately on a second signal. Each time limit
//! is an hour, so that waiting for one of them fails the test.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::harness::api::{owed, quiet};
use super::harness::library::{compile, file_name};
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink, plugins, until};

const HOUR: &str = "1h";

async fn draining(process: &Process) {
    until("the drain to begin", || async {
        let (status, answer) = process.api.get("/api/health/ready").await;
        (status == StatusCode::SERVICE_UNAVAILABLE && answer["status"] == "draining").then_some(())
    })
    .await;
}

async fn running(process: &Process, id: &str) {
    until("the execution to begin", || async {
        let (_, record) = process.api.get(&format!("/api/v2/dispatch/{id}")).await;
        (record["status"] == "running").then_some(())
    })
    .await;
}

#[tokio::test]
async fn with_nothing_to_do_it_ends_although_it_may_wait() {
    let ill = CallbackSink::start().await;
    ill.answer(Answer::status(503).header("retry-after", "3600"));
    let home = Home::new(&[("BRIDGE_DRAIN_GRACE", HOUR)]);
    let bridge = home.start();
    // A reader of all events, and a callback that is not due.
    let stream = bridge
        .api
        .request(Method::GET, "/api/v2/events")
        .send()
        .await
        .unwrap();
    let id = bridge.api.dispatch(owed("t", "ok", &ill.url("/cb"))).await;
    until("the first attempt", || async {
        let (_, record) = bridge.api.get(&format!("/api/v2/dispatch/{id}")).await;
        (record["deliveries"][0]["attemptCount"] == 1).then_some(())
    })
    .await;
    bridge.terminate();
    assert!(bridge.ended().await.success());
    let told = stream.text().await.unwrap();
    assert!(
        told.contains("callback.attempted"),
        "the stream ended whole: {told}"
    );

    // The delivery is still pending.
    ill.answer(Answer::status(200));
    let bridge = home.start();
    let (_, record) = bridge.api.get(&format!("/api/v2/dispatch/{id}")).await;
    let retry = format!(
        "{}/retry",
        record["deliveries"][0]["href"].as_str().unwrap()
    );
    bridge.api.post(&retry, &json!({})).await;
    assert_eq!(ill.until(2).await.len(), 2);
}

#[tokio::test]
async fn what_runs_and_what_is_due_is_waited_for() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[("BRIDGE_DRAIN_GRACE", HOUR)]);
    let bridge = home.start();
    bridge
        .api
        .dispatch(owed("t", "slow:1000", &sink.url("/cb")))
        .await;
    running(&bridge, "t").await;
    bridge.terminate();
    assert!(bridge.ended().await.success());
    let received = sink.received();
    assert_eq!(received.len(), 1, "the callback was sent before the end");
    let result: serde_json::Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(result["status"], "ok", "{result}");
}

#[tokio::test]
async fn the_second_signal_ends_it_at_once_and_loses_nothing() {
    let home = Home::new(&[("BRIDGE_DRAIN_GRACE", HOUR), ("BRIDGE_DRAIN_ACCEPT", HOUR)]);
    let bridge = home.start();
    let hanging = bridge.api.dispatch(quiet("hanging", "hang")).await;
    running(&bridge, &hanging).await;
    bridge.terminate();
    draining(&bridge).await;
    // Accepted during the drain, and not started.
    let late = bridge.api.dispatch(quiet("late", "ok")).await;
    let (_, record) = bridge.api.get(&format!("/api/v2/dispatch/{late}")).await;
    assert_eq!(record["status"], "queued", "{record}");
    bridge.terminate();
    assert_eq!(bridge.ended().await.code(), Some(130));

    let bridge = home.start();
    let record = bridge.api.finished(&late).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    let record = bridge.api.finished(&hanging).await;
    assert_eq!(record["result"]["errorCode"], "interrupted", "{record}");
}

#[tokio::test]
async fn a_start_that_hangs_can_be_ended() {
    let mut home = Home::new(&[
        ("BRIDGE_ADAPTERS", "echo,rogue"),
        ("BRIDGE_ADAPTERS_ROGUE_INITIALIZE", "hang"),
        ("BRIDGE_PLUGIN_INITIALIZE_TIMEOUT", HOUR),
    ]);
    let folder = tempfile::tempdir().unwrap();
    compile(
        &folder.path().join(file_name("rogue")),
        "rogue/rogue.c",
        &[],
    );
    let path = format!("{},{}", folder.path().display(), plugins().display());
    home.variables.insert("BRIDGE_PLUGIN_PATH".to_owned(), path);
    let bridge = home.begin();
    // Created after signal handling is set up and before adapters are called.
    let state = home.dir.path().join("data/state");
    until("the start to come to the adapters", || async {
        state.exists().then_some(())
    })
    .await;
    bridge.terminate();
    assert!(bridge.ended().await.success());
}
