//! The checks that every adapter has to pass.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{ExecutionRequest, HealthStatus};
use forge_adapter_claude_agent_sdk::ClaudeAgentSdk;
use serde_json::json;

use crate::bench;
use crate::model::Model;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let model = runtime.block_on(Model::start());
    let home = tempfile::tempdir().unwrap();
    conformance::check::<ClaudeAgentSdk>(Options {
        config: bench::config(model.url(), home.path()),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"permission": "sometimes"})),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        patience: std::time::Duration::from_secs(30),
        ..Options::default()
    })
    .assert_ok();
}
