//! The conformance checks of every adapter.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_claude_agent_sdk::ClaudeAgentSdk;
use forge_test_model::Model;
use serde_json::json;

use crate::bench;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime.block_on(Model::start());
    let home = tempfile::tempdir().unwrap();
    let mut config = bench::config(model.url(), home.path());
    config["max_concurrent"] = 2.into();
    config["tools"] = json!(["Bash", "Edit"]);
    conformance::check::<ClaudeAgentSdk>(Options {
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
                "subagents",
                "cost_tracking",
                "structured_output",
                "native_tools",
                "attachments",
            ]),
            native_tools: names(&["Bash", "Edit"]),
            max_concurrent: 2,
            output_strategies: vec![
                OutputStrategy::Stream,
                OutputStrategy::Structured,
                OutputStrategy::File,
            ],
            options: vec!["reasoning".to_owned()],
            cost_tier: CostTier::High,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        transient: Some(ExecutionRequest::sample("FAIL429 now")),
        retracting: Some(ExecutionRequest::sample("FAULTONCE CUTOFF please answer")),
        attaching: Some(ExecutionRequest::sample("MEDIATYPES")),
        // Steered as soon as the program has the task, long before the answer.
        steerable: Some(ExecutionRequest::sample("hello")),
        patience: std::time::Duration::from_secs(30),
        ..Options::default()
    })
    .assert_ok();
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
