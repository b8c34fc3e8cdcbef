//! The conformance checks of every adapter.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{ExecutionRequest, HealthStatus};
use forge_adapter_openclaw::OpenClaw;
use serde_json::json;

use crate::bench;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, _in_use) = runtime.block_on(bench::in_use());
    let named = |message: &str| ExecutionRequest {
        agent_id: "main".to_owned(),
        ..ExecutionRequest::sample(message)
    };
    conformance::check::<OpenClaw>(Options {
        config: bench::config(server.url()),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"url": "localhost"})),
        request: named("hello"),
        slow: Some(named("SLOW please")),
        failing: Some(named("FAIL400 now")),
        patience: std::time::Duration::from_secs(120),
        ..Options::default()
    })
    .assert_ok();
}
