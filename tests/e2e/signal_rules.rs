//! Rules over signals: verdicts over HTTP, over restarts and changes of the rules, and while the store is away.

use std::fs;
use std::time::Instant;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::harness::until;
use super::reload::read_again;
use super::signals::{Tool, agent_of};
use super::store_faults::disk::{Disk, WELL, WRITES_FAIL};

/// Home with this file of rules.
fn home(rules: &Value) -> Home {
    let home = Home::new(&[]);
    write(&home, rules);
    let settings =
        "[signals]\nrules = \"rules.json\"\n[signals.prices.m]\ninput = 1000.0\noutput = 0.0\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home
}

fn write(home: &Home, rules: &Value) {
    fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
}

async fn tool(bridge: &Process, user: &str) -> Tool {
    let request = json!({"adapter": "a", "user_id": user});
    Tool::start(&agent_of(&bridge.api).await, &request).await
}

/// A record whose model has a price: a thousandth of a dollar for each token.
fn tokens(count: u64) -> Value {
    json!({"adapter": "a", "ts": "2026-01-01T00:00:00Z", "model": "m", "tokens_in": count})
}

async fn emit(tool: &Tool, record: &Value) -> Value {
    let (status, answer) = tool.emit(record).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

fn budget(limit: f64) -> Value {
    json!({"version": 1, "budgets": [{"id": "daily", "scope": "user", "window": "1d", "limitUsd": limit}]})
}

#[tokio::test]
async fn a_budget_warns_blocks_and_is_kept_over_a_kill_and_a_change() {
    let home = home(&budget(1.0));
    let bridge = home.start();
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["rules"], 2);
    let first = tool(&bridge, "ana").await;
    let free = emit(&first, &tokens(700)).await;
    assert_eq!(
        free,
        json!({"blocked": false, "session_id": first.session, "logged": true})
    );
    let warned = emit(&first, &tokens(100)).await;
    assert_eq!(warned["blocked"], false);
    let message = "Cost budget 80% consumed — consider wrapping up this session.";
    assert_eq!(warned["message"], message);
    let blocked = emit(&first, &tokens(200)).await;
    assert_eq!(blocked["blocked"], true);
    assert_eq!(blocked["message"], "Cost budget \"daily\" is used up.");
    let intervention = blocked["intervention_id"].as_str().unwrap().to_owned();
    let other = tool(&bridge, "ben").await;
    assert_eq!(emit(&other, &tokens(1)).await["blocked"], false);
    let log = bridge.api.event_log().await;
    let told = log.iter().filter(|event| event["type"] == "signal.blocked");
    let told: Vec<_> = told.map(|event| &event["data"]).collect();
    let expected = json!({
        "interventionId": intervention, "ruleId": "daily", "severity": "critical", "sessionId": first.session,
    });
    assert_eq!(told, [&expected]);
    bridge.kill();

    let bridge = home.start();
    let again = tool(&bridge, "ana").await;
    let blocked = emit(&again, &tokens(0)).await;
    assert_eq!(
        (&blocked["blocked"], &blocked["intervention_id"]),
        (&json!(true), &json!(intervention))
    );
    write(&home, &budget(2.0));
    read_again(&home, &bridge, "settings reloaded").await;
    assert_eq!(emit(&again, &tokens(0)).await["blocked"], false);
    // A file with an error changes nothing.
    write(&home, &json!({"version": 1, "budgets": [{"id": "daily"}]}));
    read_again(&home, &bridge, "budgets[0]").await;
    assert_eq!(emit(&again, &tokens(999)).await["blocked"], false);
    assert_eq!(emit(&again, &tokens(1)).await["blocked"], true);
}

/// Many tools at once: no signal is lost or counted twice, also after a kill.
#[tokio::test]
async fn totals_are_exact_under_load_and_after_a_kill() {
    const TOOLS: u64 = 64;
    const RECORDS: u64 = 200;
    let all = TOOLS * RECORDS;
    let home = home(&json!({"version": 1, "rules": [
        {"id": "last", "scope": "org", "window": "all-time", "action": "block", "condition": {"tokens": {"gt": all}}},
        {"id": "user", "scope": "user", "window": "1d", "action": "block", "condition": {"signals": {"gt": RECORDS}}},
    ]}));
    let bridge = home.start();
    let send = async |number: u64| {
        let tool = tool(&bridge, &format!("u{number}")).await;
        let mut record = tokens(1);
        record["session_id"] = tool.session.clone().into();
        for _ in 0..RECORDS {
            assert_eq!(emit(&tool, &record).await["blocked"], false);
        }
    };
    join_all((0..TOOLS).map(send)).await;
    bridge.kill();

    let bridge = home.start();
    let same_user = tool(&bridge, "u7").await;
    let blocked = emit(&same_user, &tokens(0)).await;
    assert_eq!(
        blocked["message"], "Blocked by the rule \"user\".",
        "{blocked}"
    );
    let other = tool(&bridge, "other").await;
    assert_eq!(emit(&other, &tokens(0)).await["blocked"], false);
    let blocked = emit(&other, &tokens(1)).await;
    assert_eq!(
        blocked["message"], "Blocked by the rule \"last\".",
        "{blocked}"
    );
}

#[tokio::test]
async fn while_the_store_is_away_rules_judge_from_memory() {
    let mut home = home(&budget(1.0));
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    let tool = tool(&bridge, "ana").await;
    assert_eq!(emit(&tool, &tokens(600)).await["blocked"], false);
    disk.is(WRITES_FAIL);
    let sent = Instant::now();
    assert_eq!(emit(&tool, &tokens(100)).await["blocked"], false);
    let blocked = emit(&tool, &tokens(500)).await;
    assert_eq!(blocked["blocked"], true, "{blocked}");
    // Each answer takes a second at most, and a bit for a busy machine.
    assert!(sent.elapsed().as_secs() < 10);
    disk.is(WELL);
    // Signals that were not stored are not counted.
    let stored = || async { (emit(&tool, &tokens(1)).await["blocked"] == false).then_some(()) };
    until("a signal that is stored", stored).await;
}

#[tokio::test]
async fn a_file_of_rules_with_errors_stops_the_start() {
    let home = home(&json!({"version": 1, "rules": [{"id": "a"}], "budgets": [{"id": "b"}]}));
    let ended = home.command().output().unwrap();
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success());
    for part in ["rules.json", "rules[0]", "budgets[0]", "signals.rules"] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

#[test]
fn the_example_is_valid() {
    let home = Home::new(&[]);
    let mut command = home.command();
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command.args(["check", "--config", "config/examples/signals.toml"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("no errors"),
        "{said}"
    );
}
