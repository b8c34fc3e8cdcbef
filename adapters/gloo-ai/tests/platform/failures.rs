//! Failures of runs.

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest};
use forge_test_model::gloo::{API_KEY, Gloo};
use forge_test_support::execution::run_until;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::bench::{Bench, adapter};

#[tokio::test]
async fn a_refusal_becomes_a_code() {
    let bench = Bench::with(json!({"api_key": API_KEY, "model_retries": 0})).await;
    for (message, code, retryable) in [
        ("FAIL400", "invalid_request", false),
        ("FAIL401", "unauthenticated", false),
        ("FAIL429", "rate_limited", true),
        ("FAIL500", "upstream_error", true),
        ("FAIL503", "upstream_error", true),
        ("BLOCKED", "blocked_by_policy", false),
    ] {
        let ran = bench.say(message).await;
        ran.failed(code);
        assert_eq!(ran.result.retryable, Some(retryable), "{message}");
        assert_eq!(ran.result.usage.output_tokens, None, "unknown is not 0");
        assert_eq!(ran.result.cost_usd, None);
    }
    // Without guardrails, 403 is a matter of permission.
    let direct = Bench::with(json!({"api_key": API_KEY, "surface": "direct"})).await;
    direct.say("FAIL403").await.failed("unauthenticated");
    direct.say("BLOCKED").await.succeeded();
}

#[tokio::test]
async fn a_model_without_tools_says_so() {
    let bench = Bench::new().await;
    let mut request = ExecutionRequest::sample("hello");
    request.model = Some("gloo-deepseek-r1".to_owned());
    request.tools = serde_json::from_value(json!([{"name": "look", "inputSchema": {}}])).unwrap();
    let ran = bench.run(request).await;
    assert!(
        ran.failed("invalid_request")
            .contains("does not support function calling")
    );
}

#[tokio::test]
async fn a_half_or_malformed_stream_is_an_error_that_keeps_what_was_said() {
    let bench = Bench::new().await;
    for (message, said) in [("CUTSHORT", "ended before"), ("GARBLED", "not JSON")] {
        let ran = bench.say(message).await;
        assert!(ran.failed("upstream_error").contains(said));
        assert_eq!(ran.result.retryable, Some(true));
        let kept = format!("pong: {message}");
        assert_eq!(ran.result.output.as_deref(), Some(kept.as_str()));
    }
}

#[tokio::test]
async fn a_run_is_cancelled_in_the_middle() {
    let bench = Bench::new().await;
    let request = ExecutionRequest::sample("SLOW please");
    let handle = request.task_id.clone();
    let ran = run_until(&bench.adapter, request, "assistant.text", async || {
        assert!(bench.adapter.cancel(&handle).await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    assert!(ran.result.output.unwrap().starts_with("tick000"));
    assert!(!bench.adapter.cancel(&handle).await.unwrap());
}

#[tokio::test]
async fn a_platform_that_dies_in_the_middle_is_an_error() {
    let platform = Runtime::new().unwrap();
    let gloo = platform.spawn(Gloo::start()).await.unwrap();
    let adapter = adapter(gloo.url(), json!({"api_key": API_KEY})).await;
    let ran = run_until(
        &adapter,
        ExecutionRequest::sample("SLOW please"),
        "assistant.text",
        async || {
            platform.shutdown_background();
        },
    )
    .await;
    ran.failed("upstream_error");
    assert_eq!(ran.result.retryable, Some(true));
    assert!(ran.result.output.unwrap().starts_with("tick000"));
}

#[tokio::test]
async fn a_refusal_that_can_pass_is_asked_again_before_the_first_text() {
    let bench = Bench::new().await;
    let ran = bench.say("FAILONCE503 then fine").await;
    ran.succeeded();
    let retries = ran.all("model.retrying");
    assert_eq!(retries.len(), 1);
    assert_eq!(retries[0]["reason"], "overloaded");
    assert_eq!(bench.gloo.requests().len(), 2);
    assert_eq!(ran.result.usage.output_tokens, Some(9), "of one answer");
    let ran = bench.say("CUTSHORT").await;
    ran.failed("upstream_error");
    assert_eq!(bench.gloo.requests().len(), 3, "a text had begun");
}
