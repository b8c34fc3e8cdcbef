//! The adapter `http` with a real server: another bridge, which runs the dispatches on echo.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::harness::api::with;
use super::harness::process::Home;
use super::harness::{Bridge, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A bridge that dispatches to another one, and that other one.
struct Pair {
    front: Bridge,
    back: Bridge,
}

impl Pair {
    async fn start(further: &str) -> Self {
        let back = Bridge::with(&[("BRIDGE_CALLBACK_SECRETS", SECRET)]).await;
        let file = format!(
            "[adapters.custom]\nlibrary = \"http\"\nurl = \"{}/api/v2/dispatch\"\n{further}",
            back.api.url
        );
        let front = Bridge::configured(&file, &[("BRIDGE_ADAPTERS", "custom")]).await;
        Self { front, back }
    }

    async fn stop(self) {
        Box::pin(self.front.stop()).await;
        Box::pin(self.back.stop()).await;
    }
}

fn task(name: &str, model: &str) -> Value {
    json!({"taskId": name, "agentId": "agent", "message": "hello", "model": model, "callbackUrl": null})
}

#[tokio::test]
async fn another_bridge_does_the_work_and_is_asked_or_calls_back() {
    let callback = format!("poll_seconds = 3600\nsecret = \"{SECRET}\"\ncallback = {{}}\n");
    for further in ["poll_seconds = 0.05\n", &callback] {
        let pair = Pair::start(further).await;
        let result = pair.front.api.run(task("t", "ok")).await;
        assert_eq!(result["status"], "ok", "{result}");
        let there = pair.back.api.record("t").await;
        assert_eq!(result["output"], there["result"]["output"]);
        assert_eq!(result["usage"], there["result"]["usage"]);
        assert_eq!(there["status"], "finished");
        if further == callback {
            let id = there["dispatchId"].as_str().unwrap();
            pair.back.api.delivery_is(id, "delivered").await;
        }
        pair.stop().await;
    }
}

#[tokio::test]
async fn a_cancel_goes_through_both_bridges() {
    let pair = Pair::start("poll_seconds = 0.05\n").await;
    let id = pair.front.api.dispatch(task("t", "slow:60000")).await;
    until("the other bridge to run it", || async {
        let (status, record) = pair.back.api.get("/api/v2/dispatch/t").await;
        (status == 200 && record["status"] == "running").then_some(())
    })
    .await;
    assert!(pair.front.api.cancel(&id).await);
    let record = pair.front.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    let there = pair.back.api.finished("t").await;
    assert_eq!(there["result"]["errorCode"], "cancelled", "{there}");
    pair.stop().await;
}

#[tokio::test]
async fn without_the_server_it_is_offline_and_without_an_address_degraded() {
    let bridge = Bridge::configured(
        "[adapters.custom]\nlibrary = \"http\"\nurl = \"http://127.0.0.1:1/run\"\n",
        &[("BRIDGE_ADAPTERS", "custom,http")],
    )
    .await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(
        health["adapters"]["custom"]["status"], "offline",
        "{health}"
    );
    assert_eq!(health["adapters"]["http"]["status"], "degraded", "{health}");
    bridge.stop().await;
}

/// Streams a session and a text, and the end of the answer with every attempt but the first.
async fn attempt(body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let attempt = request["attempt"].as_u64().unwrap();
    let mut lines = vec![
        json!({"type": "session.updated", "data": {"sessionId": "s"}}),
        json!({"type": "assistant.text", "data": {"delta": format!("text {attempt}")}}),
    ];
    lines.extend((attempt > 1).then(|| json!({"status": "ok"})));
    let lines = lines
        .into_iter()
        .map(|line| Ok::<_, std::io::Error>(format!("{line}\n")));
    let body = Body::from_stream(stream::iter(lines).chain(stream::pending()));
    ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

#[tokio::test]
async fn the_text_of_an_interrupted_attempt_is_withdrawn_unless_the_server_continues_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/run", listener.local_addr().unwrap());
    let server = axum::serve(listener, Router::new().route("/run", post(attempt)));
    let server = TaskTracker::new().spawn(server.into_future());
    let whole = ("text 1text 2".to_owned(), Vec::new());
    let last = ("text 2".to_owned(), vec![json!(1)]);
    for (capabilities, recovery, expected) in [
        (r#"["session_resume"]"#, "retry", &last),
        (r#"["session_resume"]"#, "resume", &last),
        (r#"["session_resume", "continuation"]"#, "retry", &last),
        (r#"["session_resume", "continuation"]"#, "resume", &whole),
    ] {
        let mut home = Home::new(&[("BRIDGE_ADAPTERS", "http")]);
        let file = home.dir.path().join("bridge.toml");
        let table = format!("[adapters.http]\nurl = {url:?}\ncapabilities = {capabilities}\n");
        std::fs::write(&file, table).unwrap();
        home.set("BRIDGE_CONFIG", file.to_str().unwrap());
        let bridge = home.start();
        let body = with(task("t", "m"), &json!({"recovery": recovery}));
        let id = bridge.api.dispatch(body).await;
        bridge.api.told(&id, "assistant.text", 1).await;
        bridge.kill();
        let bridge = home.start();
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["output"], "text 2", "{record}");
        let found = bridge.api.kept_text(&id).await;
        assert_eq!(&found, expected, "{capabilities} {recovery}");
    }
    server.abort();
}
