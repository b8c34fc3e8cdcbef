//! The bridge with agents of the Agent Client Protocol: one library under two ids, for a real agent with the fake
//! model, and for a script that leaves processes behind.

use std::fs;
use std::time::Duration;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};

/// Minimal agent of the protocol; a turn starts a process in its own session, which outlives the agent unless killed.
const SCRIPT: &str = r#"
import json, subprocess, sys
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "session/prompt":
        asked = message["id"]
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        send({"method": "session/update", "params": {"sessionId": "s", "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "so far"}}}})
    elif method == "session/cancel":
        send({"id": asked, "result": {"stopReason": "cancelled"}})
    elif "id" in message:
        send({"id": message["id"], "result": {"protocolVersion": 1, "sessionId": "s"}})
"#;

fn home(model: &Model) -> Home {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "hermes,script,warm,warm-apart"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ]);
    let dir = home.dir.path();
    let agent_home = dir.join("hermes");
    fs::create_dir(&agent_home).unwrap();
    let settings = format!(
        "model: {{default: fake-1, provider: custom, base_url: '{}/v1', api_key: fake, context_length: 128000}}\n",
        model.url()
    );
    fs::write(agent_home.join("config.yaml"), settings).unwrap();
    fs::write(dir.join("script.py"), SCRIPT).unwrap();
    let file = format!(
        "[adapters.hermes]\nlibrary = \"acp\"\nprogram = {:?}\nargs = [\"acp\"]\nenv = {{ HERMES_HOME = {agent_home:?} }}\n\
         [adapters.script]\nlibrary = \"acp\"\nprogram = \"python3\"\nargs = [{script:?}]\n\
         [adapters.warm]\nlibrary = \"acp\"\nprogram = \"python3\"\nargs = [{script:?}]\nwarm = 1\n\
         [adapters.warm-apart]\nlibrary = \"acp\"\nisolation = \"process\"\nprogram = \"python3\"\n\
         args = [{script:?}]\nwarm = 1\n",
        forge_test_runtimes::hermes(),
        script = dir.join("script.py"),
    );
    fs::write(dir.join("forge-bridge.toml"), file).unwrap();
    home
}

fn task(name: &str, provider: &str, message: &str) -> Value {
    json!({
        "taskId": name, "agentId": "agent", "provider": provider, "message": message, "callbackUrl": null,
    })
}

#[tokio::test]
async fn two_dispatches_make_one_session_and_each_is_told_with_its_own_usage() {
    let model = Model::start().await;
    let sink = CallbackSink::start().await;
    let home = home(&model);
    let bridge = home.start();
    let mut body = task("first", "hermes", "my word is plum");
    body["callbackUrl"] = sink.url("/cb").into();
    bridge.api.dispatch(body).await;
    let callback = sink.until(1).await.remove(0);
    let first: Value = serde_json::from_slice(&callback.body).unwrap();
    assert_eq!(first["status"], "ok", "{first}");
    assert_eq!(first["output"], "pong: my word is plum");

    let mut body = task("second", "hermes", "what is it");
    body["sessionId"] = first["sessionId"].clone();
    let id = bridge.api.dispatch(body).await;
    let second = bridge.api.finished(&id).await["result"].clone();

    assert_eq!(second["status"], "ok", "{second}");
    assert_eq!(second["sessionId"], first["sessionId"]);
    for result in [&first, &second] {
        assert_eq!(result["usage"]["totalTokens"], 40, "{result}");
    }
    let asked = model.requests();
    let of_session = |asked: &&forge_test_model::Received| asked.body["tools"].is_array();
    let last = asked.iter().rfind(of_session).unwrap().body["messages"].to_string();
    assert!(
        last.contains("my word is plum") && last.contains("what is it"),
        "{last}"
    );
    let events = bridge.api.events(&id).await;
    let said: String = events
        .iter()
        .filter(|event| event["type"] == "assistant.text")
        .map(|event| event["data"]["delta"].as_str().unwrap())
        .collect();
    assert_eq!(said, "pong: what is it", "history is not emitted");
}

#[tokio::test]
async fn a_tool_of_the_caller_is_handed_over_and_its_result_goes_on() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let mut asking = task("a", "hermes", "CALL mcp_forge_crm_find {\"who\":\"bob\"}");
    asking["tools"] = json!([{"name": "crm.find", "inputSchema": {"type": "object"}}]);

    let asked = bridge.api.run(asking.clone()).await;

    assert_eq!(asked["errorCode"], "input_required", "{asked}");
    let call = &asked["toolCalls"][0];
    assert_eq!(
        (&call["name"], &call["input"]["who"]),
        (&json!("crm.find"), &json!("bob"))
    );
    let mut answering = task("b", "hermes", "and now?");
    answering["tools"] = asking["tools"].clone();
    answering["sessionId"] = asked["sessionId"].clone();
    answering["toolResults"] =
        json!([{"toolCallId": call["toolCallId"], "name": "crm.find", "output": "id 7"}]);
    let answered = bridge.api.run(answering).await;
    assert_eq!(answered["status"], "ok", "{answered}");
    let asked = model.requests();
    let of_session = |asked: &&forge_test_model::Received| asked.body["tools"].is_array();
    let last = asked.iter().rfind(of_session).unwrap().body["messages"].to_string();
    assert!(last.contains("id 7") && last.contains("and now?"), "{last}");
}

