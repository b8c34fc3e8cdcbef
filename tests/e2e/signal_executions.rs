//! Rules over signals for executions of the bridge: what they use is charged, and budgets hold them up.

use std::fs;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::signals::{Tool, agent_of};

fn home(rules: &Value) -> Home {
    let home = Home::new(&[]);
    fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
    let settings = "[signals]\nrules = \"rules.json\"\nuser = \"ana\"\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home
}

/// A rule that blocks a user above so many tokens a day.
fn tokens(limit: u64, cancels: bool) -> Value {
    json!({"version": 1, "rules": [{
        "id": "tokens", "scope": "user", "window": "1d", "action": "block", "condition": {"tokens": {"gte": limit}},
        "message": "Enough for today.", "cancelRunning": cancels,
    }]})
}

async fn dispatch(bridge: &Process, task: &str, more: Value) -> String {
    let mut body = json!({
        "taskId": task, "agentId": "a", "provider": "echo", "message": "one two three", "callbackUrl": null,
    });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    bridge.api.dispatch(body).await
}

/// Result of a finished dispatch.
async fn result(bridge: &Process, id: &str) -> Value {
    bridge.api.finished(id).await["result"].clone()
}

#[tokio::test]
async fn usage_of_executions_counts_with_signals_and_blocks_the_next() {
    let home = home(&tokens(100, false));
    let bridge = home.start();
    let first = dispatch(&bridge, "t1", json!({"model": "usage:2"})).await;
    let first = result(&bridge, &first).await;
    assert_eq!(
        (&first["status"], &first["userId"]),
        (&json!("ok"), &Value::Null)
    );
    let used = first["usage"]["totalTokens"].as_u64().unwrap();
    assert!(used > 0 && used < 100, "{first}");
    // A tool of the same user uses the rest.
    let tool = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "a"})).await;
    let record = |tokens: u64| json!({"adapter": "a", "ts": 0, "model": "m", "tokens_in": tokens});
    let (_, short) = tool.emit(&record(99 - used)).await;
    assert_eq!(short["blocked"], false);
    let (_, reached) = tool.emit(&record(1)).await;
    assert_eq!(reached["blocked"], true, "{reached}");
    let second = dispatch(&bridge, "t2", json!({})).await;
    let second = result(&bridge, &second).await;
    assert_eq!(second["errorCode"], "blocked_by_policy", "{second}");
    assert_eq!(second["error"], "Enough for today.");
    assert_eq!(second["output"], Value::Null);
    // Another user, and the same one after a kill.
    let other = dispatch(&bridge, "t3", json!({"userId": "ben", "projectId": "web"})).await;
    let other = result(&bridge, &other).await;
    assert_eq!(other["status"], "ok");
    assert_eq!(
        (&other["userId"], &other["projectId"]),
        (&json!("ben"), &json!("web"))
    );
    bridge.kill();
    let bridge = home.start();
    let again = dispatch(&bridge, "t4", json!({})).await;
    assert_eq!(
        result(&bridge, &again).await["errorCode"],
        "blocked_by_policy"
    );
}

/// Of dispatches that may cost a dollar each, as many start as a budget has dollars.
#[tokio::test]
async fn permitted_costs_are_reserved_while_dispatches_run() {
    let home = home(&json!({"version": 1, "budgets": [
        {"id": "b", "scope": "user", "window": "1d", "limitUsd": 5},
    ]}));
    let bridge = home.start();
    let slow = |number: u32| {
        let more = json!({"model": "slow:1500", "budget": {"maxCostUsd": 1}});
        let bridge = &bridge;
        async move { dispatch(bridge, &format!("t{number}"), more).await }
    };
    let ids = join_all((0..20).map(slow)).await;
    let results = join_all(ids.iter().map(|id| result(&bridge, id))).await;
    let ran = results.iter().filter(|result| result["status"] == "ok");
    assert_eq!(ran.count(), 5);
    let blocked = results
        .iter()
        .filter(|result| result["errorCode"] == "blocked_by_policy");
    assert_eq!(blocked.count(), 15);
    // What they did not use is free again.
    let next = slow(20).await;
    assert_eq!(result(&bridge, &next).await["status"], "ok");
}

