//! SIGTERM under load: requests are answered 202 as long as the socket is open, and each accepted dispatch gets its
//! result and its callback, before the end or after the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::StatusCode;
use serde_json::Value;
use tokio::task::JoinSet;

use super::harness::api::{JsonBody as _, owed, with};
use super::harness::process::{Home, Process};
use super::harness::{Answer, Api, CallbackSink, until};

const CLIENTS: usize = 12;

/// Answers to the requests of one client.
#[derive(Default)]
struct Told {
    accepted: Vec<String>,
    refused: Vec<String>,
}

/// Sends dispatches one after the other until the bridge is gone.
async fn load(client: usize, api: Api, url: String, count: Arc<AtomicUsize>) -> Told {
    let mut told = Told::default();
    for number in 0.. {
        let task = format!("c{client}-{number}");
        let model = ["ok", "slow:100", "stream:3", "slow:5000"][number % 4];
        let recovery = ["fail", "retry"][number % 2];
        let body = owed(&task, model, &url);
        let body = with(body, &serde_json::json!({ "recovery": recovery }));
        let request = api.request(reqwest::Method::POST, "/api/v2/dispatch");
        match request.json_body(&body).send().await {
            Ok(answer) if answer.status() == StatusCode::ACCEPTED => {
                // The body can be cut off; the dispatch is accepted all the same.
                let _ = answer.bytes().await;
                told.accepted.push(task);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(answer) => told.refused.push(format!(
                "{}: {}",
                answer.status(),
                answer.text().await.unwrap()
            )),
            Err(_) => break,
        }
    }
    told
}

/// Results received for each task, with their `webhook-id`s.
fn received(sink: &CallbackSink) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut received: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for request in sink.received() {
        let result: Value = serde_json::from_slice(&request.body).unwrap();
        let task = result["taskId"].as_str().unwrap().to_owned();
        let id = request.headers["webhook-id"].clone();
        received
            .entry(task)
            .or_default()
            .insert((id, result.to_string()));
    }
    received
}

async fn loaded(bridge: &Process, sink: &CallbackSink) -> (JoinSet<Told>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(load(
            client,
            bridge.api.clone(),
            sink.url("/cb"),
            Arc::clone(&count),
        ));
    }
    until("some load", || async {
        (count.load(Ordering::Relaxed) > 10 * CLIENTS).then_some(())
    })
    .await;
    (clients, count)
}

async fn every_promise_is_kept(home: &Home, sink: &CallbackSink, accepted: &[String]) {
    let bridge = home.start();
    for task in accepted {
        let record = bridge.api.delivery_is(task, "delivered").await;
        let result = &record["result"];
        let well = result["status"] == "ok" || result["errorCode"] == "interrupted";
        assert!(well, "{task}: {result}");
    }
    let received = received(sink);
    for task in accepted {
        let results = received.get(task);
        assert_eq!(results.map(BTreeSet::len), Some(1), "{task}: {results:?}");
    }
    let all: BTreeSet<_> = accepted.iter().collect();
    // A dispatch whose answer was cut off might have been accepted.
    let unasked = received.keys().filter(|task| !all.contains(task)).count();
    assert!(
        unasked <= CLIENTS,
        "{unasked} results of dispatches that were not sent"
    );
    bridge.kill();
}

#[tokio::test]
async fn a_sigterm_under_load_refuses_and_loses_nothing() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|request| Answer::status(if request.number % 5 == 0 { 503 } else { 200 }));
    let home = Home::new(&[("BRIDGE_DRAIN_ACCEPT", "1s"), ("BRIDGE_DRAIN_GRACE", "2s")]);
    let bridge = home.start();
    let (clients, count) = loaded(&bridge, &sink).await;
    let before = count.load(Ordering::Relaxed);
    bridge.terminate();
    let mut accepted = Vec::new();
    for told in clients.join_all().await {
        assert!(told.refused.is_empty(), "{:?}", told.refused);
        accepted.extend(told.accepted);
    }
    assert!(bridge.ended().await.success());
    assert!(
        accepted.len() > before + CLIENTS,
        "nothing was accepted while it drained"
    );
    every_promise_is_kept(&home, &sink, &accepted).await;
}

#[tokio::test]
async fn a_second_signal_under_load_ends_it_at_once_and_loses_nothing() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[("BRIDGE_DRAIN_ACCEPT", "1h"), ("BRIDGE_DRAIN_GRACE", "1h")]);
    let bridge = home.start();
    let (clients, _) = loaded(&bridge, &sink).await;
    bridge.terminate();
    until("the drain", || async {
        let (status, _) = bridge.api.get("/api/health/ready").await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    bridge.terminate();
    assert_eq!(bridge.ended().await.code(), Some(130));
    let mut accepted = Vec::new();
    for told in clients.join_all().await {
        assert!(told.refused.is_empty(), "{:?}", told.refused);
        accepted.extend(told.accepted);
    }
    every_promise_is_kept(&home, &sink, &accepted).await;
}
