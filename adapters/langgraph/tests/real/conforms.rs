//! The conformance checks of every adapter, and health.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    CostTier, ExecutionAdapter as _, ExecutionRequest, HealthStatus, LatencyProfile,
    OutputStrategy, Profile,
};
use forge_adapter_langgraph::LangGraph;
use forge_test_model::Model;
use forge_test_support::execution::run;
use serde_json::json;

use crate::bench;
use crate::fake::Fake;

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime.block_on(Model::start());
    let server = bench::server();
    let capabilities = [
        "streaming",
        "session_resume",
        "cost_tracking",
        "structured_output",
        "management",
    ];
    let mut config = bench::config(server.url(), model.url());
    config["max_concurrent"] = 3.into();
    conformance::check::<LangGraph>(Options {
        config,
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"busy": "sometimes"})),
        profile: Some(Profile {
            capabilities: capabilities.map(str::to_owned).into(),
            native_tools: Vec::new(),
            max_concurrent: 3,
            output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
            options: Vec::new(),
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }),
        request: ExecutionRequest::sample("hello"),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        transient: Some(ExecutionRequest::sample("FAIL429 now")),
        patience: std::time::Duration::from_secs(30),
        ..Options::default()
    })
    .assert_ok();
}

#[tokio::test]
async fn what_is_no_langgraph_server_is_degraded_with_the_cure() {
    let model = Model::start().await;
    let adapter = bench::adapter(bench::config(model.url(), model.url())).await;
    let health = adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains("LANGGRAPH_URL"));

    let unset = bench::adapter(json!({})).await;
    let health = unset.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains("LANGGRAPH_URL"));
    let ran = run(&unset, bench::request("hello")).await;
    ran.failed("adapter_unavailable");
}

#[tokio::test]
async fn the_key_is_sent_and_its_absence_is_degraded_with_the_cure() {
    let fake = Fake::locked("sesame").await;
    let with = async |key: &str| {
        let mut config = bench::config(fake.url(), "http://127.0.0.1:9");
        config["LANGGRAPH_API_KEY"] = key.into();
        let adapter = bench::adapter(config).await;
        (
            adapter.check_health().await,
            run(&adapter, bench::request("hello")).await,
        )
    };
    let (health, _) = with("sesame").await;
    assert_eq!(health.status, HealthStatus::Healthy, "{health:?}");
    for wrong in ["", "s3cret"] {
        let (health, ran) = with(wrong).await;
        assert_eq!(health.status, HealthStatus::Degraded);
        assert!(health.message.unwrap().contains("LANGGRAPH_API_KEY"));
        ran.failed("unauthenticated");
        assert!(!ran.result.error.unwrap().contains("s3cret"));
    }
}
