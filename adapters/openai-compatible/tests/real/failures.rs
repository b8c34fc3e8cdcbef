//! Failures: the server, the stream, the settings, cancellation.

use std::sync::Mutex;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus, Usage};
use forge_test_model::accidents::{self, Outcome, Wire};
use forge_test_model::{Answer, Model};
use forge_test_support::conversation::every_order;
use forge_test_support::execution::{run, run_until};
use forge_test_support::instance::with_members;
use serde_json::json;

use crate::bench::{Bench, adapter, config};

#[tokio::test]
async fn what_the_server_refuses_has_a_code_and_a_hint_whether_to_try_again() {
    let bench = Bench::with(&json!({"model_retries": 0})).await;
    for (status, code, retryable) in [
        (400, "invalid_request", false),
        (401, "unauthenticated", false),
        (429, "rate_limited", true),
        (500, "upstream_error", true),
        (529, "upstream_error", true),
    ] {
        let ran = bench.say(&format!("FAIL{status} now")).await;
        ran.failed_with(code, &format!("fake failure {status}"));
        assert_eq!(ran.result.retryable, Some(retryable), "{status}");
        let details = ran.result.details.as_ref().unwrap();
        assert_eq!(details["status"], status, "{details}");
        assert_eq!(ran.result.usage, Usage::default(), "not reported");
    }
}

#[tokio::test]
async fn the_server_says_when_to_come_again() {
    let bench = Bench::with(&json!({"model_retries": 0})).await;
    let ran = bench.say("FAIL429 RETRYAFTER7").await;
    ran.failed_with("rate_limited", "429");
    assert_eq!(ran.result.retry_after_ms, Some(7_000));
}

