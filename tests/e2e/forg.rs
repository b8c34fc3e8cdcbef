//! `forg rules`: rules and budgets over recorded signals, without a bridge.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A budget with both of its rules, and a rule of a team.
const RULES: &str = r#"{
  "version": 1,
  "budgets": [{"id": "daily", "scope": "user", "window": "1d", "limitUsd": 1}],
  "rules": [{"id": "opus", "scope": "team", "window": "1h", "action": "block", "message": "Use a smaller model.",
             "condition": {"model": {"in": ["opus"]}, "signals": {"gt": 1}}}]
}"#;

fn record(minute: u32, user: &str, model: &str, cost: f64) -> String {
    let ts = format!("2026-11-25T10:{minute:02}:00.000Z");
    let record =
        json!({"adapter": "test", "ts": ts, "user_id": user, "model": model, "cost_usd": cost});
    format!("{record}\n")
}

fn forg(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forg"));
    command
        .env_clear()
        .env("HOME", folder)
        .current_dir(folder)
        .args(arguments);
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = piped.spawn().unwrap();
    running
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    running.wait_with_output().unwrap()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.json"), RULES).unwrap();
    folder
}

#[test]
fn rules_judge_recorded_signals() {
    let folder = folder();
    let records = [
        record(0, "u1", "haiku", 0.5),
        record(1, "u1", "haiku", 0.3),
        record(2, "u1", "haiku", 0.1),
        record(3, "u2", "haiku", 0.9),
        record(4, "u1", "haiku", 0.1),
        record(5, "u2", "opus", 0.0),
    ]
    .concat();
    fs::write(folder.path().join("records.jsonl"), &records).unwrap();
    let arguments = [
        "rules",
        "test",
        "rules.json",
        "records.jsonl",
        "--team",
        "red=u1,u2",
    ];
    let output = forg(folder.path(), &arguments, "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    assert_eq!(
        lines,
        [
            "2  2026-11-25T10:01:00.000Z  notify  daily: Cost budget 80% consumed — consider wrapping up this session.",
            "4  2026-11-25T10:03:00.000Z  notify  daily: Cost budget 80% consumed — consider wrapping up this session.",
            "5  2026-11-25T10:04:00.000Z  block   daily: Cost budget \"daily\" is used up.",
            "6  2026-11-25T10:05:00.000Z  block   opus: Use a smaller model.",
            "6 records: 2 blocked, 2 notifications",
        ]
    );

    // The same from standard input, as JSON; without the team its rule matches no record.
    let output = forg(
        folder.path(),
        &["rules", "test", "rules.json", "-", "--json"],
        &records,
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["records"], &report["blocked"]),
        (&json!(6), &json!(1)),
        "{report}"
    );
    let last = report["judged"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["line"], &last["action"]),
        (&json!(6), &json!("notify"))
    );
    assert_eq!(last["begun"], json!([]));
}

#[test]
fn faults_of_rules_and_records_are_told_with_their_place() {
    let folder = folder();
    let wrong = RULES
        .replace("\"1d\"", "\"2d\"")
        .replace("\"team\"", "\"all\"");
    fs::write(folder.path().join("wrong.json"), wrong).unwrap();
    let output = forg(folder.path(), &["rules", "test", "wrong.json", "-"], "");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    for place in [
        "wrong.json: budgets[0].window: ",
        "wrong.json: rules[0].scope: ",
    ] {
        assert!(text.contains(place), "{text}");
    }

    let records = format!(
        "{}{}",
        record(0, "u1", "haiku", 0.1),
        r#"{"adapter": "a", "prompt": "secret"}"#
    );
    let output = forg(
        folder.path(),
        &["rules", "test", "rules.json", "-", "--json"],
        &records,
    );
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["file"], "-:2");
    let fields = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["field"]);
    assert_eq!(
        Vec::from_iter(fields),
        ["prompt", "ts", "model", "tokens_in"]
    );
    assert!(!report.to_string().contains("secret"), "{report}");
}

#[test]
fn the_schema_of_rules_is_printed() {
    let folder = folder();
    let output = forg(folder.path(), &["rules", "schema"], "");
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["title"], "Rules over signals");
}
