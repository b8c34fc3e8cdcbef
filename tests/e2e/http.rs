//! The adapter `http` with a real server: another bridge, which runs the dispatches on echo.

use serde_json::{Value, json};

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
