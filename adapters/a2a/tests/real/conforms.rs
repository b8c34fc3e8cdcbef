//! The conformance checks of every adapter.

use std::time::Duration;

use forge_adapter_a2a::A2a;
use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_test_model::Model;
use serde_json::json;

use crate::bench::{Agent, config};

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime.block_on(Model::start());
    let agent = runtime.block_on(Agent::start(&model, "both", "t0ken"));
    let mut config = config(&agent.url);
    config["max_concurrent"] = 3.into();
    conformance::check::<A2a>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"version": "2.0"})),
        profile: Some(Profile {
            capabilities: ["streaming", "session_resume", "attachments"]
                .map(str::to_owned)
                .into(),
            native_tools: Vec::new(),
            max_concurrent: 3,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("BOOM")),
        attaching: Some(ExecutionRequest::sample("MEDIATYPES")),
        patience: Duration::from_secs(15),
        ..Options::default()
    })
    .assert_ok();
}
