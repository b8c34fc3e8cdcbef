//! The bridge with a real agent program, `claude`, and the fake model.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::external::register;
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink, until};

/// Cost of one call of the fake model by the program's price list, in US dollars, and its tokens.
const CALL_COST: f64 = 0.000_268_35;
const CALL_INPUT: u64 = 35;
const CALL_OUTPUT: u64 = 12;

pub(super) fn home(model: &Model) -> Home {
    let program = forge_test_runtimes::claude();
    Home::new(&[
        ("BRIDGE_ADAPTERS", "claude-agent-sdk"),
        ("PATH", &std::env::var("PATH").unwrap()),
        ("CLAUDE_AGENT_SDK_PROGRAM", program.to_str().unwrap()),
        ("ANTHROPIC_BASE_URL", model.url()),
        ("ANTHROPIC_API_KEY", "fake"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
        (
            "BRIDGE_ADAPTERS_CLAUDE_AGENT_SDK_ALLOWED_TOOLS",
            "Bash(echo:*)",
        ),
    ])
}

pub(super) fn task(name: &str, message: &str) -> Value {
    json!({
        "taskId": name, "agentId": "agent", "message": message, "model": "claude-sonnet-4-5", "callbackUrl": null,
    })
}

fn with(mut body: Value, extra: &Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_tool_round_trip_ends_in_a_signed_callback_with_usage_and_cost() {
    let model = Model::start().await;
    let sink = CallbackSink::start().await;
    let home = home(&model);
    let bridge = home.start();
    let body = task(
        "t",
        "CALL Bash {\"command\":\"echo forge-$((40+2))\",\"description\":\"d\"}",
    );
    let id = bridge
        .api
        .dispatch(with(body, &json!({"callbackUrl": sink.url("/cb")})))
        .await;

    let callback = sink.until(1).await.remove(0);

    let result: Value = serde_json::from_slice(&callback.body).unwrap();
    assert_eq!(result["status"], "ok", "{result}");
    assert!(
        result["output"]
            .as_str()
            .unwrap()
            .starts_with("tool said: forge-42"),
        "{result}"
    );
    assert_eq!(result["usage"]["inputTokens"], 2 * CALL_INPUT);
    assert_eq!(result["usage"]["outputTokens"], 2 * CALL_OUTPUT);
    assert!(
        (result["costUsd"].as_f64().unwrap() - 2.0 * CALL_COST).abs() < 1e-9,
        "{result}"
    );
    assert_eq!(result["model"], "claude-sonnet-4-5");
    assert!(callback.headers.contains_key("webhook-signature"));

    let events = bridge.api.events(&id).await;
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    let at = |kind: &str| {
        kinds
            .iter()
            .position(|found| *found == kind)
            .unwrap_or_else(|| panic!("no {kind} in {kinds:?}"))
    };
    assert!(at("execution.started") < at("session.updated"));
    assert!(at("session.updated") < at("tool.invoked"));
    assert!(at("tool.invoked") < at("tool.completed"));
    assert!(at("tool.completed") < at("assistant.text"));
    assert!(at("assistant.text") < at("execution.completed"));
}

#[tokio::test]
async fn the_demo_shows_a_tool_and_the_signed_callback() {
    let model = Model::start().await;
    let home = home(&model);
    let demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .envs(&home.variables)
        .env_remove("ANTHROPIC_BASE_URL")
        .args([
            "demo",
            "--json",
            "--adapter",
            "claude-agent-sdk",
            "--model",
            "claude-sonnet-4-5",
        ])
        .args(["--model-url", model.url()])
        .args([
            "--message",
            "CALL Bash {\"command\":\"echo demo-$((40+2))\",\"description\":\"d\"}",
        ])
        .output()
        .await
        .unwrap();
    assert!(
        demo.status.success(),
        "{}",
        String::from_utf8_lossy(&demo.stderr)
    );
    let shown: Value = serde_json::from_slice(&demo.stdout).unwrap();
    let events = shown["events"].as_array().unwrap();
    let tool = events
        .iter()
        .find(|event| event["type"] == "tool.completed")
        .unwrap();
    assert_eq!(tool["data"]["output"], "demo-42");
    let callback = &shown["callback"];
    assert_eq!(callback["verified"], true);
    assert_eq!(callback["body"]["usage"]["outputTokens"], 2 * CALL_OUTPUT);
    assert!((callback["body"]["costUsd"].as_f64().unwrap() - 2.0 * CALL_COST).abs() < 1e-9);
}

#[tokio::test]
async fn time_is_up_for_a_slow_and_for_a_silent_model() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let cases = [
        (json!({"timeoutSeconds": 3}), "SLOW please", "timeout"),
        (json!({"idleTimeoutSeconds": 3}), "HANG", "stalled"),
    ];
    for (limit, message, code) in cases {
        let result = bridge.api.run(with(task(code, message), &limit)).await;
        assert_eq!(result["errorCode"], code, "{result}");
        no_program_in(&home).await;
    }
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_text_and_leaves_no_program() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let id = bridge.api.dispatch(task("t", "SLOW please")).await;
    text_of(&bridge, &id).await;
    let (_, answer) = bridge
        .api
        .post(&format!("/api/v2/dispatch/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(answer["cancelled"], true);
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    assert!(
        record["result"]["output"]
            .as_str()
            .unwrap()
            .starts_with("tick000"),
        "{record}"
    );
    no_program_in(&home).await;
}

#[tokio::test]
async fn killed_in_the_middle_it_leaves_no_program_and_goes_on_with_the_session() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let body = with(
        task("t", "SLOW plums"),
        &json!({"recovery": "resume", "timeoutSeconds": 60}),
    );
    let id = bridge.api.dispatch(body).await;
    text_of(&bridge, &id).await;
    assert!(!programs_in(&home).is_empty());
    let (_, health) = bridge.api.get("/api/health?verbose").await;
    assert!(
        health["children"]["living"].as_u64().unwrap() >= 1,
        "{health}"
    );
    until("the program to have saved its session", || async {
        saved(&home.dir.path().join(".claude/projects"), "SLOW plums").then_some(())
    })
    .await;
    bridge.kill();
    no_program_in(&home).await;

    let bridge = home.start();
    let record = bridge.api.finished(&id).await;

    assert_eq!(record["result"]["status"], "ok", "{record}");
    assert_eq!(record["result"]["attempt"], 2);
    let (_, withdrawn) = bridge.api.kept_text(&id).await;
    assert_eq!(withdrawn, [0; 0], "the session goes on");
    let asked = model.requests();
    let last = asked.last().unwrap().body["messages"].to_string();
    assert!(last.contains("Go on where you stopped"), "{last}");
    assert!(
        last.matches("SLOW plums").count() >= 2,
        "the first attempt's prompt is history: {last}"
    );
}

#[tokio::test]
async fn a_call_of_the_callers_tool_is_answered_by_the_next_dispatch() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let tools = json!({"tools": [{"name": "crm.find", "inputSchema": {"type": "object"}}]});
    let asking = with(
        task("a", "CALL mcp__forge__crm_find {\"who\":\"bob\"}"),
        &tools,
    );

    let asked = bridge.api.run(asking).await;

    assert_eq!(asked["errorCode"], "input_required", "{asked}");
    let call = &asked["toolCalls"][0];
    assert_eq!(
        (&call["name"], &call["input"]["who"]),
        (&json!("crm.find"), &json!("bob"))
    );

    let answer = json!({
        "sessionId": asked["sessionId"],
        "toolResults": [{"toolCallId": call["toolCallId"], "name": "crm.find", "output": "id 7"}],
    });
    let answered = bridge
        .api
        .run(with(with(task("b", "and now?"), &tools), &answer))
        .await;
    assert_eq!(answered["status"], "ok", "{answered}");
    let last = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(last.contains("id 7") && last.contains("and now?"), "{last}");
}

#[tokio::test]
async fn two_dispatches_on_one_session_run_one_after_another() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let first = bridge.api.run(task("first", "my word is plum")).await;
    let session = json!({"sessionId": first["sessionId"]});
    let a = bridge
        .api
        .dispatch(with(task("a", "apple"), &session))
        .await;
    let b = bridge
        .api
        .dispatch(with(task("b", "berry"), &session))
        .await;
    for id in [&a, &b] {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
        assert_eq!(record["result"]["sessionId"], first["sessionId"]);
    }
    let last = model.requests().pop().unwrap().body["messages"].to_string();
    for word in ["plum", "apple", "berry"] {
        assert!(last.contains(word), "no {word} in {last}");
    }
}

