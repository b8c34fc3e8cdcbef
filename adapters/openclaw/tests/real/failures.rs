//! Failures of the provider and of the gateway; cancellation and timeouts.

use std::time::Duration;

use forge_adapter_api::{Events, ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_test_support::execution::run_until;
use forge_test_support::instance::initialize;
use futures_util::future::join_all;
use serde_json::json;

use crate::bench::{Bench, asked, request, until, used};

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_provider_has_its_code() {
    let bench = Bench::new().await;
    let refusals = [
        ("fake", "FAIL400", "invalid_request", false),
        ("locked", "FAIL401", "unauthenticated", false),
        ("unpaid", "FAIL402", "unauthenticated", false),
        ("barred", "FAIL403", "unauthenticated", false),
        ("limited", "FAIL429 USEDUP", "rate_limited", true),
    ];
    let runs = refusals.map(|(provider, message, code, retryable)| {
        let bench = &bench;
        async move {
            // After a refused key the gateway does not ask the provider again for a while.
            for n in 1..=3 {
                let refused = ExecutionRequest {
                    model: Some(format!("{provider}/fake-1")),
                    ..request(&format!("dsp_{provider}{n}"), message)
                };
                let ran = bench.run(refused).await;
                ran.failed(code);
                assert_eq!(ran.result.retryable, Some(retryable), "{provider}");
            }
        }
    });
    join_all(runs).await;
    let unknown = ExecutionRequest {
        model: Some("absent/fake-1".to_owned()),
        ..request("dsp_model", "hello")
    };
    bench.run(unknown).await.failed("invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_not_repeated_to_the_next_attempt() {
    let bench = Bench::new().await;
    let failed = bench.say("dsp_again", "FAIL400 once").await;
    failed.failed("invalid_request");
    // A session of its own, since the refused message stays in that of the first attempt.
    let again = ExecutionRequest {
        execution_id: "dsp_again/2".to_owned(),
        attempt: 2,
        session_id: Some("again".to_owned()),
        ..request("dsp_again", "hello again")
    };
    let ran = bench.run(again).await;
    ran.succeeded();
    used(&ran, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_not_there_is_refused_unless_another_is_configured() {
    let bench = Bench::new().await;
    let other = Bench::with(json!({"agent": "main"})).await;
    let long = "a".repeat(300);
    for (n, id) in ["absent", "../main", "a/b", "研究", "Main", &long]
        .into_iter()
        .enumerate()
    {
        let asks = |dispatch: &str| ExecutionRequest {
            agent_id: id.to_owned(),
            ..request(&format!("dsp_{dispatch}{n}"), "hello absent")
        };
        bench.run(asks("absent")).await.failed("invalid_request");
        if n < 2 {
            other.run(asks("fallback")).await.succeeded();
        }
    }
    assert_eq!(asked("hello absent").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_run_and_keeps_its_text() {
    let bench = Bench::new().await;
    let slow = request("dsp_cancelled", "SLOW please");
    let ran = run_until(&bench.adapter, slow, "assistant.text", async || {
        assert!(bench.adapter.cancel("task-dsp_cancelled").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    assert!(ran.output().starts_with("tick0"), "{:?}", ran.result);
    let command = r#"CALL exec {"command": "touch begun; sleep 60"}"#;
    let tool = request("dsp_tool_cancelled", command);
    let ran = run_until(&bench.adapter, tool, "tool.invoked", async || {
        assert!(
            bench
                .adapter
                .cancel("task-dsp_tool_cancelled")
                .await
                .unwrap()
        );
    })
    .await;
    ran.failed("cancelled");
    assert!(
        !bench
            .adapter
            .cancel("task-dsp_tool_cancelled")
            .await
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_and_a_dropped_execution_end_the_run() {
    let bench = Bench::new().await;
    let short = ExecutionRequest {
        timeout_seconds: 2.0,
        ..request("dsp_timeout", "HANG please")
    };
    bench.run(short).await.failed("timeout");
    let dropped = bench
        .adapter
        .execute(request("dsp_dropped", "SLOW dropped"), Events::nowhere());
    let begun = until("the run", async || {
        (!asked("SLOW dropped").is_empty()).then_some(())
    });
    tokio::select! {
        ended = dropped => panic!("{ended:?}"),
        () = begun => {}
    }
    // The gateway repeats the end of the aborted run.
    until("the abort", async || {
        let ran = bench.say("dsp_dropped", "SLOW dropped").await;
        (ran.result.error_code.as_deref() == Some("cancelled")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_what_is_wrong_and_how_to_repair_it() {
    let bench = Bench::new().await;
    assert_eq!(
        bench.adapter.check_health().await.status,
        HealthStatus::Healthy
    );
    let url = bench.server.url();
    let cases = [
        (json!({}), HealthStatus::Degraded, "OPENCLAW_URL"),
        (
            json!({"url": "ws://127.0.0.1:9"}),
            HealthStatus::Offline,
            "openclaw gateway run",
        ),
        (
            json!({"url": url, "token": "wrong-token"}),
            HealthStatus::Degraded,
            "OPENCLAW_TOKEN",
        ),
    ];
    // Executions wait for a connection for 5 s.
    let checks = cases.map(|(table, status, part)| async move {
        let adapter: forge_adapter_openclaw::OpenClaw = initialize(table).await;
        let health = adapter.check_health().await;
        let message = health.message.unwrap();
        assert_eq!(health.status, status, "{message}");
        assert!(
            message.contains(part) && !message.contains("wrong-token"),
            "{message}"
        );
        let ended = tokio::time::timeout(
            Duration::from_secs(7),
            forge_test_support::execution::run(&adapter, request("dsp_no_gateway", "hello")),
        );
        ended.await.unwrap().failed("adapter_unavailable");
    });
    join_all(checks).await;
}
