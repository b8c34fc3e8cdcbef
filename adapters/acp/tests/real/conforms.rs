//! The conformance checks of every adapter, against the script: they start an agent more than a dozen times.

use forge_adapter_acp::Acp;
use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use serde_json::json;

#[test]
fn conforms() {
    check(0);
}

#[test]
fn conforms_with_a_warm_process() {
    check(1);
}

fn check(warm: usize) {
    let script = format!("{}/tests/real/agent.py", env!("CARGO_MANIFEST_DIR"));
    let config = json!({
        "program": "python3", "args": [script, "plain"], "max_concurrent": 2, "native_tools": ["terminal"],
        "warm": warm,
    });
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    conformance::check::<Acp>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"permission": "sometimes"})),
        profile: Some(Profile {
            capabilities: names(&[
                "streaming",
                "session_resume",
                "continuation",
                "file_io",
                "mcp_servers",
                "cost_tracking",
                "native_tools",
                "attachments",
            ]),
            native_tools: names(&["terminal"]),
            max_concurrent: 2,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::File],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        attaching: Some(ExecutionRequest::sample("hello")),
        patience: std::time::Duration::from_secs(30),
        ..Options::default()
    })
    .assert_ok();
}