#[tokio::test]
async fn the_tree_of_a_run_whose_supervisor_is_killed_is_swept() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let id = bridge.api.dispatch(task("t", "SLOW please")).await;
    text_of(&bridge, &id).await;
    let supervisor = programs_in(&home)
        .into_iter()
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("\0exec\0"))
        })
        .expect("the program runs under a supervisor");
    assert!(
        std::process::Command::new("kill")
            .args(["-KILL", &supervisor])
            .status()
            .unwrap()
            .success()
    );
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "adapter_crashed", "{record}");
    no_program_in(&home).await;
}

#[tokio::test]
async fn without_the_program_the_adapter_is_degraded_and_says_what_to_do() {
    let model = Model::start().await;
    let mut home = home(&model);
    home.variables.insert(
        "CLAUDE_AGENT_SDK_PROGRAM".to_owned(),
        "/nowhere/claude".to_owned(),
    );
    let bridge = home.start();
    let (_, health) = bridge.api.get("/api/health").await;
    let adapter = &health["adapters"]["claude-agent-sdk"];
    assert_eq!(adapter["status"], "degraded", "{health}");
    assert!(
        adapter["message"].as_str().unwrap().contains("npm install"),
        "{health}"
    );
    let result = bridge.api.run(task("t", "hello")).await;
    assert_eq!(result["errorCode"], "adapter_unavailable", "{result}");
}

