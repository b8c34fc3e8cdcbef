//! A receiver that is down, with the real program: its circuit breaker opens, survives `kill -9`, and closes when
//! the receiver is back; nothing is lost.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::harness::api::owed;
use super::harness::process::Home;
use super::harness::{Answer, Api, CallbackSink, until};

const OWED: usize = 12;

async fn destination(api: &Api) -> Option<Value> {
    let (status, body) = api.get("/api/v2/deliveries/destinations").await;
    assert_eq!(status, 200, "{body}");
    body["destinations"].as_array().unwrap().first().cloned()
}

async fn is_open(api: &Api) -> Option<Value> {
    destination(api).await.filter(|d| d["state"] == "open")
}

#[tokio::test]
async fn a_receiver_that_is_down_is_left_alone_over_a_crash_until_it_is_back() {
    let (dead, alive) = (CallbackSink::start().await, CallbackSink::start().await);
    dead.answer(Answer::status(503));
    let home = Home::new(&[
        ("BRIDGE_CALLBACK_BREAKER_OPEN", "6s"),
        ("BRIDGE_CALLBACK_BREAKER_OPEN_MAX", "6s"),
    ]);
    let bridge = home.start();
    for number in 0..OWED {
        let body = owed(&format!("task-{number}"), "ok", &dead.url("/cb"));
        bridge.api.dispatch(body).await;
    }
    let opened = until("the breaker opens", || is_open(&bridge.api)).await;
    assert_eq!(opened["openings"], 1, "{opened}");
    assert_eq!(opened["reason"], "answered 503");
    assert_eq!(opened["origin"], dead.url(""));
    // The breaker's state is written before this later delivery.
    let other = bridge
        .api
        .dispatch(owed("other", "ok", &alive.url("/cb")))
        .await;
    bridge.api.delivery_is(&other, "delivered").await;
    let tried = dead.received().len();
    bridge.kill();

    let bridge = home.start();
    let other = bridge
        .api
        .dispatch(owed("later", "ok", &alive.url("/cb")))
        .await;
    bridge.api.delivery_is(&other, "delivered").await;
    let received = dead.received().len();
    let still = until("the breaker is read", || destination(&bridge.api)).await;
    assert_eq!(still["openedAt"], opened["openedAt"], "{still}");
    if still["probeAt"] == opened["probeAt"] && still["state"] == "open" {
        assert_eq!(received, tried, "nothing is sent there");
    }
    let mut list = home.command();
    list.args(["deliveries", "destinations", "--json", "--url"]);
    let listed = list.arg(&bridge.api.url).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["destinations"][0]["origin"], dead.url(""));

    dead.answer(Answer::status(200));
    until("all are delivered", || async {
        let (_, health) = bridge.api.get("/api/health").await;
        (health["deliveries"]["pending"] == 0).then_some(())
    })
    .await;
    until("the breaker closes", || async {
        destination(&bridge.api).await.is_none().then_some(())
    })
    .await;
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for request in dead.received() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let task = body["taskId"].as_str().unwrap().to_owned();
        let id = request.headers["webhook-id"].clone();
        ids.entry(task).or_default().insert(id);
    }
    assert_eq!(ids.len(), OWED, "none is lost");
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["deliveries"]["dead"], 0);
}