#[tokio::test]
async fn broken_streams_are_errors_with_the_text_so_far() {
    let bench = Bench::new().await;
    for (marker, said) in [
        ("CUTOFF", "broke off"),
        ("ENDEARLY", "ended before the answer did"),
        ("HALFEVENT", "in the middle of an event"),
        ("GARBLED", "not JSON"),
    ] {
        let ran = bench.say(&format!("{marker} in the middle of it")).await;
        ran.failed_with("upstream_error", said);
        assert_eq!(ran.result.retryable, Some(marker != "GARBLED"), "{marker}");
        assert!(
            ran.output().starts_with("pong: "),
            "{marker}: {}",
            ran.output()
        );
    }
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_is_told() {
    let bench = Bench::new().await;
    let Bench { adapter, model } = bench;
    let model = Mutex::new(Some(model));
    let ran = run_until(
        &adapter,
        ExecutionRequest::sample("SLOW please"),
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

#[tokio::test]
async fn a_cancelled_run_keeps_its_text() {
    let bench = Bench::new().await;
    for (message, kind) in [
        ("SLOW please", "assistant.text"),
        ("HANG", "session.updated"),
    ] {
        let request = ExecutionRequest::sample(message);
        let ran = run_until(&bench.adapter, request, kind, async || {
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

#[tokio::test]
async fn a_server_may_be_silent_only_so_long() {
    let bench = Bench::with(&json!({"silence_seconds": 0.2, "model_retries": 0})).await;
    let ran = bench.say("HANG").await;
    ran.failed_with("upstream_error", "within 200ms");
    assert_eq!(ran.result.retryable, Some(true));
}

#[tokio::test]
async fn health_is_what_the_server_says() {
    let model = Model::start().await;
    let with = |members| with_members(config(model.url()), &members);
    for (config, status, said) in [
        (with(json!({})), HealthStatus::Healthy, ""),
        (
            with(json!({"health_path": "/nothing"})),
            HealthStatus::Degraded,
            "health_path",
        ),
        (
            with(json!({"base_url": "http://127.0.0.1:1/v1"})),
            HealthStatus::Offline,
            "127.0.0.1:1",
        ),
        (
            json!({}),
            HealthStatus::Degraded,
            "OPENAI_COMPATIBLE_BASE_URL",
        ),
    ] {
        let health = adapter(config).await.check_health().await;
        assert_eq!(health.status, status, "{health:?}");
        assert!(health.message.unwrap_or_default().contains(said));
    }
}

#[tokio::test]
async fn without_an_address_a_run_says_what_to_do() {
    let adapter = adapter(json!({})).await;
    let ran = run(&adapter, ExecutionRequest::sample("hello")).await;
    ran.failed_with("adapter_unavailable", "adapters.openai-compatible.base_url");
}

#[tokio::test]
async fn tools_are_refused_where_the_server_takes_none() {
    let bench = Bench::with(&json!({"tools": "off"})).await;
    let mut request = ExecutionRequest::sample("hello");
    request.tools = vec![serde_json::from_value(json!({"name": "a", "inputSchema": {}})).unwrap()];
    bench
        .run(request)
        .await
        .failed_with("invalid_request", "takes no tools");
    assert!(bench.model.requests().is_empty());
}

#[tokio::test]
async fn accidents_are_answers_retries_or_errors_with_their_cause() {
    let bench = Bench::new().await;
    for accident in accidents::all(Wire::Chat) {
        bench.model.script(accident.answers.clone());
        let ran = bench.say("hello").await;
        let is_again = ran.output().starts_with("pong");
        let retries = ran.all("model.retrying");
        let reasons: Vec<_> = retries.iter().map(|data| data["reason"].as_str()).collect();
        let (code, text) = (&ran.result.error_code, ran.result.error.as_deref());
        let name = accident.name;
        match accident.outcome {
            Outcome::Answer => assert_eq!(ran.output(), "an answer", "{name}"),
            Outcome::Retried(reason) => {
                assert_eq!((is_again, reasons), (true, vec![Some(reason)]), "{name}");
            }
            Outcome::Failed(wanted, said) => {
                assert_eq!(
                    (code.as_deref(), retries.len()),
                    (Some(wanted), 0),
                    "{name}: {text:?}"
                );
                assert!(
                    text.is_some_and(|text| text.contains(said)),
                    "{name}: {text:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_asked_again_and_then_named() {
    let table = json!({"base_url": "http://127.0.0.1:1/v1", "model_retries": 1});
    let ran = run(&adapter(table).await, ExecutionRequest::sample("hello")).await;
    ran.failed_with("upstream_error", "127.0.0.1:1 could not be reached");
    assert_eq!(ran.all("model.retrying")[0]["reason"], "unreachable");
}

#[tokio::test]
async fn no_turn_makes_the_next_one_fail() {
    every_order(&Bench::new().await.adapter, None).await;
}

#[tokio::test]
async fn another_model_answers_when_the_first_one_stays_busy() {
    let bench = Bench::with(&json!({"model_retries": 0, "fallback": ["fake-1", "fake-2"]})).await;
    // The tokens of the first model are told before the next one is asked: the bridge attributes them.
    let counted = json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0}});
    let refusal = json!({"error": {"message": "no room", "code": 503}});
    bench.model.script([Answer::events(&[counted, refusal])]);
    let ran = bench.say("hello").await;
    let kinds: Vec<_> = ran.events.iter().map(|event| event.kind.as_str()).collect();
    let at = |kind: &str| kinds.iter().position(|found| *found == kind);
    assert!(at("usage") < at("model.fallback"), "{kinds:?}");
    assert_eq!(ran.all("usage")[0]["inputTokens"], 7);
    assert_eq!(ran.result.usage.input_tokens, Some(38));
    assert_eq!(ran.succeeded(), "pong: hello");
    assert_eq!(ran.result.model.as_deref(), Some("fake-2"));
    assert_eq!(ran.all("model.fallback")[0]["to"], "fake-2");
    assert_eq!(bench.asked()["model"], "fake-2");
}
