//! MCP servers that dispatches can do without (`mcp.required = false`).

use serde_json::json;

use super::tools::{Pids, asks, bridge};

#[tokio::test]
async fn a_server_that_is_not_required_is_an_event_and_the_others_are_used() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "required = false", &[]).await;
    let body = asks(
        "t",
        "tools",
        r#"{"mcp__fixture__add":{"a":2,"b":3}}"#,
        &json!({"mcpServers": ["missing", "fixture"]}),
    );
    let id = bridge.api.dispatch(body).await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(
        (&result["status"], &result["output"]),
        (&json!("ok"), &json!("5")),
        "{result}"
    );
    let events = bridge.api.events(&id).await;
    let told = events
        .iter()
        .find(|event| event["data"]["kind"] == "mcp_server_unavailable")
        .unwrap();
    assert_eq!(told["data"]["server"], "missing", "{told}");
    bridge.stop().await;
}
