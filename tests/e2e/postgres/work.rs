//! Dispatches are accepted, streamed, cancelled and delivered, also when the bridge is killed in between.

use forge_test_postgres::cluster;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::home;
use crate::harness::CallbackSink;
use crate::harness::api::{owed, quiet, with};
use crate::store_faults::Ending;
use crate::store_faults::load::Load;

#[tokio::test]
async fn work_is_done_and_no_file_of_a_store_is_written() {
    let sink = CallbackSink::start().await;
    let (home, database) = home(&[]);
    let bridge = home.start();
    let api = &bridge.api;
    let id = api.dispatch(owed("t", "stream:3", &sink.url("/cb"))).await;
    let path = format!("/api/v2/dispatch/{id}/events?until=delivered");
    let stream = api
        .request(Method::GET, &path)
        .header("accept", "text/event-stream");
    let stream = stream.send().await.unwrap().text().await.unwrap();
    for event in [
        "execution.accepted",
        "assistant.text",
        "execution.completed",
        "callback.delivered",
    ] {
        assert!(
            stream.contains(&format!("event: {event}\n")),
            "{event}: {stream}"
        );
    }
    let record = api.delivery_is(&id, "delivered").await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    assert_eq!(sink.received().len(), 1);

    let slow = api.dispatch(quiet("slow", "slow:60000")).await;
    api.running(&slow).await;
    assert!(api.cancel(&slow).await);
    let record = api.finished(&slow).await;
    assert_eq!(record["errorCode"], "cancelled", "{record}");

    let (status, health) = api.get("/api/health").await;
    assert_eq!(status, StatusCode::OK, "{health}");
    let rows = cluster().run(&database, "SELECT count(*) FROM dispatch WHERE phase = 5");
    assert_eq!(rows, "2");
    assert!(!home.dir.path().join("data/bridge.db").exists());
    bridge.terminate();
    assert!(bridge.ended().await.success());
}

#[tokio::test]
async fn killed_in_the_middle_of_work_it_loses_nothing() {
    // A slow machine can interrupt the same dispatch each time.
    let (home, database) = home(&[("BRIDGE_DISPATCH_MAX_ATTEMPTS", "5")]);
    let mut load = Load::start().await;
    for _ in 0..3 {
        let bridge = home.start();
        load.send(&bridge.api, 40).await;
        Ending::Killed.come(bridge).await;
    }
    let bridge = home.start();
    assert_eq!((load.answered(), load.refused()), (120, 0));
    load.verify_all(&bridge.api).await;
    let epochs = cluster().run(&database, "SELECT count(*), max(epoch) FROM node");
    assert_eq!(epochs, "1|4", "one node, four starts");
}

#[tokio::test]
async fn a_policy_holds_over_a_kill() {
    let (home, _) = home(&[]);
    let bridge = home.start();
    let mut ids = Vec::new();
    for policy in ["fail", "retry"] {
        let body = with(quiet(policy, "slow:1500"), &json!({"recovery": policy}));
        let id = bridge.api.dispatch(body).await;
        bridge.api.running(&id).await;
        ids.push(id);
    }
    bridge.kill();
    let bridge = home.start();
    for (id, (code, attempt)) in ids
        .iter()
        .zip([(json!("interrupted"), 1), (json!(null), 2)])
    {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["errorCode"], code, "{record}");
        assert_eq!(record["result"]["attempt"], attempt, "{record}");
    }
}
