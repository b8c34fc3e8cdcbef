//! The conformance checks of every adapter.

use std::time::Duration;

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::options::ALL;
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_vercel_ai::VercelAi;
use forge_test_model::Model;
use serde_json::json;

use crate::bench;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let model = runtime.block_on(Model::start());
    let capabilities = [
        "streaming",
        "session_resume",
        "mcp_servers",
        "tool_rounds",
        "cost_tracking",
        "structured_output",
        "attachments",
    ];
    let mut config = bench::config(model.url());
    config["model_retries"] = 0.into();
    conformance::check::<VercelAi>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"mode": "nowhere"})),
        profile: Some(Profile {
            capabilities: capabilities.map(str::to_owned).to_vec(),
            native_tools: Vec::new(),
            max_concurrent: 64,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
            options: ALL[..5].iter().map(|&name| name.to_owned()).collect(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        transient: Some(ExecutionRequest::sample("FAIL429 RETRYAFTER7")),
        retry_after: Some(Duration::from_secs(7)),
        attaching: Some(ExecutionRequest::sample("MEDIATYPES")),
        ..Options::default()
    })
    .assert_ok();
}
