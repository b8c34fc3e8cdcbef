//! Receivers that are down, with the real program: the circuit breaker opens, survives `kill -9`, and closes when the
//! receiver is back or an operator says so; nothing is lost. What an operator sees and does by commands.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::harness::api::owed;
use super::harness::process::{Home, Process};
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
    let (_, said) = command(&home, &bridge, &["deliveries", "destinations"]);
    assert!(said.contains("no receiver fails"), "{said}");
}

/// Runs a command against the bridge; returns its exit code and its standard output and error.
fn command(home: &Home, bridge: &Process, arguments: &[&str]) -> (i32, String) {
    let mut command = home.command();
    command.args(arguments).args(["--url", &bridge.api.url]);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let code = output.status.code().unwrap();
    (code, String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn an_operator_sees_why_nothing_is_sent_and_does_not_wait_for_it() {
    let dead = CallbackSink::start().await;
    dead.answer(Answer::status(503));
    let home = Home::new(&[("BRIDGE_CALLBACK_BREAKER_OPEN", "5m")]);
    let bridge = home.start();
    for number in 0..OWED {
        let body = owed(&format!("task-{number}"), "ok", &dead.url("/cb"));
        bridge.api.dispatch(body).await;
    }
    let opened = until("the breaker opens", || is_open(&bridge.api)).await;
    let (_, page) = bridge.api.get("/api/v2/deliveries").await;
    let oldest = page["deliveries"].as_array().unwrap().last();
    let delivery = oldest.unwrap();
    assert_eq!(delivery["destination"], opened, "{delivery}");
    let id = delivery["id"].as_str().unwrap();
    let probe = opened["probeAt"].as_str().unwrap();
    let waits = format!("circuit open, next try {}", &probe[11..19]);
    for arguments in [&["deliveries"][..], &["deliveries", "show", id]] {
        let (code, said) = command(&home, &bridge, arguments);
        assert!(code == 0 && said.contains(&waits), "{waits}: {said}");
    }
    let (_, said) = command(&home, &bridge, &["health"]);
    let pending = format!("callbacks: {OWED} pending, 0 dead");
    assert!(said.contains(&pending), "{said}");

    // One is sent at once, as a probe, in vain.
    let tried = dead.received().len();
    let (code, said) = command(&home, &bridge, &["deliveries", "retry", id]);
    assert!(
        code == 0 && said.contains("circuit half-open, tried now"),
        "{said}"
    );
    until("it is sent", || async {
        let received = dead.received();
        let mut later = received[tried..].iter();
        later
            .find(|request| request.headers["webhook-id"] == id)
            .map(drop)
    })
    .await;
    until("the breaker opens again", || async {
        let open = is_open(&bridge.api).await;
        open.filter(|destination| destination["openings"] == 2)
    })
    .await;

    dead.answer(Answer::status(200));
    let origin = dead.url("");
    let close = ["deliveries", "destinations", "retry", &origin];
    let (code, said) = command(&home, &bridge, &close);
    assert!(code == 0 && said.contains("circuit closed"), "{said}");
    until("all are delivered", || async {
        let (_, health) = bridge.api.get("/api/health").await;
        (health["deliveries"]["pending"] == 0).then_some(())
    })
    .await;
    assert_eq!(destination(&bridge.api).await, None);
    let (code, said) = command(&home, &bridge, &close);
    assert!(
        code == 4 && said.contains("no circuit breaker is open"),
        "{said}"
    );
}

#[tokio::test]
async fn the_list_of_deliveries_has_pages_and_a_start() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
    for number in 0..5 {
        let task = format!("task-{number}");
        let id = bridge.api.dispatch(owed(&task, "ok", &sink.url("/cb")));
        bridge.api.delivery_is(&id.await, "delivered").await;
    }
    let tasks = |arguments: &[&str]| -> Vec<String> {
        let (code, said) = command(&home, &bridge, &[&["deliveries"][..], arguments].concat());
        assert_eq!(code, 0, "{said}");
        let words = said.split_whitespace();
        let tasks = words.filter(|word| word.starts_with("task-"));
        tasks.map(str::to_owned).collect()
    };
    let newest = ["task-4", "task-3", "task-2", "task-1", "task-0"];
    assert_eq!(tasks(&["--limit", "2"]), newest[..2]);
    assert_eq!(tasks(&["--limit", "2", "--all"]), newest);
    assert_eq!(tasks(&["--since", "1h"]), newest);
    assert_eq!(tasks(&["--since", "2100-01-01T00:00:00Z"]), newest[..0]);
    let (_, page) = command(
        &home,
        &bridge,
        &["deliveries", "list", "--limit=2", "--json"],
    );
    let page: Value = serde_json::from_str(&page).unwrap();
    let cursor = page["nextCursor"].as_str().unwrap();
    assert_eq!(tasks(&["--limit", "2", "--cursor", cursor]), newest[2..4]);
    let (code, said) = command(&home, &bridge, &["deliveries", "list", "--since", "later"]);
    assert!(
        code == 4 && said.contains("since: must be a time"),
        "{said}"
    );

    let (_, page) = bridge.api.get("/api/v2/dispatches?status=finished").await;
    assert_eq!(page["dispatches"].as_array().unwrap().len(), 5);
    let (_, page) = bridge.api.get("/api/v2/dispatches?since=30m&limit=1").await;
    assert_eq!(page["dispatches"][0]["outcome"], json!("ok"), "{page}");
}

#[tokio::test]
async fn many_are_sent_again_only_after_a_yes() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(410));
    let home = Home::new(&[]);
    let bridge = home.start();
    for task in ["one", "two"] {
        let id = bridge
            .api
            .dispatch(owed(task, "ok", &sink.url("/cb")))
            .await;
        bridge.api.delivery_is(&id, "dead").await;
    }
    sink.answer(Answer::status(200));
    let host = sink.address().to_string();
    let retry = |more: &[&str]| {
        let arguments = [&["deliveries", "retry", "--host", &host], more].concat();
        command(&home, &bridge, &arguments)
    };
    let (code, said) = retry(&["--dry-run"]);
    assert!(
        code == 0 && said.contains("2 would be sent again"),
        "{said}"
    );
    // Standard input is empty.
    let (code, said) = retry(&[]);
    assert!(
        code == 1 && said.contains("Send 2 deliveries again?"),
        "{said}"
    );
    assert_eq!(sink.received().len(), 2, "nothing was sent");
    let (code, said) = retry(&["--yes"]);
    assert!(code == 0 && said.contains("2 scheduled"), "{said}");
    sink.until(4).await;
}
