//! The checks that every adapter has to pass.

use forge_adapter_acp::Acp;
use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_test_model::Model;

use crate::bench::Agent;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let model = runtime.block_on(Model::start());
    let home = tempfile::tempdir().unwrap();
    let mut config = Agent::Hermes.config(model.url(), home.path());
    config["max_concurrent"] = 2.into();
    config["native_tools"] = serde_json::json!(["terminal"]);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    conformance::check::<Acp>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(serde_json::json!({"permission": "sometimes"})),
        profile: Some(Profile {
            capabilities: names(&[
                "streaming",
                "session_resume",
                "file_io",
                "mcp_servers",
                "cost_tracking",
                "native_tools",
            ]),
            native_tools: names(&["terminal"]),
            max_concurrent: 2,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::File],
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        patience: std::time::Duration::from_secs(30),
    })
    .assert_ok();
}
