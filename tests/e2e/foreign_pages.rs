//! Pages of others in a real browser, and the local agent.

use serde_json::json;

use super::harness::{Answer, Bridge, CallbackSink, browser};
use super::signals::agent_url;

#[tokio::test]
async fn pages_of_others_change_and_read_nothing() {
    let host = CallbackSink::start().await;
    let page = Answer::status(200).header("content-type", "text/html");
    host.answer(page.body("<!doctype html><title>page</title><body></body>"));
    let bridge = Bridge::start().await;
    let page = host.url("/").replace("127.0.0.1", "localhost");
    let agent = agent_url(&bridge).await;
    browser::run("foreign.mjs", &[&page, &agent, &bridge.api.url]).await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["sessions"], json!(0), "{health}");
    let log = bridge.api.event_log().await;
    let of_signals =
        |event: &&serde_json::Value| event["type"].as_str().unwrap().starts_with("signal.");
    assert_eq!(log.iter().filter(of_signals).count(), 0, "{log:?}");
    bridge.stop().await;
}
