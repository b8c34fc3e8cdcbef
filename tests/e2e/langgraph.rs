//! The bridge with a real LangGraph server and the fake model.

use forge_test_model::Model;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, with};
use super::harness::process::{Home, Process};
use super::harness::{Bridge, CallbackSink, until};

fn task(name: &str, message: &str) -> Value {
    json!({"taskId": name, "agentId": "worker", "message": message, "callbackUrl": null})
}

fn variables(url: &str) -> [(&str, &str); 4] {
    [
        ("BRIDGE_ADAPTERS", "langgraph"),
        ("LANGGRAPH_URL", url),
        ("BRIDGE_ADAPTERS_LANGGRAPH_ASSISTANT", "agent"),
        ("BRIDGE_ADAPTERS_LANGGRAPH_GRAPH", "agent"),
    ]
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.collect()
}

#[tokio::test]
async fn a_graph_calls_a_tool_asks_a_human_and_its_assistants_are_agents() {
    let model = Model::start().await;
    let server = forge_test_runtimes::langgraph(model.url());
    let sink = CallbackSink::start().await;
    let bridge = Bridge::with(&variables(server.url())).await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(
        health["adapters"]["langgraph"]["status"], "healthy",
        "{health}"
    );

    let body = task("tool", "CALL add {\"a\": 40, \"b\": 2}");
    let owed = with(body, &json!({"callbackUrl": sink.url("/cb")}));
    let id = bridge.api.dispatch(owed).await;
    let callback = sink.until(1).await.remove(0);
    let result: Value = serde_json::from_slice(&callback.body).unwrap();
    assert_eq!(
        (&result["status"], &result["output"]),
        (&json!("ok"), &json!("tool said: 42")),
        "{result}"
    );
    assert_eq!(result["usage"]["inputTokens"], 62);
    let events = bridge.api.events(&id).await;
    let kinds = kinds(&events);
    for kind in [
        "session.updated",
        "tool.invoked",
        "tool.completed",
        "assistant.text",
    ] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }

    let asked = bridge.api.run(task("ask", "ASK me")).await;
    assert_eq!(asked["errorCode"], "input_required", "{asked}");
    let question = &asked["inputRequest"]["interrupts"][0]["value"];
    assert_eq!(question["question"], "go on?");
    let session = json!({"sessionId": asked["sessionId"]});
    let answered = bridge.api.run(with(task("answer", "yes"), &session)).await;
    assert_eq!(answered["output"], "pong: the human said yes", "{answered}");

    agents(&bridge).await;
    bridge.stop().await;
}

/// Creates, lists, uses, changes and deletes agents through the routes of the bridge.
async fn agents(bridge: &Bridge) {
    let call = async |method: Method, path: &str, body: &Value| {
        let request = bridge.api.request(method, &format!("/api/v2/agents{path}"));
        match body {
            Value::Null => answer(request).await,
            body => answer(request.json_body(body)).await,
        }
    };
    let ada = json!({
        "agentId": "ada", "name": "Ada", "config": {"configurable": {"model": "fake-ada"}},
    });
    let (status, made) = call(Method::POST, "", &ada).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    let (status, _) = call(Method::POST, "", &ada).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "there is one already");

    let (_, listed) = call(Method::GET, "", &Value::Null).await;
    let listed = listed.as_array().unwrap();
    let found = listed.iter().find(|agent| agent["agentId"] == "ada");
    let found = found.expect("it is listed");
    assert_eq!(
        (&found["name"], &found["graphId"]),
        (&json!("Ada"), &json!("agent"))
    );
    assert!(
        listed.iter().any(|agent| agent["name"] == "shop"),
        "so are the graphs"
    );

    let at_work = with(task("as-ada", "hello"), &json!({"agentId": "ada"}));
    let result = bridge.api.run(at_work).await;
    assert_eq!(result["model"], "fake-ada", "{result}");

    let renamed = json!({"name": "Ada L."});
    let (status, changed) = call(Method::PUT, "/ada", &renamed).await;
    assert_eq!(
        (status, &changed["name"]),
        (StatusCode::OK, &json!("Ada L."))
    );
    let (status, _) = call(Method::DELETE, "/ada", &Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = call(Method::GET, "/ada", &Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_run_survives_the_bridge_and_is_taken_up_again() {
    let model = Model::start().await;
    let server = forge_test_runtimes::langgraph(model.url());
    let home = Home::new(&variables(server.url()));
    let bridge = home.start();
    let body = with(
        task("survivor", "TICK and say"),
        &json!({"recovery": "resume", "sessionId": "talk", "timeoutSeconds": 60}),
    );
    let id = bridge.api.dispatch(body).await;
    progress_of(&bridge, &id).await;
    bridge.kill();

    let bridge = home.start();
    let record = bridge.api.finished(&id).await;

    let result = &record["result"];
    assert_eq!(result["output"], "pong: TICK and say", "{record}");
    assert_eq!(
        (&result["attempt"], &result["usage"]["inputTokens"]),
        (&json!(2), &json!(31))
    );
    assert_eq!(model.requests().len(), 1, "the graph ran once");
}

#[tokio::test]
async fn text_of_a_run_that_is_told_again_after_a_crash_counts_once() {
    let model = Model::start().await;
    let server = forge_test_runtimes::langgraph(model.url());
    let home = Home::new(&variables(server.url()));
    let bridge = home.start();
    let body = with(task("slow", "SLOW please"), &json!({"recovery": "resume"}));
    let id = bridge.api.dispatch(body).await;
    bridge.api.told(&id, "assistant.text", 1).await;
    bridge.kill();

    let bridge = home.start();
    bridge.api.told(&id, "assistant.text", 2).await;
    assert!(bridge.api.cancel(&id).await);
    let record = bridge.api.finished(&id).await;
    let (text, withdrawn) = bridge.api.kept_text(&id).await;
    assert_eq!(record["result"]["output"], text, "{record}");
    assert!(text.starts_with("tick000"), "{text}");
    assert_eq!(withdrawn, [1]);
}

async fn progress_of(bridge: &Process, id: &str) {
    until("progress", async || {
        let events = bridge.api.events(id).await;
        kinds(&events).contains(&"exec.progress").then_some(())
    })
    .await;
}
