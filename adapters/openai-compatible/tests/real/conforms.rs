//! The conformance checks.

use std::time::Duration;

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::options::ALL;
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_openai_compatible::OpenAiCompatible;
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
    let mut config = bench::config(model.url());
    config["model_retries"] = 0.into();
    config["prices"] = json!({"fake-1": {"input": 1.0, "output": 2.0}});
    let capabilities = [
        "streaming",
        "session_resume",
        "attachments",
        "cost_tracking",
        "structured_output",
    ];
    conformance::check::<OpenAiCompatible>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"base_url": "nowhere"})),
        profile: Some(Profile {
            capabilities: capabilities.map(str::to_owned).to_vec(),
            native_tools: Vec::new(),
            max_concurrent: 64,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
            options: ALL.map(str::to_owned).to_vec(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Variable,
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
