//! Entries of external services as tools of an execution.

use super::*;
use crate::harness::api::{quiet, with};

fn run(task: &str, tools: &Value) -> Value {
    let extra = json!({"tools": tools, "message": "use them"});
    with(quiet(task, "tools"), &extra)
}

#[tokio::test]
async fn the_bridge_calls_the_entries_that_a_model_calls() {
    let sink = sink_with(json!({"id": 7})).await;
    let mut service = probe(&sink);
    service["entries"][0]["inputSchema"] =
        json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let setup = Setup::new(&[service], "auth = \"dev-headers\"").await;
    let tools = json!(["external:probe.run", "external:query:probe.look"]);
    let request = setup.bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request
        .json_body(&run("t", &tools))
        .header("x-forge-user-id", "ann")
        .header("x-forge-role", "admin");
    let (_, accepted) = answer(request).await;
    let id = accepted["dispatchId"].as_str().unwrap();
    let record = setup.bridge.api.finished(id).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    let output = record["result"]["output"].as_str().unwrap();
    assert_eq!(output.matches("\"id\":7").count(), 2, "{output}");
    let received = sink.until(2).await;
    let sent: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(sent["args"], json!({"q": "text"}));
    for one in &received {
        assert_eq!(one.headers["x-forge-user-id"], "ann");
    }
    let events = setup.bridge.api.events(id).await;
    let invoked = events
        .iter()
        .filter(|event| event["type"] == "tool.invoked");
    let names: Vec<_> = invoked.map(|event| event["data"]["name"].clone()).collect();
    assert_eq!(names, ["forge_command_probe_run", "forge_query_probe_look"]);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn what_fails_is_an_answer_to_the_model() {
    let sink = CallbackSink::start().await;
    sink.answer(
        Answer::status(200)
            .body(r#"{"ok":false,"error":{"code":"NO_FUNDS","message":"too poor"}}"#),
    );
    let mut service = probe(&sink);
    let entries = service["entries"].as_array_mut().unwrap();
    entries.push(json!({"name": "secret", "kind": "command", "policy": "system"}));
    let setup = Setup::new(&[service], "").await;
    for (tool, expected) in [
        ("external:probe.run", "NO_FUNDS: too poor"),
        ("external:probe.secret", "FORGE_POLICY_DENIED"),
    ] {
        let result = setup.bridge.api.run(run(tool, &json!([tool]))).await;
        let output = result["output"].as_str().unwrap_or_default();
        assert!(output.contains(expected), "{result}");
    }
    setup.bridge.stop().await;
}

#[tokio::test]
async fn an_unknown_entry_and_a_name_that_is_taken_are_refused() {
    let sink = sink_with(json!(1)).await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let own = json!({"name": "forge_command_probe_run", "inputSchema": {}});
    for (tools, field) in [
        (json!(["external:probe.gone"]), "tools[0]"),
        (
            json!(["external:probe.run", "external:probe.run"]),
            "tools[1]",
        ),
        (json!([own, "external:probe.run"]), "tools[1]"),
    ] {
        let body = run("t", &tools);
        let failure = setup
            .bridge
            .api
            .refused(&body, 400, "INVALID_REQUEST")
            .await;
        assert_eq!(failure["details"][0]["field"], field, "{failure}");
    }
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_command_that_would_be_held_is_handed_back() {
    let sink = sink_with(json!(1)).await;
    let mut service = probe(&sink);
    service["entries"][0]["needsApproval"] = json!(true);
    let setup = Setup::new(&[service], "enforce = [\"approval\"]").await;
    let result = setup
        .bridge
        .api
        .run(run("t", &json!(["external:probe.run"])))
        .await;
    assert_eq!(result["errorCode"], "input_required", "{result}");
    assert_eq!(result["toolCalls"][0]["name"], "forge_command_probe_run");
    assert!(sink.received().is_empty());
    setup.bridge.stop().await;
}
