//! The conformance checks.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_command::Command;
use serde_json::json;

#[test]
fn conforms() {
    let script = "read -r task
        case $task in slow*) echo begun; exec sleep 300;; fail*) exit 4;; esac
        echo \"pong: $task\"; echo 'USAGE {\"i\":1,\"o\":2}'"
        .replace('{', "{{");
    conformance::check::<Command>(Options {
        config: json!({"program": "sh", "args": ["-c", script, "sh", ["{session_id}"]], "max_concurrent": 3,
            "usage_line": "USAGE ", "usage": {"input_tokens": "/i", "output_tokens": "/o"}}),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"args": ["{nothing}"]})),
        profile: Some(Profile {
            capabilities: ["streaming", "session_resume", "file_io", "cost_tracking"].map(str::to_owned).into(),
            native_tools: Vec::new(),
            max_concurrent: 3,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::File],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("slow please")),
        failing: Some(ExecutionRequest::sample("fail now")),
        ..Options::default()
    })
    .assert_ok();
}
