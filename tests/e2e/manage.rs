//! Management of agents, skills, models and the system through every route.

use std::path::Path;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, quiet, with};
use super::harness::{Bridge, until};

async fn call(bridge: &Bridge, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = bridge.api.request(method, &format!("/api/v2{path}"));
    let (status, body) = match body {
        Value::Null => answer(request).await,
        body => answer(request.json_body(body)).await,
    };
    (status.as_u16(), body)
}

/// Returns true if `actual` contains all members of `expected`.
fn holds(actual: &Value, expected: &Value) -> bool {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => expected
            .iter()
            .all(|(name, value)| actual.get(name).is_some_and(|actual| holds(actual, value))),
        (actual, expected) => actual == expected,
    }
}

#[tokio::test]
async fn every_route_reaches_its_method() {
    let bridge = Bridge::with(&[("BRIDGE_ADAPTERS", "echo,manager")]).await;
    let none = Value::Null;
    let ada = json!({"agentId": "ada/1", "name": "Ada", "colour": "blue"});
    let renamed = json!({"agentId": "ada/1", "name": "Ada L."});
    let search = json!({"skillKey": "search", "description": "finds"});
    let bindings = json!([{"channel": "slack", "team": "t"}]);
    let models = json!([{"modelId": "m-1"}]);
    let rows: [(&str, &str, Value, u16, Value); 30] = [
        ("GET", "/agents", none.clone(), 200, json!([])),
        ("POST", "/agents", ada.clone(), 200, ada.clone()),
        (
            "POST",
            "/agents",
            ada.clone(),
            400,
            json!({"code": "INVALID_REQUEST"}),
        ),
        (
            "GET",
            "/agents?provider=manager",
            none.clone(),
            200,
            json!([ada]),
        ),
        ("GET", "/agents/ada%2F1", none.clone(), 200, ada.clone()),
        (
            "GET",
            "/agents/bob",
            none.clone(),
            404,
            json!({"code": "NOT_FOUND"}),
        ),
        (
            "PUT",
            "/agents/ada%2F1",
            json!({"name": "Ada L."}),
            200,
            renamed,
        ),
        (
            "PUT",
            "/agents/ada%2F1",
            json!({"agentId": "bob"}),
            400,
            json!({"code": "INVALID_REQUEST"}),
        ),
        (
            "PUT",
            "/agents/bob",
            json!({}),
            404,
            json!({"code": "NOT_FOUND"}),
        ),
        (
            "PUT",
            "/agents/ada%2F1/files/notes/a.md",
            json!({"content": "hi"}),
            204,
            none.clone(),
        ),
        (
            "PUT",
            "/agents/ada%2F1/files/notes/a.md",
            json!({"content": 1}),
            400,
            json!({"code": "INVALID_REQUEST"}),
        ),
        (
            "PUT",
            "/agents/ada%2F1/files/..%2Fa.md",
            json!({"content": "hi"}),
            400,
            json!({"code": "INVALID_REQUEST"}),
        ),
        (
            "GET",
            "/agents/ada%2F1/files",
            none.clone(),
            200,
            json!([{"path": "notes/a.md", "sizeBytes": 2}]),
        ),
        (
            "GET",
            "/agents/ada%2F1/files/notes/a.md",
            none.clone(),
            200,
            json!({"content": "hi"}),
        ),
        (
            "DELETE",
            "/agents/ada%2F1/files/notes%2Fa.md",
            none.clone(),
            204,
            none.clone(),
        ),
        (
            "DELETE",
            "/agents/ada%2F1/files/notes/a.md",
            none.clone(),
            404,
            json!({"code": "NOT_FOUND"}),
        ),
        (
            "PUT",
            "/agents/ada%2F1/bindings",
            json!({"bindings": bindings}),
            204,
            none.clone(),
        ),
        (
            "GET",
            "/agents/ada%2F1/bindings",
            none.clone(),
            200,
            bindings.clone(),
        ),
        ("DELETE", "/agents/ada%2F1", none.clone(), 204, none.clone()),
        (
            "DELETE",
            "/agents/ada%2F1",
            none.clone(),
            404,
            json!({"code": "NOT_FOUND"}),
        ),
        ("POST", "/skills", search.clone(), 200, search.clone()),
        ("GET", "/skills", none.clone(), 200, json!([search])),
        (
            "PUT",
            "/skills/search",
            json!({"name": "S"}),
            200,
            json!({"skillKey": "search", "name": "S"}),
        ),
        (
            "GET",
            "/skills/search/status",
            none.clone(),
            200,
            json!({"ready": false, "missing": ["ripgrep"]}),
        ),
        (
            "POST",
            "/skills/search/dependencies",
            none.clone(),
            200,
            json!({"installed": ["ripgrep"]}),
        ),
        (
            "GET",
            "/skills/search/status",
            none.clone(),
            200,
            json!({"ready": true}),
        ),
        ("DELETE", "/skills/search", none.clone(), 204, none.clone()),
        ("GET", "/models", none.clone(), 200, models.clone()),
        ("GET", "/system/models", none.clone(), 200, models.clone()),
        (
            "POST",
            "/system/reload",
            none.clone(),
            200,
            json!({"changed": true}),
        ),
    ];
    for (method, path, body, status, expected) in rows {
        let (answered, actual) = call(&bridge, method, path, &body).await;
        assert_eq!(answered, status, "{method} {path}: {actual}");
        assert!(holds(&actual, &expected), "{method} {path}: {actual}");
    }
    let (status, posture) = call(&bridge, "GET", "/system/security", &none).await;
    assert_eq!((status, &posture["sandboxed"]), (200, &json!(true)));
    bridge.stop().await;
}

