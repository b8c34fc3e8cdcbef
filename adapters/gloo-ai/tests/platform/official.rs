//! Drives the fake with OpenAI's own client.

use std::process::Stdio;

use forge_test_model::gloo::{API_KEY, Gloo};
use serde_json::{Value, json};
use tokio::process::Command;

#[tokio::test]
async fn the_official_client_accepts_the_fake() {
    let python = tokio::task::spawn_blocking(forge_test_runtimes::openai);
    let python = python.await.unwrap();
    let gloo = Gloo::start().await;
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/platform/official_client.py"
    );
    let output = Command::new(python)
        .args([script, gloo.url(), API_KEY])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        seen,
        json!({
            "whole": ["pong: hello", 40, "mainline"],
            "streamed": "pong: hello",
            "usage": 40,
            "call": ["look", {"at": "Romans 8"}],
            "citations": 2,
            "sources": 2,
            "refused": {"FAIL429": [429, "RateLimitError"], "BLOCKED": [403, "PermissionDeniedError"]},
        })
    );
    assert_eq!(gloo.turned_away(), 0);
}
