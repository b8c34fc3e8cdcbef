//! The bridge with a real OpenClaw gateway and the fake model: its agents and skills through the routes of the bridge,
//! runs that outlive the bridge or the gateway, and routing by its settings.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use forge_test_model::{Model, Received};
use forge_test_runtimes::{OPENCLAW_TOKEN, OpenClaw};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer};
use super::harness::process::{Home, Process};
use super::harness::until;

async fn gateway(model: &Model) -> OpenClaw {
    let url = model.url().to_owned();
    let start = move || forge_test_runtimes::openclaw(&url, "{}");
    tokio::task::spawn_blocking(start).await.unwrap()
}

fn home(gateway: &OpenClaw) -> Home {
    Home::new(&[
        ("BRIDGE_ADAPTERS", "openclaw,boxed"),
        ("BRIDGE_LOG_LEVEL", "debug"),
        ("OPENCLAW_URL", gateway.url()),
        ("OPENCLAW_TOKEN", OPENCLAW_TOKEN),
    ])
}

async fn call(bridge: &Process, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = bridge.api.request(method, &format!("/api/v2{path}"));
    match body {
        Value::Null => answer(request).await,
        body => answer(request.json_body(body)).await,
    }
}

/// Requests to the model whose messages contain this text.
fn asked(model: &Model, text: &str) -> Vec<Received> {
    let mut requests = model.requests();
    requests.retain(|request| request.body["messages"].to_string().contains(text));
    requests
}

/// Waits until the adapter has this health.
async fn is(bridge: &Process, status: &str) {
    until(status, || async {
        let health = bridge.api.get("/api/health").await.1;
        (health["adapters"]["openclaw"]["status"] == status).then_some(())
    })
    .await;
}

fn task(id: &str, agent: &str, message: &str) -> Value {
    json!({"taskId": id, "agentId": agent, "message": message, "callbackUrl": null})
}

#[tokio::test]
async fn agents_are_managed_and_runs_outlive_the_bridge_and_the_gateway() {
    let model = Model::start().await;
    let gateway = gateway(&model).await;
    let home = home(&gateway);
    let boxed = "[adapters.boxed]\nlibrary = \"echo\"\ncapabilities = [\"sandboxing\"]\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), boxed).unwrap();
    let bridge = home.start();
    is(&bridge, "healthy").await;
    every_route_works_or_is_not_supported(&bridge).await;

    let result = bridge.api.run(task("a", "ada", "hello ada")).await;
    // The gateway adds a line about the run, with which the model ends its answer.
    let output = result["output"].as_str().unwrap();
    assert!(output.starts_with("pong: "), "{result}");
    let sent = |text| asked(&model, text).pop().unwrap().body.to_string();
    let hello = sent("hello ada");
    assert!(hello.contains("You are a marmot.") && hello.contains("A kind soul."));
    // Skills are those of the default agent.
    bridge.api.run(task("b", "main", "hello main")).await;
    assert!(sent("hello main").contains("plum-skill"));
    let none = Value::Null;
    let (_, agents) = call(&bridge, Method::GET, "/agents", &none).await;
    assert_eq!(agents.as_array().unwrap().len(), 2, "{agents}");
    let (_, removed) = call(&bridge, Method::DELETE, "/skills/plum-skill", &none).await;
    let (_, skill) = call(&bridge, Method::GET, "/skills/plum-skill", &none).await;
    assert_eq!(skill["enabled"], false, "{removed} {skill}");
    let (status, _) = call(&bridge, Method::DELETE, "/agents/ada", &none).await;
    assert!(status.is_success());
    let (status, _) = call(&bridge, Method::GET, "/agents/ada", &none).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // While the gateway is slow, another adapter would take it.
    let mut gone = task("gone", "ada", "anyone?");
    gone["provider"] = "openclaw".into();
    let unknown = bridge.api.run(gone).await;
    assert_eq!(unknown["errorCode"], "invalid_request", "{unknown}");

    let session = bridge.api.run(task("c", "main", "my word is plum")).await["sessionId"].take();
    let bridge = a_killed_bridge_joins_its_run(&home, bridge, &model).await;
    work_waits_for_a_gateway_that_was_killed(&bridge, &gateway, session).await;
    // Bridge and gateway are others than those of the session's first message.
    assert!(sent("what was it").contains("my word is plum"));
    sandboxed_work_goes_where_the_sandbox_is(&bridge, &gateway).await;
    the_key_of_the_device_is_private(&home, &bridge).await;
}

/// Routing follows the setting of the gateway; the other adapter always declares a sandbox.
async fn sandboxed_work_goes_where_the_sandbox_is(bridge: &Process, gateway: &OpenClaw) {
    let wanted = json!({
        "taskId": "box", "agentId": "main", "message": "hello", "callbackUrl": null,
        "requires": ["sandboxing"], "preferences": {"providers": ["openclaw"]},
    });
    let dispatch = async |task: &str| {
        let mut body = wanted.clone();
        body["taskId"] = task.into();
        let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        answer
    };
    let routed = dispatch("off").await;
    assert_eq!(routed["provider"], "boxed", "{routed}");
    let record = bridge
        .api
        .record(routed["dispatchId"].as_str().unwrap())
        .await;
    let layers = record["routing"].as_array().unwrap().iter();
    let mut dropped = layers.flat_map(|layer| layer["dropped"].as_array().into_iter().flatten());
    let own = dropped
        .find(|dropped| dropped["provider"] == "openclaw")
        .unwrap();
    assert!(
        own["reason"].as_str().unwrap().contains("sandboxing"),
        "{own}"
    );
    let on = json!({"agents": {"defaults": {"sandbox": {"mode": "all"}}}});
    gateway.set(&on.to_string());
    until("the sandbox", || async {
        let adapter = bridge.api.get("/api/v2/adapters/openclaw").await.1;
        let declared = adapter["profile"]["capabilities"].as_array().unwrap();
        declared.contains(&"sandboxing".into()).then_some(())
    })
    .await;
    let routed = dispatch("on").await;
    assert_eq!(routed["provider"], "openclaw", "{routed}");
}