#[tokio::test]
async fn a_bridge_that_is_killed_leaves_no_agent() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    for (name, provider) in [("a", "hermes"), ("b", "script")] {
        let id = bridge
            .api
            .dispatch(task(name, provider, "SLOW please"))
            .await;
        text_of(&bridge, &id).await;
    }
    assert!(
        programs_in(&home).len() >= 4,
        "two agents, each with a supervisor"
    );
    bridge.kill();
    no_program_in(&home).await;
}

#[tokio::test]
async fn thirty_cancelled_runs_leave_no_process() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    for n in 0..30 {
        let id = bridge
            .api
            .dispatch(task(&n.to_string(), "script", "hello"))
            .await;
        text_of(&bridge, &id).await;
        let path = format!("/api/v2/dispatch/{id}/cancel");
        let (_, answer) = bridge.api.post(&path, &json!({})).await;
        assert_eq!(answer["cancelled"], true);
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
        assert_eq!(record["result"]["output"], "so far", "{record}");
    }
    no_program_in(&home).await;
}

#[tokio::test]
async fn a_warm_agent_is_the_only_one_left_and_ends_with_a_reload_and_with_the_bridge() {
    let model = Model::start().await;
    let home = home(&model);
    let mut bridge = home.start();
    for provider in ["warm", "warm-apart"] {
        for n in 0..5 {
            cancelled(&bridge, &format!("{provider}-{n}"), provider).await;
        }
        let warm = warm(&bridge, provider).await;
        assert!(warm["memoryBytes"].as_u64().unwrap() > 1 << 20, "{warm}");
        assert!(warm["startMs"].is_u64() && warm["startedAt"].is_string());
        only_a_warm_one(&home).await;
        let path = format!("/api/v2/adapters/{provider}/reload");
        let (status, answer) = bridge.api.post(&path, &Value::Null).await;
        assert!(status.is_success(), "{answer}");
        no_program_in(&home).await;

        cancelled(&bridge, &format!("{provider}-again"), provider).await;
        only_a_warm_one(&home).await;
        bridge.kill();
        no_program_in(&home).await;
        bridge = home.start();

        cancelled(&bridge, &format!("{provider}-last"), provider).await;
        only_a_warm_one(&home).await;
        bridge.terminate();
        bridge.ended().await;
        no_program_in(&home).await;
        let folders = fs::read_dir(home.dir.path().join("tmp")).unwrap();
        assert_eq!(folders.count(), 0);
        bridge = home.start();
    }
}

/// Runs a dispatch and cancels it.
async fn cancelled(bridge: &Process, name: &str, provider: &str) {
    let id = bridge.api.dispatch(task(name, provider, "hello")).await;
    text_of(bridge, &id).await;
    assert!(bridge.api.cancel(&id).await);
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["output"], "so far", "{record}");
}

/// Waits for the warm process of an adapter in its health.
async fn warm(bridge: &Process, provider: &str) -> Value {
    let path = format!("/api/v2/adapters/{provider}");
    until("a warm process", || async {
        let (_, health) = bridge.api.get("/api/health").await;
        let line = health["adapters"][provider]["details"]["warm"][0].clone();
        let (_, adapter) = bridge.api.get(&path).await;
        let same = adapter["health"]["details"]["warm"][0] == line;
        (line.is_object() && same).then_some(line)
    })
    .await
}

/// Waits until an agent and its supervisor are the only programs.
async fn only_a_warm_one(home: &Home) {
    until("the agent and its supervisor", || async {
        (programs_in(home).len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn time_is_up_for_a_slow_model() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let mut body = task("t", "script", "hello");
    body["timeoutSeconds"] = 2.into();
    let result = bridge.api.run(body).await;
    assert_eq!(result["errorCode"], "timeout", "{result}");
    assert_eq!(result["output"], "so far", "{result}");
    no_program_in(&home).await;
}

async fn text_of(bridge: &Process, id: &str) {
    until("a text", || async {
        let events = bridge.api.events(id).await;
        let mut kinds = events.iter().map(|event| &event["type"]);
        kinds.any(|kind| kind == "assistant.text").then_some(())
    })
    .await;
}

/// Processes started for executions in this home, supervisors included.
fn programs_in(home: &Home) -> Vec<String> {
    let mark = format!("HOME={}", home.dir.path().display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            fs::read(entry.path().join("environ")).is_ok_and(|environ| {
                let variables: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
                variables.contains(&mark.as_bytes())
                    && variables
                        .iter()
                        .any(|variable| variable.starts_with(b"FORGE_EXECUTION="))
            })
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

async fn no_program_in(home: &Home) {
    let gone = until("the programs to be gone", || async {
        programs_in(home).is_empty().then_some(())
    });
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .unwrap();
}
