//! Several bridges on one database: any of them accepts, streams and cancels for all, and what a node leaves is taken over.

use std::cell::Cell;
use std::time::Duration;

use forge_test_postgres::{Cluster, cluster};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::api::{owed, quiet, with};
use crate::harness::process::{Home, Process};
use crate::harness::store::database;
use crate::harness::until;
use crate::harness::{CallbackSink, browser};
use crate::metrics::scrape;

const LEASE: Duration = Duration::from_secs(3);

/// Bridges on one new database, each with the echo adapter under one of these names.
pub(super) struct Fleet {
    pub(super) homes: Vec<Home>,
    server: &'static Cluster,
    database: String,
}

impl Fleet {
    pub(super) fn new(providers: &[&str]) -> Self {
        Self::on(cluster(), &database().0, providers)
    }

    /// Bridges on this database of a server.
    pub(super) fn on(server: &'static Cluster, database: &str, providers: &[&str]) -> Self {
        let mut homes: Vec<Home> = Vec::new();
        for _ in providers {
            let mut home = Home::new(&[("BRIDGE_STORE", &server.url(database, "forge"))]);
            if let Some(first) = homes.first() {
                let key = &first.variables["BRIDGE_SECRET_KEY_FILE"];
                home.set("BRIDGE_SECRET_KEY_FILE", key);
            }
            homes.push(home);
        }
        for (home, provider) in homes.iter_mut().zip(providers) {
            let settings = home.dir.path().join("bridge.toml");
            let text = format!("store.lease = \"3s\"\n[adapters.{provider}]\nlibrary = \"echo\"\n");
            std::fs::write(&settings, text).unwrap();
            home.set("BRIDGE_CONFIG", &settings.display().to_string());
            home.set("BRIDGE_ADAPTERS", provider);
        }
        Self {
            homes,
            server,
            database: database.to_owned(),
        }
    }

    pub(super) async fn start(&self) -> Vec<Process> {
        let bridges: Vec<_> = self.homes.iter().map(Home::start).collect();
        for bridge in &bridges {
            until("all nodes are known", async || {
                let (_, listed) = bridge.api.get("/api/v2/nodes").await;
                let nodes = listed["nodes"].as_array().unwrap();
                let told = nodes.iter().filter(|node| node["adapters"] != json!([]));
                (told.count() == self.homes.len()).then_some(())
            })
            .await;
        }
        // The rows are there; each bridge reads them with its next poll.
        tokio::time::sleep(Duration::from_secs(1)).await;
        bridges
    }

    pub(super) fn query(&self, sql: &str) -> String {
        self.server.run(&self.database, sql)
    }
}

fn at(provider: &str, body: Value) -> Value {
    with(body, &json!({ "provider": provider }))
}

