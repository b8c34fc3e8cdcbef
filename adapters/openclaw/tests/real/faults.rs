//! A fake gateway for what a real one of this version does not do.

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_openclaw::OpenClaw;
use forge_test_support::instance::initialize;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

use crate::bench::{config, until};

/// Answers each handshake with this frame, then sends the message; returns its address.
async fn fake(answer: Value, message: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "a test server ends with its runtime"
    )]
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut socket) = accept_async(stream).await else {
                continue;
            };
            let challenge = json!({"type": "event", "event": "connect.challenge", "payload": {"nonce": "n", "ts": 1}});
            socket
                .send(Message::text(challenge.to_string()))
                .await
                .unwrap();
            socket.next().await;
            let mut frame = answer.clone();
            frame["type"] = "res".into();
            frame["id"] = "connect".into();
            // The adapter ends a connection whose message it does not take.
            let _ = socket.send(Message::text(frame.to_string())).await;
            if let Some(message) = &message {
                let _ = socket.send(Message::text(message.as_str())).await;
            }
            while let Some(Ok(_)) = socket.next().await {}
        }
    });
    url
}

fn hello(scopes: &[&str]) -> Value {
    json!({"ok": true, "payload": {"type": "hello-ok", "auth": {"scopes": scopes}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_handshake_says_how_to_repair_it() {
    let refused = |code: &str, details: Value| json!({"ok": false, "error": {"code": code, "message": "no", "details": details}});
    let older = json!({"code": "PROTOCOL_MISMATCH", "expectedProtocol": 3});
    let pairing = json!({"code": "PAIRING_REQUIRED", "requestId": "r-1"});
    for (answer, part) in [
        (refused("INVALID_REQUEST", older), "protocol 3"),
        (
            refused("NOT_PAIRED", pairing),
            "openclaw devices approve r-1",
        ),
        (
            hello(&["operator.read", "operator.write", "operator.approvals"]),
            "operator.admin",
        ),
    ] {
        let adapter: OpenClaw =
            initialize(config(&fake(answer, Some("{}".to_owned())).await)).await;
        let part = part.to_owned();
        until(&part, async || {
            let health = adapter.check_health().await;
            let found = health.message.unwrap_or_default().contains(&part);
            (found && health.status == HealthStatus::Degraded).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_no_protocol_or_too_large_end_the_connection() {
    let all = [
        "operator.read",
        "operator.write",
        "operator.admin",
        "operator.approvals",
    ];
    for (message, part) in [
        ("no JSON".to_owned(), "not OpenClaw's protocol"),
        ("x".repeat(100 << 20), "too long"),
    ] {
        let adapter: OpenClaw = initialize(config(&fake(hello(&all), Some(message)).await)).await;
        until(part, async || {
            let message = adapter.check_health().await.message.unwrap_or_default();
            message.contains(part).then_some(())
        })
        .await;
    }
}
