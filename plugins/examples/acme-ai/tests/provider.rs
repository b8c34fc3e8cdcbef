//! The adapter guide's six tests, and the conformance checks.

use std::sync::{Arc, Mutex};

use forge_adapter_acme_ai::AcmeAi;
use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::serde_json::{Value, json};
use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter, ExecutionRequest, HealthStatus, Host, Manifest,
    serde_json,
};

async fn provider(config: Value) -> AcmeAi {
    let config = Config::try_from(config).unwrap();
    AcmeAi::initialize(Host::detached(), config).await.unwrap()
}

fn with_key() -> Value {
    json!({"ACME_AI_API_KEY": "sk-test"})
}

fn slow() -> ExecutionRequest {
    ExecutionRequest {
        task_id: "task-42".to_owned(),
        model: Some("acme-1-slow".to_owned()),
        ..ExecutionRequest::sample("word ".repeat(600))
    }
}

#[test]
fn exposes_provider_identity() {
    assert_eq!(AcmeAi::NAME, "acme-ai");
    assert_eq!(Manifest::of::<AcmeAi>().provider, "acme-ai");
}

#[tokio::test]
async fn returns_expected_capabilities() {
    let profile = provider(json!({})).await.capabilities();
    assert_eq!(
        serde_json::to_value(profile).unwrap(),
        json!({
            "capabilities": ["streaming", "cost_tracking"],
            "nativeTools": [],
            "maxConcurrent": 20,
            "outputStrategies": ["stream"],
            "costTier": "low",
            "latencyProfile": "fast",
        })
    );
}

#[tokio::test]
async fn reports_degraded_health_without_api_key() {
    let health = provider(json!({})).await.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    let health = provider(with_key()).await.check_health().await;
    assert_eq!(health.status, HealthStatus::Healthy);
}

#[tokio::test]
async fn cancels_active_task_and_returns_true() {
    let provider = provider(with_key()).await;
    let execution = provider.execute(slow(), Events::nowhere());
    tokio::pin!(execution);
    tokio::select! {
        biased;
        result = &mut execution => panic!("ended before it was cancelled: {result:?}"),
        cancelled = provider.cancel("task-42") => assert!(cancelled.unwrap()),
    }
    assert_eq!(execution.await.unwrap_err().code, "cancelled");
    assert!(!provider.cancel("task-42").await.unwrap());
}

#[tokio::test]
async fn returns_false_when_cancelling_unknown_task() {
    assert!(
        !provider(with_key())
            .await
            .cancel("nonexistent")
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn swallows_listener_errors_without_breaking_other_listeners() {
    let events = Events::nowhere();
    let heard: Arc<Mutex<Vec<AdapterEvent>>> = Arc::default();
    events.on_event(|_| panic!("boom"));
    let recorder = Arc::clone(&heard);
    events.on_event(move |event| recorder.lock().unwrap().push(event.clone()));

    let request = ExecutionRequest::sample("hello");
    let result = provider(with_key()).await.execute(request, events).await;

    assert_eq!(result.unwrap().output.as_deref(), Some("hello"));
    assert_eq!(*heard.lock().unwrap(), [AdapterEvent::text("hello")]);
}

#[test]
fn conforms() {
    conformance::check::<AcmeAi>(Options {
        config: with_key(),
        health_without_config: HealthStatus::Degraded,
        slow: Some(slow()),
        failing: Some(ExecutionRequest {
            model: Some("acme-0".to_owned()),
            ..ExecutionRequest::sample("hello")
        }),
        ..Options::default()
    })
    .assert_ok();
}
