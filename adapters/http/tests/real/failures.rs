//! Failures: error responses, broken streams, servers that die, and cancellation.

use axum::http::Method;
use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_http::HttpAdapter;
use forge_test_support::deadline::until;
use forge_test_support::execution::run_until;
use forge_test_support::instance::initialize;
use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn a_refusal_has_a_code_and_a_hint_whether_to_try_again() {
    let bench = Bench::new().await;
    for (status, code, retryable) in [
        ("400", "invalid_request", false),
        ("401", "unauthenticated", false),
        ("429", "rate_limited", true),
        ("503", "upstream_error", true),
        // Redirects are not followed: the same request has the same answer.
        ("307", "upstream_error", false),
    ] {
        let ran = bench.say(status).await;
        let text = ran.failed(code);
        assert!(text.contains(status) && !text.contains("t0ken"), "{text}");
        assert_eq!(
            (ran.result.retryable, ran.result.retry_after_ms),
            (Some(retryable), Some(7000)),
            "{status}"
        );
    }
    assert_eq!(
        bench.say("fail").await.failed("odd"),
        "as asked",
        "the server's own words"
    );
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_an_error_that_keeps_the_text() {
    let bench = Bench::new().await;
    for (message, output) in [
        ("half", Some("ha")),
        ("cut", Some("ha")),
        ("odd", None),
        ("text", None),
        ("nothing", None),
        ("gone", None),
    ] {
        let ran = bench.say(message).await;
        let code = if message == "gone" {
            "invalid_request"
        } else {
            "upstream_error"
        };
        ran.failed(code);
        assert_eq!(ran.result.output.as_deref(), output, "{message}");
    }
}

#[tokio::test]
async fn no_address_but_the_configured_origin_is_called() {
    let bench = Bench::new().await;
    assert!(
        bench
            .say("elsewhere")
            .await
            .failed("upstream_error")
            .contains("another origin")
    );
}

#[tokio::test]
async fn a_silent_server_and_one_that_names_no_address_are_told() {
    let bench = Bench::new().await;
    let ran = bench.say("hang").await;
    ran.failed("upstream_error");
    assert_eq!(ran.result.retryable, Some(true));
    let adapter = initialize::<HttpAdapter>(json!({"url": bench.server.url})).await;
    let result = adapter
        .execute(bench.request("lost"), forge_adapter_api::Events::nowhere())
        .await
        .unwrap();
    assert!(result.error.unwrap().contains("statusUrl"));
}

#[tokio::test]
async fn a_cancel_is_passed_on_to_where_the_server_said() {
    let bench = Bench::new().await;
    let request = bench.request("slow");
    let ran = run_until(&bench.adapter, request, "assistant.text", async || {
        assert!(bench.adapter.cancel("task-sample").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    assert_eq!(bench.server.paths().last().unwrap(), "DELETE /runs/never");

    let cancelling = async {
        until(|| bench.server.last(&Method::GET).is_some()).await;
        assert!(bench.adapter.cancel("task-sample").await.unwrap());
    };
    let (ran, ()) = tokio::join!(bench.say("never"), cancelling);
    ran.failed("cancelled");
    assert_eq!(
        bench.server.paths().last().unwrap(),
        "POST /runs/never/cancel"
    );
}

#[tokio::test]
async fn a_run_that_is_dropped_is_taken_back() {
    let bench = Bench::new().await;
    let execution = bench.say("never");
    tokio::select! {
        _ = execution => panic!("it never ends"),
        () = until(|| bench.server.last(&Method::GET).is_some()) => {}
    }
    until(|| {
        bench
            .server
            .paths()
            .contains(&"POST /runs/never/cancel".to_owned())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_is_an_error_and_offline() {
    let Bench { adapter, server } = Bench::new().await;
    assert_eq!(
        adapter.check_health().await.status,
        HealthStatus::Healthy,
        "it accepts no GET, but is up"
    );
    let (events, mut seen) = forge_adapter_api::Events::channel(10);
    let execution = adapter.execute(forge_adapter_api::ExecutionRequest::sample("slow"), events);
    let killing = async {
        seen.recv().await.unwrap();
        drop(server);
        while seen.recv().await.is_some() {}
    };
    let (result, ()) = tokio::join!(execution, killing);
    let result = result.unwrap();
    assert_eq!(
        result.error_code.as_deref(),
        Some("upstream_error"),
        "{result:?}"
    );
    assert_eq!(
        (result.output.as_deref(), result.retryable),
        (Some("begun"), Some(true))
    );
    let health = adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Offline);
    assert!(health.message.unwrap().contains("start the server"));
}