#[tokio::test]
async fn a_rule_with_cancel_running_stops_what_runs_and_keeps_its_output() {
    let home = home(&tokens(1000, true));
    let bridge = home.start();
    let running = dispatch(&bridge, "t1", json!({"model": "hang"})).await;
    let other = dispatch(
        &bridge,
        "t2",
        json!({"model": "slow:3000", "userId": "ben"}),
    )
    .await;
    bridge.api.running(&running).await;
    let tool = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "a"})).await;
    let record = json!({"adapter": "a", "ts": 0, "model": "m", "tokens_in": 1000});
    assert_eq!(tool.emit(&record).await.1["blocked"], true);
    let stopped = result(&bridge, &running).await;
    assert_eq!(stopped["errorCode"], "blocked_by_policy", "{stopped}");
    assert_eq!(stopped["error"], "Enough for today.");
    assert_eq!(result(&bridge, &other).await["status"], "ok");
}

/// Sends the signal of its prompt in the session of its execution, twice, and prints the answers.
const AGENT: &str = r#"
import base64, hashlib, hmac, json, os, sys, urllib.request
signal = json.loads(sys.stdin.read())
signal["session_id"] = os.environ["FORG_SESSION_ID"]
body = json.dumps(signal).encode()
key = base64.b64decode(os.environ["FORG_SESSION_KEY"])
signature = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
headers = {"Content-Type": "application/json", "X-Forg-Signature": signature}
for _ in range(2):
    request = urllib.request.Request(os.environ["FORG_AGENT_URL"] + "/emit", body, headers)
    print(urllib.request.urlopen(request).read().decode())
"#;

/// A program of an adapter sends signals in the session of its execution: they are judged, and their usage is not
/// counted beside that of the execution.
#[tokio::test]
async fn programs_send_signals_in_the_session_of_their_execution() {
    let mut home = home(&json!({"version": 1, "rules": [
        {"id": "tokens", "scope": "user", "window": "1d", "action": "block", "condition": {"tokens": {"gte": 500}}},
        {"id": "tool", "scope": "session", "window": "session", "action": "block", "message": "Not this tool.",
            "condition": {"tool": {"eq": "Bash"}, "hook": {"eq": "PreToolUse"}}},
    ]}));
    let dir = home.dir.path().to_owned();
    fs::write(dir.join("agent.py"), AGENT).unwrap();
    let settings = format!(
        "[signals]\nrules = \"rules.json\"\nuser = \"ana\"\n[adapters.command]\nprogram = \"python3\"\nargs = [\"{}\"]\n",
        dir.join("agent.py").display()
    );
    fs::write(dir.join("forge-bridge.toml"), settings).unwrap();
    home.set("BRIDGE_ADAPTERS", "command");
    home.set("PATH", &std::env::var("PATH").unwrap());
    let bridge = home.start();
    let send = async |task: &str, signal: Value| {
        let more = json!({"provider": "command", "message": signal.to_string()});
        let id = dispatch(&bridge, task, more).await;
        result(&bridge, &id).await
    };
    let usage = json!({"adapter": "agent", "ts": 0, "model": "m", "tokens_in": 1000});
    for task in ["t1", "t2"] {
        let free = send(task, usage.clone()).await;
        assert_eq!(free["status"], "ok", "{free}");
        let answers = free["output"].as_str().unwrap();
        assert_eq!(answers.matches("\"blocked\":false").count(), 2, "{free}");
    }
    let tool = json!({"adapter": "agent", "ts": 0, "hook": "PreToolUse", "tool": "Bash"});
    let blocked = send("t3", tool).await;
    assert_eq!(blocked["errorCode"], "blocked_by_policy", "{blocked}");
    assert_eq!(blocked["error"], "Not this tool.");
    let answers = blocked["output"].as_str().unwrap();
    assert_eq!(answers.matches("\"blocked\":true").count(), 2, "{blocked}");
    // Its session is over: its key signs nothing more, and the next execution is free.
    assert_eq!(send("t4", usage).await["status"], "ok");
    let log = bridge.api.event_log().await;
    let started = log
        .iter()
        .filter(|event| event["type"] == "signal.session.started");
    assert_eq!(started.count(), 0);
}
