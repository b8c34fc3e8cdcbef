//! The bridge with a server of Chat Completions: the fake model.

use std::path::Path;
use std::time::Duration;

use forge_test_model::{Answer, Model};
use reqwest::Method;
use serde_json::{Value, json};

use super::harness::api::with;
use super::harness::{Bridge, CallbackSink, until};

/// Starts a bridge with one adapter for this model, and the MCP server `fixture`.
async fn bridge(model: &Model) -> Bridge {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/mcp-server/server.py");
    let file = format!(
        "[adapters.openai-compatible]\nbase_url = \"{}/v1\"\napi_key = \"k-1\"\nmodel = \"fake-1\"\n\
         [adapters.openai-compatible.prices.fake-1]\ninput = 1.0\noutput = 10.0\n\
         [mcp.servers.fixture]\ncommand = \"python3\"\nargs = [{:?}, \"--normal\"]\n",
        model.url(),
        script.display().to_string(),
    );
    let supervisor = env!("CARGO_BIN_EXE_forge-bridge");
    let variables = [
        ("BRIDGE_ADAPTERS", "openai-compatible"),
        ("BRIDGE_PROCESS_SUPERVISOR", supervisor),
    ];
    Bridge::configured(&file, &variables).await
}

fn task(name: &str, message: &str) -> Value {
    json!({"taskId": name, "agentId": "agent", "message": message, "callbackUrl": null})
}

#[tokio::test]
async fn models_that_were_left_stand_in_the_routing_and_in_the_usage() {
    let (model, sink) = (Model::start().await, CallbackSink::start().await);
    let file = format!(
        "[adapters.openai-compatible]\nbase_url = \"{}/v1\"\nmodel = \"fake-1\"\nmodel_retries = 0\n\
         fallback = [\"fake-2\", \"fake-3\"]\n",
        model.url(),
    );
    let bridge = Bridge::configured(&file, &[("BRIDGE_ADAPTERS", "openai-compatible")]).await;
    // The first one counts tokens before it refuses, the second one refuses at once.
    let counted = json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}});
    let refusal = json!({"error": {"message": "no room", "code": 503}});
    let busy = Answer::json(429, &json!({"error": {"message": "too fast"}}));
    model.script([Answer::events(&[counted, refusal]), busy]);
    let body = with(task("f", "hello"), &json!({"callbackUrl": sink.url("/cb")}));
    let id = bridge.api.dispatch(body).await;
    let record = bridge.api.finished(&id).await;
    let result = &record["result"];
    assert_eq!(
        (&result["output"], &result["model"]),
        (&json!("pong: hello"), &json!("fake-3"))
    );
    assert_eq!(result["usage"]["inputTokens"], 38, "{result}");
    let models = result["usage"]["byModel"].as_array().unwrap();
    let shares: Vec<_> = models
        .iter()
        .map(|one| json!([one["model"], one["inputTokens"], one["reason"]]))
        .collect();
    let expected = [
        json!(["fake-1", 7, "overloaded"]),
        json!(["fake-2", null, "rate_limited"]),
        json!(["fake-3", 31, null]),
    ];
    assert_eq!(shares, expected, "{result}");
    let step = record["routing"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&step["name"], &step["kept"]),
        (&json!("models"), &json!(["fake-3"])),
        "{step}"
    );
    assert_eq!(step["dropped"][0]["model"], "fake-1", "{step}");
    let reason = step["dropped"][1]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("rate_limited: ") && reason.contains("too fast"),
        "{step}"
    );
    let delivered: Value = serde_json::from_slice(&sink.until(1).await[0].body).unwrap();
    assert_eq!(delivered["usage"], result["usage"]);
    bridge.api.delivery_is(&id, "delivered").await;

    let plain = bridge.api.run(task("p", "hello")).await;
    assert_eq!(plain["usage"].get("byModel"), None, "{plain}");
    bridge.stop().await;
}

async fn begun(bridge: &Bridge, id: &str) {
    until("a text", || async {
        let events = bridge.api.events(id).await;
        let mut kinds = events.iter().map(|event| &event["type"]);
        kinds.any(|kind| kind == "assistant.text").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_tool_round_trip_of_the_bridge_ends_in_a_signed_callback_with_usage_and_cost() {
    let (model, sink) = (Model::start().await, CallbackSink::start().await);
    let bridge = bridge(&model).await;
    let body = with(
        task("t", "CALL mcp__fixture__add {\"a\":2,\"b\":3}"),
        &json!({"callbackUrl": sink.url("/cb"), "mcpServers": ["fixture"]}),
    );
    let id = bridge.api.dispatch(body).await;
    let callback = sink.until(1).await.remove(0);
    assert!(callback.headers.contains_key("webhook-signature"));
    let result: Value = serde_json::from_slice(&callback.body).unwrap();
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["output"], "tool said: 5");
    assert_eq!(result["model"], "fake-1");
    // Two calls of the model, each with 31 input and 9 output tokens.
    assert_eq!(result["usage"]["totalTokens"], 80, "{result}");
    let cost = result["costUsd"].as_f64().unwrap();
    assert!((cost - 2.0 * 121.0 / 1e6).abs() < 1e-9, "{result}");
    bridge.api.delivery_is(&id, "delivered").await;
    let events = bridge.api.events(&id).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    let at = |kind: &str| kinds.iter().position(|found| *found == kind).unwrap();
    assert!(at("session.updated") < at("tool.invoked"), "{kinds:?}");
    assert!(at("tool.completed") < at("assistant.text"), "{kinds:?}");
    let roles = model.requests()[1].body["messages"].clone();
    let roles: Vec<_> = roles
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].clone())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool"]);
    bridge.stop().await;
}

