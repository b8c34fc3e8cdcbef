//! The bridge with the real Hermes Agent and the fake model: its profiles and skills through the routes of the bridge.

use std::fs;
use std::time::Duration;

use forge_test_model::Model;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer};
use super::harness::process::{Home, Process};
use super::harness::until;

fn home(model: &Model) -> Home {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "hermes-agent"),
        ("BRIDGE_LOG_LEVEL", "debug"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ]);
    let dir = home.dir.path();
    let hermes = dir.join("hermes");
    fs::create_dir(&hermes).unwrap();
    let settings = format!(
        "model: {{default: fake-1, provider: custom, base_url: '{}/v1', api_key: fake, context_length: 128000}}\n",
        model.url()
    );
    fs::write(hermes.join("config.yaml"), settings).unwrap();
    let file = format!(
        "[adapters.hermes-agent]\nprogram = {:?}\nenv = {{ HERMES_HOME = {hermes:?} }}\n",
        forge_test_runtimes::hermes(),
    );
    fs::write(dir.join("forge-bridge.toml"), file).unwrap();
    home
}

async fn call(bridge: &Process, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = bridge.api.request(method, &format!("/api/v2{path}"));
    match body {
        Value::Null => answer(request).await,
        body => answer(request.json_body(body)).await,
    }
}

#[tokio::test]
async fn an_agent_is_made_used_changed_and_removed_and_a_killed_bridge_leaves_no_process() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let adapter = bridge.api.get("/api/v2/adapters/hermes-agent").await.1;
    assert_eq!(adapter["agents"]["count"], 1, "{adapter}");
    assert!(
        programs_of(&home).is_empty(),
        "started for the list of agents"
    );
    let marmot = json!({"agentId": "ada", "systemPrompt": "you are a marmot"});
    let skill = json!({"skillKey": "ada/digging", "description": "digs", "content": "Use paws."});
    let badger = json!({"content": "you are a badger"});
    let none = Value::Null;
    let rename = json!({"description": "digs", "model": "custom:fake-2"});
    let enabled = json!({"enabled": true});
    let calls = [
        (Method::POST, "/agents", &marmot, 200),
        (Method::POST, "/agents", &json!({"agentId": "Ada L."}), 400),
        (Method::DELETE, "/agents/..%2Fada", &none, 400),
        (Method::PUT, "/agents/ada/files/other.md", &badger, 400),
        (
            Method::POST,
            "/skills",
            &json!({"skillKey": "../x", "content": "x"}),
            400,
        ),
        (Method::PUT, "/agents/ada", &rename, 200),
        (Method::PUT, "/agents/ada", &json!({"description": ""}), 200),
        (Method::PUT, "/agents/ada", &json!({"model": ""}), 400),
        (Method::GET, "/agents/ada/files", &none, 200),
        (Method::PUT, "/agents/ada/files/SOUL.md", &badger, 200),
        (Method::GET, "/agents/ada/files/SOUL.md", &none, 200),
        (Method::GET, "/agents/ada/files/AGENTS.md", &none, 404),
        (Method::DELETE, "/agents/ada/files/SOUL.md", &none, 404),
        (Method::GET, "/agents/ada/bindings", &none, 404),
        (
            Method::PUT,
            "/agents/ada/bindings",
            &json!({"bindings": []}),
            404,
        ),
        (Method::POST, "/skills", &skill, 200),
        (Method::GET, "/skills", &none, 200),
        (Method::PUT, "/skills/ada%2Fdigging", &enabled, 200),
        (Method::GET, "/skills/ada%2Fdigging", &none, 200),
        (Method::GET, "/skills/ada%2Fdigging/status", &none, 200),
        (
            Method::POST,
            "/skills/ada%2Fdigging/dependencies",
            &none,
            404,
        ),
        (Method::GET, "/models", &none, 200),
        (Method::GET, "/system/models", &none, 200),
        (Method::GET, "/system/security", &none, 200),
        (Method::POST, "/system/reload", &none, 200),
    ];
    let mut answers = String::new();
    for (method, path, body, expected) in calls {
        let (status, answer) = call(&bridge, method.clone(), path, body).await;
        answers.push_str(&answer.to_string());
        // A change can be answered with 201 or 204.
        let status = status.as_u16();
        let is_expected = if expected == 200 {
            status < 300
        } else {
            status == expected
        };
        assert!(is_expected, "{method} {path}: {status} {answer}");
        let is_file = path.ends_with("AGENTS.md");
        assert!(
            status != 404 || is_file || answer["code"] == "NOT_SUPPORTED",
            "{path}: {answer}"
        );
    }

    let task = json!({"taskId": "a", "agentId": "ada", "message": "hello", "callbackUrl": null});
    let result = bridge.api.run(task).await;

    assert_eq!(result["output"], "pong: hello", "{result}");
    let requests = model.requests();
    let mut asked = requests
        .iter()
        .filter(|request| request.body["tools"].is_array());
    let said = asked.next_back().unwrap().body["messages"].to_string();
    assert!(
        said.contains("you are a badger") && said.contains("digging"),
        "{said}"
    );
    let (_, agents) = call(&bridge, Method::GET, "/agents", &none).await;
    assert_eq!(agents.as_array().unwrap().len(), 2, "{agents}");
    let (_, ada) = call(&bridge, Method::GET, "/agents/ada", &none).await;
    assert_eq!(ada["systemPrompt"], "you are a badger");
    let (_, removed) = call(&bridge, Method::DELETE, "/skills/ada%2Fdigging", &none).await;
    let (_, status) = call(&bridge, Method::GET, "/skills/ada%2Fdigging/status", &none).await;
    assert_eq!(status["ready"], false, "{removed} {status}");
    let (status, _) = call(&bridge, Method::DELETE, "/agents/ada", &none).await;
    assert!(status.is_success());
    let (status, _) = call(&bridge, Method::GET, "/agents/ada", &none).await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    let tokens: Vec<String> = programs_of(&home)
        .iter()
        .filter_map(|pid| token_of(pid))
        .collect();
    assert!(!tokens.is_empty() && tokens.iter().all(|token| token.len() > 32));
    let events = Value::from(bridge.api.event_log().await).to_string();
    let said = home.log() + &events + &answers;
    assert!(!tokens.iter().any(|token| said.contains(token)));
    let slow =
        json!({"taskId": "b", "agentId": "x", "message": "SLOW please", "callbackUrl": null});
    let id = bridge.api.dispatch(slow).await;
    until("a text", || async {
        let events = bridge.api.events(&id).await;
        let mut kinds = events.iter().map(|event| &event["type"]);
        kinds.any(|kind| kind == "assistant.text").then_some(())
    })
    .await;
    bridge.kill();
    let gone = until("the programs to be gone", || async {
        programs_of(&home).is_empty().then_some(())
    });
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .unwrap();
}

/// Processes that Hermes' home was given to, supervisors included.
fn programs_of(home: &Home) -> Vec<String> {
    let mark = format!("HERMES_HOME={}", home.dir.path().join("hermes").display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let environ = |entry: &fs::DirEntry| fs::read(entry.path().join("environ")).unwrap_or_default();
    entries
        .filter(|entry| {
            let environ = environ(entry);
            let mut variables = environ.split(|byte| *byte == 0);
            variables.any(|variable| variable == mark.as_bytes())
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The token that a management server was started with.
fn token_of(pid: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ = String::from_utf8(environ).unwrap();
    let mut variables = environ.split('\0');
    let token = variables.find_map(|v| v.strip_prefix("HERMES_DASHBOARD_SESSION_TOKEN="));
    token.map(str::to_owned)
}