/// Text of the stream of a dispatch, to its end.
async fn stream(bridge: &Process, id: &str) -> String {
    let path = format!("/api/v2/dispatch/{id}/events");
    let asked = bridge.api.request(Method::GET, &path);
    let asked = asked.header("accept", "text/event-stream");
    asked.send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn any_node_accepts_streams_and_cancels_for_all() {
    let fleet = Fleet::new(&["one", "two", "three"]);
    let bridges = fleet.start().await;
    let sink = CallbackSink::start().await;
    let [one, two, three] = bridges.as_slice() else {
        panic!("three were started");
    };
    for (number, provider) in ["one", "two", "three", "two"].iter().enumerate() {
        let body = owed(&format!("t-{number}"), "stream:5", &sink.url("/cb"));
        let id = one.api.dispatch(at(provider, body)).await;
        let streamed = stream(three, &id).await;
        assert_eq!(
            streamed.matches("event: assistant.text\n").count(),
            5,
            "{streamed}"
        );
        assert!(
            streamed.contains("event: execution.completed\n"),
            "{streamed}"
        );
        let record = two.api.delivery_is(&id, "delivered").await;
        assert_eq!(
            (&record["provider"], &record["attempt"]),
            (&json!(provider), &json!(1))
        );
    }
    // Each result was sent once, and the log is the same everywhere.
    assert_eq!(sink.received().len(), 4);
    let log = one.api.event_log().await;
    assert_eq!(three.api.event_log().await, log);

    let slow = one
        .api
        .dispatch(at("two", quiet("slow", "slow:60000")))
        .await;
    three.api.running(&slow).await;
    assert!(three.api.cancel(&slow).await);
    let record = one.api.finished(&slow).await;
    assert_eq!(record["errorCode"], "cancelled", "{record}");

    // A pause holds everywhere.
    let (status, _) = two.api.post("/api/v2/adapters/two/pause", &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let held = one.api.dispatch(at("two", quiet("held", "ok"))).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(one.api.record(&held).await["status"], "queued");
    two.api
        .post("/api/v2/adapters/two/resume", &json!({}))
        .await;
    one.api.finished(&held).await;

    // Each answer names its node.
    let (_, listed) = one.api.get("/api/v2/nodes").await;
    let answer = one
        .api
        .request(Method::GET, "/api/health")
        .send()
        .await
        .unwrap();
    assert_eq!(
        answer.headers()["forge-node"],
        listed["node"].as_str().unwrap()
    );
}

#[tokio::test]
async fn what_a_killed_node_ran_is_taken_over_within_its_lease() {
    let fleet = Fleet::new(&["echo", "echo"]);
    let mut bridges = fleet.start().await;
    let (second, first) = (bridges.pop().unwrap(), bridges.pop().unwrap());
    let sink = CallbackSink::start().await;
    let mut ids = Vec::new();
    for policy in ["fail", "retry"] {
        let body = owed(policy, "slow:1500", &sink.url("/cb"));
        let body = with(body, &json!({ "recovery": policy }));
        let id = first.api.dispatch(body).await;
        first.api.running(&id).await;
        ids.push(id);
    }
    let runs_on = "SELECT count(DISTINCT d.epoch) FROM dispatch d JOIN node n ON n.epoch = d.epoch";
    assert_eq!(fleet.query(runs_on), "1");
    first.kill();
    second.api.finished(&ids[0]).await;
    for (id, (code, attempt)) in ids
        .iter()
        .zip([(json!("interrupted"), 1), (json!(null), 2)])
    {
        second.api.delivery_is(id, "delivered").await;
        let record = second.api.record(id).await;
        assert_eq!(record["result"]["errorCode"], code, "{record}");
        assert_eq!(record["result"]["attempt"], attempt, "{record}");
    }
    assert_eq!(sink.received().len(), 2);
    let (_, listed) = second.api.get("/api/v2/nodes").await;
    let live = listed["nodes"].as_array().unwrap().iter();
    let live: Vec<_> = live.filter(|node| node["live"] == true).collect();
    assert_eq!(live.len(), 1);
    assert_eq!(live[0]["takenOver"], 2, "{listed}");
    assert!(live[0]["lastTakeOverAt"].is_string(), "{listed}");
    let mut command = fleet.homes[1].command();
    let shown = command.args(["nodes", "--url", &second.api.url]).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(
        shown.contains("gone") && shown.contains("taken over"),
        "{shown}"
    );
    let page = scrape(&second).await;
    for line in [
        "forge_bridge_dispatches_taken_over_total{outcome=\"requeued\"} 1",
        "forge_bridge_dispatches_taken_over_total{outcome=\"ended\"} 1",
        "forge_bridge_nodes 1",
        "forge_bridge_store_lease_seconds 3.0",
        "forge_bridge_store_commit_answers_lost_total{outcome=\"unknown\"} 0",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\n{page}");
    }
    let value = |name: &str| {
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse::<f64>().unwrap()
    };
    assert!(value("forge_bridge_store_poll_seconds_count") > 10.0);
    assert!(value("forge_bridge_store_lease_age_seconds") < 2.0);
}

#[tokio::test]
async fn the_console_shows_the_nodes() {
    let fleet = Fleet::new(&["echo", "other"]);
    let mut bridges = fleet.start().await;
    let (second, first) = (bridges.pop().unwrap(), bridges.pop().unwrap());
    let body = with(quiet("t", "slow:60000"), &json!({ "recovery": "fail" }));
    let id = first.api.dispatch(body).await;
    first.api.running(&id).await;
    let stop = first.id().to_string();
    browser::run("nodes.mjs", &[&second.api.url, &first.api.url, &stop]).await;
}

#[tokio::test]
async fn a_restart_on_the_same_folder_takes_over_at_once() {
    let fleet = Fleet::new(&["echo", "other"]);
    let mut bridges = fleet.start().await;
    let (_second, first) = (bridges.pop().unwrap(), bridges.pop().unwrap());
    let body = with(quiet("t", "slow:700"), &json!({ "recovery": "retry" }));
    let id = first.api.dispatch(body).await;
    first.api.running(&id).await;
    first.kill();
    let again = fleet.homes[0].start();
    let record = again.api.finished(&id).await;
    assert_eq!(record["result"]["attempt"], 2, "{record}");
    let epochs = fleet.query("SELECT max(epoch) FROM node");
    assert_eq!(epochs, "3", "no lease had to end");
}

#[tokio::test]
async fn a_node_that_was_stopped_for_two_leases_writes_nothing_and_serves_again() {
    let fleet = Fleet::new(&["echo", "echo"]);
    let mut bridges = fleet.start().await;
    let (second, first) = (bridges.pop().unwrap(), bridges.pop().unwrap());
    let body = with(quiet("t", "slow:4000"), &json!({ "recovery": "retry" }));
    let id = first.api.dispatch(body).await;
    first.api.running(&id).await;
    let epoch = fleet.query("SELECT epoch FROM dispatch");
    first.freeze();
    until("the take-over", async || {
        let is_taken = fleet.query(&format!("SELECT 1 FROM dispatch WHERE epoch > {epoch}"));
        (!is_taken.is_empty()).then_some(())
    })
    .await;
    tokio::time::sleep(LEASE).await;
    first.thaw();
    let attempts = Cell::new(0);
    until("the node serves", async || {
        attempts.set(attempts.get() + 1);
        let body = quiet(&format!("after-{}", attempts.get()), "ok");
        let posted = first.api.post("/api/v2/dispatch", &body).await;
        (posted.0 == StatusCode::ACCEPTED).then_some(())
    })
    .await;
    let record = second.api.finished(&id).await;
    assert_eq!(record["result"]["attempt"], 2, "{record}");
    assert_eq!(
        fleet.query(&format!(
            "SELECT count(*) FROM dispatch WHERE epoch = {epoch}"
        )),
        "0"
    );
    let ended = second.api.events(&id).await;
    let ends = ended
        .iter()
        .filter(|event| event["type"] == "execution.completed");
    assert_eq!(ends.count(), 1, "{ended:?}");
}