#[tokio::test]
async fn the_callers_tool_is_answered_by_the_next_dispatch_of_the_session() {
    let model = Model::start().await;
    let bridge = bridge(&model).await;
    let tools = json!({"tools": [{"name": "crm.find", "inputSchema": {"type": "object"}}]});
    let asked = with(task("a", "CALL crm_find {\"who\":\"bob\"}"), &tools);
    let asked = bridge.api.run(asked).await;
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
    assert_eq!(answered["output"], "pong: and now?", "{answered}");
    assert_eq!(answered["sessionId"], asked["sessionId"]);
    let said = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(said.contains("id 7") && said.contains("bob"), "{said}");
    bridge.stop().await;
}

#[tokio::test]
async fn structured_output_follows_its_schema() {
    let model = Model::start().await;
    let bridge = bridge(&model).await;
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let body = with(task("s", "give"), &json!({"outputSchema": schema}));
    let result = bridge.api.run(body).await;
    assert_eq!(result["structuredOutput"], json!({"n": 42}), "{result}");
    bridge.stop().await;
}

#[tokio::test]
async fn what_goes_wrong_has_its_code() {
    let model = Model::start().await;
    let bridge = bridge(&model).await;
    for (message, code) in [
        ("FAIL400", "invalid_request"),
        ("FAIL429", "rate_limited"),
        ("FAIL500", "upstream_error"),
        ("CUTOFF in the middle", "upstream_error"),
        ("ENDEARLY in the middle", "upstream_error"),
        ("GARBLED in the middle", "upstream_error"),
    ] {
        let result = bridge.api.run(task(message, message)).await;
        assert_eq!(result["errorCode"], code, "{message}: {result}");
        if message.contains("middle") {
            assert!(
                result["output"].as_str().unwrap().starts_with("pong"),
                "{result}"
            );
        }
    }
    let limit = json!({"timeoutSeconds": 1});
    let result = bridge.api.run(with(task("hang", "HANG"), &limit)).await;
    assert_eq!(result["errorCode"], "timeout", "{result}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_busy_model_is_asked_again_after_the_time_that_it_names_and_the_retry_is_counted() {
    let model = Model::start().await;
    let bridge = bridge(&model).await;
    let id = bridge
        .api
        .dispatch(task("busy", "FAILONCE429 RETRYAFTER2"))
        .await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["usage"]["totalTokens"], 40, "{result}");
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    let waited = requests[1].at.duration_since(requests[0].at);
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    let events = bridge.api.events(&id).await;
    let retrying = events
        .iter()
        .find(|event| event["type"] == "model.retrying");
    assert_eq!(retrying.unwrap()["data"]["delayMs"], 2_000);
    let page = bridge.api.request(Method::GET, "/metrics");
    let page = page.send().await.unwrap().text().await.unwrap();
    let counted = "forge_bridge_model_retries_total{adapter=\"openai-compatible\",reason=\"rate_limited\"} 1\n";
    assert!(page.contains(counted), "{page}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_text_and_a_killed_server_is_told_and_seen() {
    let model = Model::start().await;
    let bridge = bridge(&model).await;
    let id = bridge.api.dispatch(task("c", "SLOW please")).await;
    begun(&bridge, &id).await;
    assert!(bridge.api.cancel(&id).await);
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["errorCode"], "cancelled", "{result}");
    assert!(
        result["output"].as_str().unwrap().starts_with("tick000"),
        "{result}"
    );

    let id = bridge.api.dispatch(task("k", "SLOW please")).await;
    begun(&bridge, &id).await;
    model.kill();
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["errorCode"], "upstream_error", "{result}");
    assert!(
        result["output"].as_str().unwrap().starts_with("tick000"),
        "{result}"
    );
    until("the health to be seen", || async {
        let (_, health) = bridge.api.get("/api/health").await;
        let status = &health["adapters"]["openai-compatible"]["status"];
        (status == "offline").then_some(())
    })
    .await;
    bridge.stop().await;
}
