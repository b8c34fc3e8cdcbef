//! Pages of others in a real browser, and the local agent.

use std::path::Path;

use serde_json::json;
use tokio::process::Command;

use super::harness::{Answer, Bridge, CallbackSink};
use super::signals::agent_url;

#[tokio::test]
async fn pages_of_others_change_and_read_nothing() {
    let host = CallbackSink::start().await;
    let page = Answer::status(200).header("content-type", "text/html");
    host.answer(page.body("<!doctype html><title>page</title><body></body>"));
    let bridge = Bridge::start().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/browser/foreign.mjs");
    let output = Command::new(forge_test_runtimes::node())
        .arg(script)
        .arg(forge_test_runtimes::browser())
        .arg(host.url("/").replace("127.0.0.1", "localhost"))
        .args([&agent_url(&bridge).await, &bridge.api.url])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["sessions"], json!(0), "{health}");
    let log = bridge.api.event_log().await;
    let of_signals =
        |event: &&serde_json::Value| event["type"].as_str().unwrap().starts_with("signal.");
    assert_eq!(log.iter().filter(of_signals).count(), 0, "{log:?}");
    bridge.stop().await;
}
