//! Health in each state of the platform.

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_gloo_ai::GlooAi;
use forge_test_model::gloo::{API_KEY, CLIENT_ID, CLIENT_SECRET, Gloo};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::bench::{Bench, adapter};

#[tokio::test]
async fn health_is_what_the_platform_says() {
    let platform = Runtime::new().unwrap();
    let gloo = platform.spawn(Gloo::start()).await.unwrap();
    let client = json!({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET});
    let with_key = adapter(gloo.url(), json!({"api_key": API_KEY})).await;
    let with_client = adapter(gloo.url(), client).await;
    for adapter in [&with_key, &with_client] {
        sees(adapter, HealthStatus::Healthy, "").await;
    }
    let without = adapter(gloo.url(), json!({})).await;
    sees(&without, HealthStatus::Degraded, "GLOO_API_KEY").await;
    let wrong = adapter(
        gloo.url(),
        json!({"client_id": CLIENT_ID, "client_secret": "no"}),
    )
    .await;
    sees(&wrong, HealthStatus::Degraded, "GLOO_CLIENT_SECRET").await;

    platform.shutdown_background();
    for adapter in [&with_key, &with_client] {
        sees(adapter, HealthStatus::Offline, "GLOO_BASE_URL").await;
    }
}

#[tokio::test]
async fn a_key_that_was_refused_is_remembered() {
    let bench = Bench::with(json!({"api_key": "old"})).await;
    bench.say("hello").await.failed("unauthenticated");
    sees(&bench.adapter, HealthStatus::Degraded, "GLOO_API_KEY").await;
}

async fn sees(adapter: &GlooAi, status: HealthStatus, said: &str) {
    let health = adapter.check_health().await;
    assert_eq!(health.status, status, "{health:?}");
    assert!(health.message.unwrap_or_default().contains(said));
}
