//! Signals of the real `claude` in an execution of the bridge, against the fake model.

use std::fs;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::claude::{home, task};
use super::harness::process::{Home, Process};

/// Tokens of one call of the fake model.
pub(crate) const CALL_TOKENS: u64 = 35 + 12;
const TOUCH: &str = "CALL Bash {\"command\":\"echo ran > $HOME/ran\",\"description\":\"d\"}";

/// Home whose runs report their hooks, with these rules.
fn with_rules(model: &Model, rules: &Value) -> Home {
    let home = home(model);
    let dir = home.dir.path();
    let file = json!({"version": 1, "rules": rules});
    fs::write(dir.join("rules.json"), file.to_string()).unwrap();
    let settings = "[signals]\nrules = \"rules.json\"\nuser = \"ana\"\n[adapters.claude-agent-sdk]\nsignals = true\n";
    fs::write(dir.join("forge-bridge.toml"), settings).unwrap();
    home
}

async fn run(bridge: &Process, name: &str, message: &str) -> Value {
    bridge.api.run(task(name, message)).await
}

/// Requests with the message of a task; the program asks for titles and the like besides.
pub(crate) fn asked(model: &Model, message: &str) -> usize {
    let requests = model.requests();
    let own = requests.iter().filter(|request| {
        let body = request.body.to_string();
        body.contains(message) && body.contains("\"tools\":[{")
    });
    own.count()
}

#[tokio::test]
async fn a_tool_that_a_rule_blocks_does_not_run_and_the_model_is_not_asked_again() {
    let model = Model::start().await;
    let home = with_rules(
        &model,
        &json!([{"id": "bash", "scope": "user", "window": "1h", "action": "block", "message": "No shell here.",
            "condition": {"hook": {"eq": "PreToolUse"}, "tool": {"eq": "Bash"}}}]),
    );
    let bridge = home.start();
    let blocked = run(&bridge, "t1", TOUCH).await;
    assert_eq!(blocked["errorCode"], "blocked_by_policy", "{blocked}");
    assert_eq!(blocked["error"], "No shell here.");
    assert!(!home.dir.path().join("ran").exists());
    assert_eq!(asked(&model, "echo ran"), 1);
    // The rule looks at the record, so it holds for no other.
    let free = run(&bridge, "t2", "hello").await;
    assert_eq!(free["status"], "ok", "{free}");
}

#[tokio::test]
async fn usage_of_a_run_that_reports_itself_is_counted_once() {
    let model = Model::start().await;
    let limit = |tokens: u64| {
        json!([{"id": "tokens", "scope": "user", "window": "1d", "action": "block",
            "condition": {"tokens": {"gte": tokens}}}])
    };
    // A tool round trip is two calls of the model.
    let home = with_rules(&model, &limit(2 * CALL_TOKENS + 1));
    let bridge = home.start();
    let free = run(&bridge, "t1", TOUCH).await;
    assert_eq!(free["status"], "ok", "{free}");
    let log = bridge.api.event_log().await;
    let started = log
        .iter()
        .filter(|event| event["type"] == "signal.session.started");
    assert_eq!(started.count(), 0);
    // The third call is over the limit: the hooks of its run are blocked from then on, and the next run does not begin.
    for (name, output) in [("t2", json!("pong: hello")), ("t3", Value::Null)] {
        let over = run(&bridge, name, "hello").await;
        assert_eq!(over["errorCode"], "blocked_by_policy", "{over}");
        assert_eq!(over["output"], output, "{over}");
    }
}

#[tokio::test]
async fn a_block_at_the_end_of_a_turn_ends_the_run() {
    let model = Model::start().await;
    let home = with_rules(
        &model,
        &json!([{"id": "stop", "scope": "user", "window": "1h", "action": "block", "message": "That is enough.",
            "condition": {"hook": {"eq": "Stop"}}}]),
    );
    let bridge = home.start();
    let blocked = run(&bridge, "t1", "hello there").await;
    assert_eq!(blocked["errorCode"], "blocked_by_policy", "{blocked}");
    assert_eq!(blocked["error"], "That is enough.");
    assert!(blocked["output"].is_string(), "{blocked}");
    assert_eq!(asked(&model, "hello there"), 1);
}
