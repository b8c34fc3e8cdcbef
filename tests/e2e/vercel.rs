//! The bridge with models of several providers: by their own protocols, and by the real `ai` package in one process
//! per execution.

use std::fs;
use std::time::Duration;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};

/// A home with both modes in one bridge: the library is configured under two ids.
fn home(model: &Model) -> Home {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "vercel-ai,package"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ]);
    let url = model.url();
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/mcp-server/server.py"
    );
    let pids = home.dir.path().join("pids");
    let mut file = format!(
        "[mcp.servers.fixture]\ncommand = \"python3\"\nargs = [{script:?}, \"--pids={}\", \"--normal\"]\n",
        pids.display()
    );
    for (id, mode) in [("vercel-ai", "direct"), ("package", "sidecar")] {
        file.push_str(&format!(
            "[adapters.{id}]\nlibrary = \"vercel-ai\"\nmode = {mode:?}\nmodel = \"anthropic/claude-sonnet-4-5\"\n\
             prices = {{ \"anthropic/claude-sonnet-4-5\" = {{ input = 1.0, output = 10.0 }} }}\n\
             [adapters.{id}.providers]\n\
             anthropic = {{ base_url = \"{url}/v1\", api_key = \"k\" }}\n\
             openai = {{ base_url = \"{url}/v1\", api_key = \"k\" }}\n\
             google = {{ base_url = \"{url}/v1beta\", api_key = \"k\" }}\n\
             [adapters.{id}.sidecar]\nnode = {:?}\npackages = {:?}\n",
            forge_test_runtimes::node(),
            forge_test_runtimes::ai(),
        ));
    }
    fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    home
}

fn task(name: &str, provider: &str, message: &str) -> Value {
    json!({
        "taskId": name, "agentId": "agent", "provider": provider, "message": message, "callbackUrl": null,
    })
}

#[tokio::test]
async fn a_task_goes_to_its_provider_and_comes_back_signed_in_both_modes() {
    let model = Model::start().await;
    let sink = CallbackSink::start().await;
    let home = home(&model);
    let bridge = home.start();
    for (at, provider) in ["vercel-ai", "package"].into_iter().enumerate() {
        let mut body = task(provider, provider, "hello there");
        body["callbackUrl"] = sink.url("/cb").into();
        let id = bridge.api.dispatch(body).await;
        let callback = sink.until(at + 1).await.remove(at);
        let result: Value = serde_json::from_slice(&callback.body).unwrap();
        assert_eq!(
            (&result["status"], &result["output"]),
            (&json!("ok"), &json!("pong: hello there")),
            "{result}"
        );
        assert_eq!(result["usage"]["inputTokens"], 35);
        assert!(result["costUsd"].as_f64().is_some_and(|cost| cost > 0.0));
        let events = bridge.api.events(&id).await;
        assert!(events.iter().any(|event| event["type"] == "assistant.text"));

        let mut next = task(&format!("{provider}-tool"), provider, "CALL find {\"n\":1}");
        next["model"] = "google/gemini-2.5-flash".into();
        next["sessionId"] = result["sessionId"].clone();
        next["tools"] = json!([{"name": "find", "inputSchema": {"type": "object"}}]);
        let handed = bridge.api.run(next).await;
        assert_eq!(handed["errorCode"], "input_required", "{handed}");
        assert_eq!(handed["toolCalls"][0]["name"], "find");
        assert_eq!(handed["sessionId"], result["sessionId"]);

        let message = "CALL mcp__fixture__add {\"a\":2,\"b\":3}";
        let mut body = task(&format!("{provider}-mcp"), provider, message);
        body["mcpServers"] = json!(["fixture"]);
        let result = bridge.api.run(body).await;
        assert_eq!(result["output"], "tool said: 5", "{result}");
        assert_eq!(result["usage"]["inputTokens"], 70, "both rounds: {result}");

        let mut body = task(&format!("{provider}-schema"), provider, "give");
        body["model"] = "openai/gpt-4.1".into();
        body["outputSchema"] = json!({
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
            "additionalProperties": false,
        });
        let result = bridge.api.run(body).await;
        assert_eq!(result["structuredOutput"], json!({"n": 42}), "{result}");
    }
    no_program_in(&home).await;
}

#[tokio::test]
async fn fifty_cancelled_runs_of_the_package_leave_no_process() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let mut ids = Vec::new();
    for n in 0..50 {
        let body = task(&n.to_string(), "package", "SLOW please");
        ids.push(bridge.api.dispatch(body).await);
    }
    for id in ids {
        text_of(&bridge, &id).await;
        let path = format!("/api/v2/dispatch/{id}/cancel");
        let (_, answer) = bridge.api.post(&path, &json!({})).await;
        assert_eq!(answer["cancelled"], true);
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
        let output = record["result"]["output"].as_str().unwrap();
        assert!(output.starts_with("tick000"), "{record}");
    }
    no_program_in(&home).await;
}

#[tokio::test]
async fn a_bridge_that_is_killed_leaves_no_node() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let id = bridge
        .api
        .dispatch(task("a", "package", "SLOW please"))
        .await;
    text_of(&bridge, &id).await;
    assert!(programs_in(&home) >= 2, "Node and its supervisor");
    bridge.kill();
    no_program_in(&home).await;
}

#[tokio::test]
async fn time_is_up_for_a_slow_model() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    for provider in ["vercel-ai", "package"] {
        let mut body = task(provider, provider, "HANG");
        body["timeoutSeconds"] = 1.into();
        let result = bridge.api.run(body).await;
        assert_eq!(result["errorCode"], "timeout", "{result}");
    }
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

/// Number of processes started for executions in this home, supervisors included.
fn programs_in(home: &Home) -> usize {
    let mark = format!("HOME={}", home.dir.path().display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ours = entries.filter(|entry| {
        fs::read(entry.path().join("environ")).is_ok_and(|environ| {
            let variables: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
            variables.contains(&mark.as_bytes())
                && variables
                    .iter()
                    .any(|variable| variable.starts_with(b"FORGE_EXECUTION="))
        })
    });
    ours.count()
}

async fn no_program_in(home: &Home) {
    let gone = until("the programs to be gone", || async {
        (programs_in(home) == 0).then_some(())
    });
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .unwrap();
}
