//! Third-party adapters: the example with its own manifest and lock file, built outside the workspace, and one
//! in C. Both run in an unmodified bridge.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::StatusCode;
use serde_json::json;
use tempfile::TempDir;

use super::harness::api::{owed, quiet, with};
use super::harness::library::{compile, file_name, make_safe, root};
use super::harness::{Bridge, CallbackSink};

/// Build folder of the example, beside that of the workspace and shared by all tests.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("acme")
}

fn cargo(command: &str) {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args([command, "--quiet", "--locked", "--manifest-path"])
        .arg(root().join("plugins/examples/acme-ai/Cargo.toml"))
        .arg("--target-dir")
        .arg(target())
        // Builds in a third of the time.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "cargo {command}: {}",
        String::from_utf8_lossy(&said)
    );
}

fn install(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(file_name(name));
    fs::copy(target().join("debug").join(file_name(name)), &library).unwrap();
    make_safe(&library);
    folder
}

async fn bridge_with(folder: &TempDir, adapter: &str, key: Option<&str>) -> Bridge {
    let path = folder.path().display().to_string();
    let mut variables = vec![
        ("BRIDGE_PLUGIN_PATH", path.as_str()),
        ("BRIDGE_ADAPTERS", adapter),
    ];
    variables.extend(key.map(|key| ("ACME_AI_API_KEY", key)));
    Bridge::with(&variables).await
}

#[tokio::test]
async fn the_example_is_built_and_tested_on_its_own_and_does_its_work() {
    tokio::task::spawn_blocking(|| ["build", "test"].map(cargo))
        .await
        .unwrap();
    let folder = install("acme-ai");

    let bridge = bridge_with(&folder, "acme-ai", None).await;
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(
        (status, &health["status"]),
        (StatusCode::OK, &json!("degraded")),
        "{health}"
    );
    let message = health["adapters"]["acme-ai"]["message"].as_str().unwrap();
    assert!(message.contains("ACME_AI_API_KEY"), "{message}");
    let result = bridge.api.run(quiet("t", "acme-1")).await;
    assert_eq!(result["errorCode"], "unauthenticated", "{result}");
    bridge.stop().await;

    let bridge = bridge_with(&folder, "acme-ai", Some("key-of-acme")).await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["status"], "healthy", "{health}");
    let (_, adapter) = bridge.api.get("/api/v2/adapters/acme-ai").await;
    assert_eq!(adapter["health"]["status"], "healthy", "{adapter}");
    // Printed in the guide.
    let profile = json!({
        "capabilities": ["streaming", "cost_tracking"],
        "nativeTools": [],
        "maxConcurrent": 20,
        "outputStrategies": ["stream"],
        "costTier": "low",
        "latencyProfile": "fast",
    });
    assert_eq!(adapter["profile"], profile, "{adapter}");
    assert!(!adapter.to_string().contains("key-of-acme"), "{adapter}");

    let sink = CallbackSink::start().await;
    let id = bridge
        .api
        .dispatch(owed("t", "acme-1", &sink.url("/cb")))
        .await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(
        (&result["status"], &result["output"]),
        (&json!("ok"), &json!("hello")),
        "{result}"
    );
    assert_eq!(result["modelProvider"], "acme");
    assert!(
        result["usage"]["totalTokens"].as_u64().unwrap() > 0,
        "{result}"
    );
    let events = bridge.api.events(&id).await;
    assert!(
        events.iter().any(|event| event["type"] == "assistant.text"),
        "{events:?}"
    );
    sink.until(1).await;

    // A missing capability is reported before anything is recorded.
    let body = with(
        quiet("other", "acme-1"),
        &json!({"requires": ["sandboxing"]}),
    );
    let (status, refusal) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refusal}");
    assert_eq!(refusal["code"], "NO_CAPABLE_ADAPTER");
}

#[tokio::test]
async fn an_adapter_in_c_owes_its_callback_like_any_other() {
    let source = "c-adapter/adapter.c";
    let text = fs::read_to_string(root().join("tests/fixtures").join(source)).unwrap();
    assert!(text.lines().count() <= 60, "an adapter in C is short");
    let folder = tempfile::tempdir().unwrap();
    compile(&folder.path().join(file_name("c-echo")), source, &[]);
    let bridge = bridge_with(&folder, "c-echo", None).await;
    let sink = CallbackSink::start().await;
    let id = bridge.api.dispatch(owed("t", "ok", &sink.url("/cb"))).await;
    let received = sink.until(1).await;
    let callback: serde_json::Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(callback["dispatchId"], json!(id));
    assert_eq!(
        (&callback["provider"], &callback["status"]),
        (&json!("c-echo"), &json!("ok"))
    );
    assert_eq!(callback["output"], "hello from C", "{callback}");
}
