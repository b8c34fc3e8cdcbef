//! Commands beside a running bridge: they read the database, take no node, and say what SQLite's commands do not do here.

use std::process::Output;

use forge_test_postgres::cluster;
use serde_json::Value;

use super::home;
use crate::harness::CallbackSink;
use crate::harness::api::{owed, quiet};
use crate::harness::process::Home;

fn run(home: &Home, arguments: &[&str]) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = home.command().args(arguments).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.success(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_check_shows_the_state_of_the_database() {
    let (mut home, database) = home(&[]);
    let (is_good, text) = run(&home, &["check"]);
    assert!(is_good, "{text}");
    assert!(text.contains("no tables yet, all rights"), "{text}");
    home.start().kill();
    let (is_good, text) = run(&home, &["check"]);
    assert!(is_good, "{text}");
    for expected in [
        &database,
        "PostgreSQL ",
        "tables of version 4, all rights, round trip ",
        "durability server",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (_, text) = run(&home, &["check", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["store"]["schema"], 4, "{report}");
    assert_eq!(report["store"]["durability"], "server", "{report}");

    cluster().run("postgres", "CREATE ROLE observer LOGIN");
    cluster().run(
        &database,
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO observer",
    );
    home.set("BRIDGE_STORE", &cluster().url(&database, "observer"));
    let (is_good, text) = run(&home, &["check"]);
    assert!(
        !is_good && text.contains("lacks rights on attempt, body, "),
        "{text}"
    );
    home.set("BRIDGE_STORE", &cluster().url("nowhere", "forge"));
    let (is_good, text) = run(&home, &["check"]);
    assert!(
        !is_good && text.contains("store.url (BRIDGE_STORE): "),
        "{text}"
    );
    home.variables.remove("BRIDGE_STORE");
    let (is_good, text) = run(&home, &["check"]);
    assert!(is_good && !text.contains("store:"), "{text}");
}

#[tokio::test]
async fn commands_leave_the_node_of_the_running_bridge() {
    let sink = CallbackSink::start().await;
    let (home, database) = home(&[]);
    let bridge = home.start();
    let id = bridge.api.dispatch(owed("t", "ok", &sink.url("/cb"))).await;
    bridge.api.delivery_is(&id, "delivered").await;
    let (is_good, text) = run(&home, &["secrets", "--json"]);
    assert!(is_good && text.contains("whsec_"), "{text}");
    let (is_good, text) = run(&home, &["secrets", "keys", "--json"]);
    assert!(is_good && text.contains("\"sealed\""), "{text}");
    let (_, text) = run(&home, &["callback", "test", &sink.url("/cb"), "--json"]);
    assert!(text.contains("\"rules\""), "{text}");
    for (command, expected) in [
        (&["store", "check"][..], "pg_amcheck"),
        (&["store", "backup", "copy.db"], "pg_dump"),
    ] {
        let (is_good, text) = run(&home, command);
        assert!(!is_good && text.contains(expected), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let nodes = cluster().run(&database, "SELECT count(*), max(epoch) FROM node");
    assert_eq!(nodes, "1|1");
    let id = bridge.api.dispatch(quiet("after", "ok")).await;
    bridge.api.finished(&id).await;
}
