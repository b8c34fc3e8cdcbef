//! The conformance checks.

use std::time::Duration;

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionRequest, HealthStatus, LatencyProfile, OutputStrategy, Profile,
};
use forge_adapter_http::HttpAdapter;
use serde_json::json;

use crate::bench;
use crate::server::Server;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let mut config = bench::config(&server.url);
    config["max_concurrent"] = 3.into();
    config["cost_tier"] = "low".into();
    conformance::check::<HttpAdapter>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"url": "ftp://x"})),
        profile: Some(Profile {
            capabilities: ["streaming", "session_resume"].map(str::to_owned).into(),
            native_tools: Vec::new(),
            max_concurrent: 3,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("never")),
        failing: Some(ExecutionRequest::sample("503")),
        transient: Some(ExecutionRequest::sample("429")),
        retry_after: Some(Duration::from_secs(7)),
        ..Options::default()
    })
    .assert_ok();
}
