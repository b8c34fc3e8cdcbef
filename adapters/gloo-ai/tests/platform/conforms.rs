//! The conformance checks of every adapter.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_gloo_ai::GlooAi;
use forge_test_model::gloo::{API_KEY, Gloo};
use serde_json::json;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gloo = runtime.block_on(Gloo::start());
    conformance::check::<GlooAi>(Options {
        config: json!({"GLOO_BASE_URL": gloo.url(), "GLOO_API_KEY": API_KEY, "model_retries": 0}),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"surface": "open"})),
        profile: Some(Profile {
            capabilities: ["streaming", "session_resume", "cost_tracking"]
                .map(str::to_owned)
                .to_vec(),
            native_tools: Vec::new(),
            max_concurrent: 20,
            output_strategies: vec![OutputStrategy::Stream],
            options: ["maxOutputTokens", "temperature"]
                .map(str::to_owned)
                .to_vec(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        transient: Some(ExecutionRequest::sample("FAIL429")),
        ..Options::default()
    })
    .assert_ok();
}