#[tokio::test]
async fn the_adapter_that_can_is_found_and_several_must_be_told_apart() {
    let bridge = Bridge::with(&[
        ("BRIDGE_ADAPTERS", "echo,manager,second"),
        ("BRIDGE_ADAPTERS_SECOND_LIBRARY", "manager"),
    ])
    .await;
    let none = Value::Null;
    let (status, body) = call(&bridge, "GET", "/agents", &none).await;
    assert_eq!(status, 400, "{body}");
    assert_eq!(body["details"][0]["field"], "provider");
    let told = body["details"][0]["message"].as_str().unwrap();
    assert!(
        told.contains("manager or second") && !told.contains("echo"),
        "{told}"
    );
    let ada = json!({"agentId": "ada"});
    let made = call(&bridge, "POST", "/agents?provider=second", &ada).await;
    assert_eq!(made, (200, ada.clone()));
    for (provider, expected) in [("second", json!([ada])), ("manager", json!([]))] {
        let path = format!("/agents?provider={provider}");
        assert_eq!(call(&bridge, "GET", &path, &none).await, (200, expected));
    }
    for (path, status, code) in [
        ("/agents?provider=echo", 404, "NOT_SUPPORTED"),
        ("/agents?provider=absent", 422, "UNKNOWN_PROVIDER"),
        (
            "/agents?provider=echo&provider=manager",
            400,
            "INVALID_REQUEST",
        ),
    ] {
        let (answered, body) = call(&bridge, "GET", path, &none).await;
        assert_eq!((answered, &body["code"]), (status, &json!(code)), "{path}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn what_goes_wrong_in_an_adapter_is_told_without_its_insides() {
    let bridge = Bridge::with(&[("BRIDGE_ADAPTERS", "manager")]).await;
    let rows = [
        (
            "broken",
            502,
            "ADAPTER_ERROR",
            "upstream_error",
            "the runtime answered 500",
        ),
        (
            "odd",
            400,
            "INVALID_REQUEST",
            "invalid_request",
            "odd is not a valid name",
        ),
        (
            "taken",
            409,
            "CONFLICT",
            "conflict",
            "changed since it was read",
        ),
        ("panic", 502, "ADAPTER_ERROR", "adapter_panic", "panicked"),
    ];
    for (name, status, code, error_code, text) in rows {
        let path = format!("/agents/{name}");
        let (answered, body) = call(&bridge, "GET", &path, &Value::Null).await;
        assert_eq!((answered, &body["code"]), (status, &json!(code)), "{body}");
        assert_eq!(body["details"]["errorCode"], error_code);
        let error = body["error"].as_str().unwrap();
        assert!(
            error.contains(text) && error.contains("\"manager\""),
            "{error}"
        );
        assert!(!body.to_string().contains("secret"), "{body}");
    }
    let (status, agents) = call(&bridge, "GET", "/agents", &Value::Null).await;
    assert_eq!((status, agents), (200, json!([])), "it lives");
    bridge.stop().await;
}

#[tokio::test]
async fn what_an_adapter_tells_outside_of_executions_is_in_the_log() {
    let home = tempfile::tempdir().unwrap();
    let journal = home.path().join("journal");
    let bridge = Bridge::with(&[
        ("BRIDGE_ADAPTERS", "manager"),
        ("MANAGER_JOURNAL", journal.to_str().unwrap()),
    ])
    .await;
    let ada = json!({"agentId": "ada"});
    assert_eq!(call(&bridge, "POST", "/agents", &ada).await.0, 200);
    let told = until("what the adapter tells", || async {
        let path = "/api/v2/events?after=0&type=adapter.event&provider=manager";
        let request = bridge.api.request(Method::GET, path);
        let (status, page) = answer(request.header("accept", "application/json")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let events = page["events"].as_array().unwrap().clone();
        (events.len() >= 2).then_some(events)
    })
    .await;
    let told: Vec<&Value> = told.iter().map(|event| &event["data"]).collect();
    let expected = [
        json!({"type": "runtime.connected", "data": {}}),
        json!({"type": "agent.created", "data": {"agentId": "ada"}}),
    ];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
    assert_eq!(lines(&journal), ["events.start"]);
    bridge.stop().await;
    assert_eq!(lines(&journal), ["events.start", "events.stop", "shutdown"]);
}

fn lines(journal: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(journal).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Settings of a second adapter that manages agents, in a process of its own.
const TWO: [(&str, &str); 3] = [
    ("BRIDGE_ADAPTERS", "echo,manager,second"),
    ("BRIDGE_ADAPTERS_SECOND_LIBRARY", "manager"),
    ("BRIDGE_ADAPTERS_SECOND_ISOLATION", "process"),
];

/// Runs a dispatch to an agent. Returns the adapter that it ran on, and the step of layer 3.
async fn routed(bridge: &Bridge, task: &str, agent: &str) -> (String, Value) {
    let body = with(quiet(task, "ok"), &json!({ "agentId": agent }));
    let id = bridge.api.dispatch(body).await;
    let record = bridge.api.finished(&id).await;
    let steps = record["routing"].as_array().unwrap();
    let step = steps.iter().find(|step| step["layer"] == 3).unwrap();
    let provider = record["provider"].as_str().unwrap();
    (provider.to_owned(), step.clone())
}

async fn directory(bridge: &Bridge, provider: &str) -> Value {
    let path = format!("/api/v2/adapters/{provider}");
    bridge.api.get(&path).await.1["agents"].take()
}

#[tokio::test]
async fn a_dispatch_goes_to_the_adapter_that_has_its_agent() {
    let bridge = Bridge::with(&TWO).await;
    let none = Value::Null;
    let (_, step) = routed(&bridge, "nowhere", "ada").await;
    assert_eq!(step["kept"], json!(["echo", "manager", "second"]));
    assert_eq!(directory(&bridge, "echo").await, none);
    let empty = directory(&bridge, "second").await;
    assert!(
        holds(&empty, &json!({"count": 0, "complete": true})),
        "{empty}"
    );
    assert!(
        empty["listedAt"].is_string() && empty["ageSeconds"].is_u64(),
        "{empty}"
    );

    let ada = json!({"agentId": "ada"});
    let made = call(&bridge, "POST", "/agents?provider=second", &ada).await;
    assert_eq!(made.0, 200, "{}", made.1);
    assert_eq!(directory(&bridge, "second").await["count"], 1);
    let (provider, step) = routed(&bridge, "one", "ada").await;
    assert_eq!(provider, "second");
    let elsewhere = "the agent is deployed on another adapter";
    let expected = json!({"layer": 3, "name": "deployments", "kept": ["second"], "dropped": [
        {"provider": "echo", "reason": elsewhere}, {"provider": "manager", "reason": elsewhere},
    ]});
    assert_eq!(step, expected);
    let (_, step) = routed(&bridge, "other", "bob").await;
    assert_eq!(step["dropped"], json!([]), "no adapter has this agent");

    let gone = call(&bridge, "DELETE", "/agents/ada?provider=second", &none).await;
    assert_eq!(gone.0, 204);
    let made = call(&bridge, "POST", "/agents?provider=manager", &ada).await;
    assert_eq!(made.0, 200, "{}", made.1);
    let (provider, step) = routed(&bridge, "two", "ada").await;
    assert_eq!(
        (&*provider, &step["kept"]),
        ("manager", &json!(["manager"]))
    );
    bridge.stop().await;
}

#[tokio::test]
async fn the_agents_of_an_adapter_that_crashed_are_known_until_it_is_asked_again() {
    let bridge = Bridge::with(&TWO).await;
    let ada = json!({"agentId": "ada"});
    let made = call(&bridge, "POST", "/agents?provider=second", &ada).await;
    assert_eq!(made.0, 200, "{}", made.1);
    // Its process ends, and with it the list in the process's memory.
    let (status, crashed) = call(
        &bridge,
        "GET",
        "/agents/abort?provider=second",
        &Value::Null,
    )
    .await;
    assert_eq!(
        (status, &crashed["code"]),
        (503, &json!("ADAPTER_UNAVAILABLE")),
        "{crashed}"
    );
    assert_eq!(directory(&bridge, "second").await["count"], 1);
    until("the adapter to be healthy again", || async {
        let health = bridge.api.get("/api/health").await.1;
        (health["adapters"]["second"]["status"] == "healthy").then_some(())
    })
    .await;
    assert_eq!(routed(&bridge, "before", "ada").await.0, "second");
    let bob = json!({"agentId": "bob"});
    let made = call(&bridge, "POST", "/agents?provider=second", &bob).await;
    assert_eq!(made.0, 200, "{}", made.1);
    let (_, step) = routed(&bridge, "after", "ada").await;
    assert_eq!(
        step["dropped"],
        json!([]),
        "no adapter has this agent any longer"
    );
    bridge.stop().await;
}