/// Only the owner of the state reads it, and nothing of it is in logs, events and answers.
async fn the_key_of_the_device_is_private(home: &Home, bridge: &Process) {
    let folder = home.dir.path().join("data/state/adapter-data/openclaw");
    let file = folder.join("device.json");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let key: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let mut secrets = vec![OPENCLAW_TOKEN, key["privateKey"].as_str().unwrap()];
    let tokens = key["deviceTokens"].as_object().unwrap();
    secrets.extend(tokens.values().filter_map(Value::as_str));
    let mut said = home.log() + &Value::from(bridge.api.event_log().await).to_string();
    for path in [
        "/api/health?verbose",
        "/api/v2/adapters/openclaw",
        "/api/v2/dispatches",
    ] {
        said += &bridge.api.get(path).await.1.to_string();
    }
    assert!(said.contains("openclaw"));
    for secret in secrets {
        assert!(
            secret.len() > 8 && !said.contains(secret),
            "a secret was said"
        );
    }
}

async fn every_route_works_or_is_not_supported(bridge: &Process) {
    let none = Value::Null;
    let ada =
        json!({"agentId": "ada", "model": "fake/fake-1", "systemPrompt": "You are a badger."});
    let marmot = json!({"systemPrompt": "You are a marmot."});
    let soul = json!({"content": "A kind soul."});
    let skill =
        json!({"skillKey": "plum-skill", "description": "About plums", "content": "Peel it."});
    let bindings = json!({"bindings": [{"channel": "telegram", "accountId": "home"}]});
    for (method, path, body, expected) in [
        (Method::POST, "/agents", &ada, 200),
        (Method::POST, "/agents", &ada, 400),
        (Method::POST, "/agents", &json!({"agentId": "Ada L."}), 400),
        (Method::PUT, "/agents/ada", &marmot, 200),
        (Method::PUT, "/agents/ada", &json!({"model": ""}), 400),
        (Method::GET, "/agents/ada/files", &none, 200),
        (Method::PUT, "/agents/ada/files/SOUL.md", &soul, 200),
        (Method::GET, "/agents/ada/files/SOUL.md", &none, 200),
        (Method::PUT, "/agents/ada/files/other.md", &soul, 400),
        (Method::DELETE, "/agents/ada/files/SOUL.md", &none, 404),
        (Method::PUT, "/agents/ada/bindings", &bindings, 200),
        (Method::GET, "/agents/ada/bindings", &none, 200),
        (Method::POST, "/skills", &skill, 200),
        (Method::GET, "/skills", &none, 200),
        (
            Method::PUT,
            "/skills/plum-skill",
            &json!({"enabled": true}),
            200,
        ),
        (
            Method::PUT,
            "/skills/plum-skill",
            &json!({"content": "Peel it well."}),
            200,
        ),
        (
            Method::PUT,
            "/skills/plum-skill",
            &json!({"description": "Fruit"}),
            400,
        ),
        (Method::GET, "/skills/plum-skill/status", &none, 200),
        (Method::POST, "/skills/plum-skill/dependencies", &none, 200),
        (Method::GET, "/models", &none, 200),
        (Method::GET, "/system/models", &none, 200),
        (Method::GET, "/system/security", &none, 200),
        (Method::POST, "/system/reload", &none, 200),
    ] {
        let (status, answer) = call(bridge, method.clone(), path, body).await;
        let status = status.as_u16();
        let is_expected = match expected {
            // A change can be answered with 201 or 204.
            200 => status < 300,
            expected => status == expected,
        };
        assert!(is_expected, "{method} {path}: {status} {answer}");
        let is_unsupported = answer["code"] == "NOT_SUPPORTED";
        assert_eq!(status == 404, is_unsupported, "{path}: {answer}");
    }
}

/// The gateway works on while the bridge is dead; the attempt after it fetches that run.
async fn a_killed_bridge_joins_its_run(home: &Home, bridge: Process, model: &Model) -> Process {
    let mut body = task(
        "joined",
        "main",
        r#"CALL exec {"command": "echo joined; sleep 2"}"#,
    );
    body["recovery"] = "retry".into();
    let id = bridge.api.dispatch(body).await;
    until("the run", || async {
        (!asked(model, "echo joined").is_empty()).then_some(())
    })
    .await;
    bridge.kill();
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    let result = &record["result"];
    assert_eq!(
        (&result["status"], &result["attempt"]),
        (&json!("ok"), &json!(2)),
        "{result}"
    );
    assert!(
        result["output"].as_str().unwrap().contains("joined"),
        "{result}"
    );
    assert_eq!(asked(model, "echo joined").len(), 2, "one run of two calls");
    bridge
}

async fn work_waits_for_a_gateway_that_was_killed(
    bridge: &Process,
    gateway: &OpenClaw,
    session: Value,
) {
    gateway.kill();
    is(bridge, "offline").await;
    let (status, refused) = call(bridge, Method::GET, "/agents", &Value::Null).await;
    assert_eq!(
        (status, &refused["code"]),
        (
            StatusCode::SERVICE_UNAVAILABLE,
            &json!("ADAPTER_UNAVAILABLE")
        ),
        "{refused}"
    );
    let mut body = task("waiting", "main", "what was it");
    body["provider"] = "openclaw".into();
    body["sessionId"] = session;
    let id = bridge.api.dispatch(body).await;
    gateway.start_again();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    is(bridge, "healthy").await;
}