async fn text_of(bridge: &Process, id: &str) {
    until("a text", || async {
        let events = bridge.api.events(id).await;
        events
            .iter()
            .any(|event| event["type"] == "assistant.text")
            .then_some(())
    })
    .await;
}

/// Returns true if a file below this folder contains `text`.
fn saved(folder: &Path, text: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| match path.is_dir() {
            true => saved(&path, text),
            false => fs::read_to_string(&path).is_ok_and(|file| file.contains(text)),
        })
}

/// Processes started for this home, supervisors included.
fn programs_in(home: &Home) -> Vec<String> {
    let mark = format!("HOME={}", home.dir.path().display());
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| {
            fs::read(entry.path().join("environ")).is_ok_and(|environ| {
                let mut variables = environ.split(|byte| *byte == 0);
                variables
                    .clone()
                    .any(|variable| variable == mark.as_bytes())
                    && variables.any(|variable| variable.starts_with(b"FORGE_EXECUTION="))
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

#[tokio::test]
async fn the_agent_calls_an_entry_of_an_external_service() {
    let model = Model::start().await;
    let mut home = home(&model);
    let service = CallbackSink::start().await;
    service.answer(Answer::status(200).body(r#"{"result":{"invoice":"inv-7"}}"#));
    let manifest = json!({
        "forgeProtocol": "1.0", "language": "rust",
        "service": {"name": "billing", "transport": "http", "baseUrl": service.url("/")},
        "entries": [{"name": "createInvoice", "kind": "command", "path": "/create"}],
    });
    register(home.dir.path(), &[manifest]);
    let file = home.dir.path().join("forge-bridge.toml");
    fs::write(&file, format!("[external]\nroot = {:?}\n", home.dir.path())).unwrap();
    home.set("BRIDGE_CONFIG", file.to_str().unwrap());
    let bridge = home.start();
    let message = "CALL mcp__forge__forge_command_billing_createInvoice {\"title\":\"Invoice\"}";
    let tools = json!({"tools": ["external:billing.createInvoice"]});

    let result = bridge.api.run(with(task("a", message), &tools)).await;

    assert_eq!(result["status"], "ok", "{result}");
    let called = service.received();
    assert_eq!(called.len(), 1);
    let sent: Value = serde_json::from_slice(&called[0].body).unwrap();
    assert_eq!(sent["args"], json!({"title": "Invoice"}));
    let last = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(last.contains("inv-7"), "{last}");
}
