//! Failures of the server, the stream and the settings; cancellation.

use std::sync::Mutex;

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus, Usage};
use forge_test_model::Model;
use forge_test_support::execution::{run, run_until};
use serde_json::json;

use crate::bench::{Bench, MODELS, adapter, config, to};

#[tokio::test]
async fn what_a_server_refuses_has_a_code_and_a_hint_whether_to_try_again() {
    let bench = Bench::with(&json!({"model_retries": 0})).await;
    for model in MODELS {
        for (status, code, retryable) in [
            (400, "invalid_request", false),
            (401, "unauthenticated", false),
            (429, "rate_limited", true),
            (500, "upstream_error", true),
            (529, "upstream_error", true),
        ] {
            let ran = bench
                .run(to(model, &format!("FAIL{status} RETRYAFTER7")))
                .await;
            ran.failed_with(code, &format!("fake failure {status}"));
            assert_eq!(ran.result.retryable, Some(retryable), "{model} {status}");
            assert_eq!(ran.result.retry_after_ms, Some(7_000));
            assert_eq!(ran.result.usage, Usage::default(), "no usage reported");
        }
    }
}

#[tokio::test]
async fn broken_streams_are_errors_and_never_an_answer() {
    let bench = Bench::new().await;
    for model in MODELS {
        for (marker, said) in [
            ("CUTOFF", "broke off"),
            ("ENDEARLY", "ended before the answer did"),
            ("HALFEVENT", "in the middle of an event"),
            ("GARBLED", "JSON"),
        ] {
            let ran = bench
                .run(to(model, &format!("{marker} in the middle of it")))
                .await;
            ran.failed_with("upstream_error", said);
            assert_eq!(
                ran.result.retryable,
                Some(marker != "GARBLED"),
                "{model} {marker}"
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_is_told() {
    for name in MODELS {
        let Bench { adapter, model } = Bench::new().await;
        let model = Mutex::new(Some(model));
        let ran = run_until(
            &adapter,
            to(name, "SLOW please"),
            "assistant.text",
            async || {
                model.lock().unwrap().take().unwrap().kill();
            },
        )
        .await;
        ran.failed_with("upstream_error", "broke off");
        assert!(ran.output().starts_with("tick000"), "{}", ran.output());
        let health = adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Offline, "{health:?}");
    }
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_text() {
    let bench = Bench::new().await;
    for model in MODELS {
        for (message, kind) in [
            ("SLOW please", "assistant.text"),
            ("HANG", "session.updated"),
        ] {
            let ran = run_until(&bench.adapter, to(model, message), kind, async || {
                assert!(bench.adapter.cancel("task-sample").await.unwrap());
            })
            .await;
            ran.failed_with("cancelled", "cancelled");
            assert_eq!(
                ran.output().starts_with("tick000"),
                kind == "assistant.text"
            );
        }
    }
}

#[tokio::test]
async fn a_server_may_be_silent_only_so_long() {
    let bench = Bench::with(&json!({"silence_seconds": 0.2, "model_retries": 0})).await;
    for model in MODELS {
        let ran = bench.run(to(model, "HANG")).await;
        ran.failed_with("upstream_error", "within 200ms");
        assert_eq!(ran.result.retryable, Some(true));
    }
}

#[tokio::test]
async fn a_model_of_no_provider_is_reported_before_anything_is_sent() {
    let bench = Bench::new().await;
    for model in ["gpt-4.1", "acme/x", "openai/"] {
        bench
            .run(to(model, "hello"))
            .await
            .failed_with("invalid_request", "provider/model");
    }
    bench
        .run(to("google/../x?y", "hello"))
        .await
        .failed_with("invalid_request", "not a valid model name");
    assert!(bench.model.requests().is_empty());
}

#[tokio::test]
async fn without_a_key_a_run_says_what_to_do() {
    for (table, model, said) in [
        (json!({}), "openai/gpt-4.1", "OPENAI_API_KEY"),
        (
            json!({"mode": "gateway"}),
            "openai/gpt-4.1",
            "AI_GATEWAY_API_KEY",
        ),
        (
            json!({"mode": "sidecar"}),
            "openai/gpt-4.1",
            "VERCEL_AI_PACKAGES",
        ),
    ] {
        let adapter = adapter(table).await;
        let health = adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Degraded);
        assert!(health.message.unwrap().contains(said));
        let ran = run(&adapter, to(model, "hello")).await;
        ran.failed_with("adapter_unavailable", said);
    }
}

#[tokio::test]
async fn health_is_what_the_servers_say() {
    let model = Model::start().await;
    let healthy = config(model.url());
    let mut half = healthy.clone();
    half["providers"]["google"]["base_url"] = "http://127.0.0.1:1/v1beta".into();
    let mut gateway = healthy.clone();
    gateway["mode"] = "gateway".into();
    let mut gone = gateway.clone();
    gone["gateway"]["base_url"] = "http://127.0.0.1:1/v1".into();
    for (table, status) in [
        (healthy, HealthStatus::Healthy),
        (half, HealthStatus::Degraded),
        (gateway, HealthStatus::Healthy),
        (gone, HealthStatus::Offline),
    ] {
        let health = adapter(table).await.check_health().await;
        assert_eq!(health.status, status, "{health:?}");
    }
}
