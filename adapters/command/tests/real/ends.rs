//! Runs that fail, are cancelled or are dropped.

use std::fs;
use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_command::Command;
use forge_test_support::deadline::until;
use forge_test_support::execution::run_until;
use forge_test_support::instance::initialize;
use forge_test_support::process;
use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn an_exit_code_is_an_error_with_the_end_of_stderr_and_no_secret() {
    let script = "read -r code; echo part; echo \"why $KEY\" >&2; exit $code";
    let bench = Bench::sh(script, json!({"env": {"KEY": "s3cret-value"}, "exit_codes": {"75": "rate_limited", "77": "unauthenticated"}})).await;
    for (exit, code, retryable) in [
        ("1", "adapter_error", false),
        ("75", "rate_limited", true),
        ("77", "unauthenticated", false),
    ] {
        let ran = bench.say(exit).await;
        let text = ran.failed(code);
        assert_eq!(
            text,
            format!("the program ended with exit code {exit}: why [REDACTED]")
        );
        assert_eq!(ran.result.retryable, Some(retryable));
        assert_eq!(ran.result.output.as_deref(), Some("part"));
    }
}

#[tokio::test]
async fn a_program_that_is_killed_has_crashed() {
    let bench = Bench::sh("echo begun; kill -KILL $$", json!({})).await;
    let ran = bench.say("a").await;
    assert!(ran.failed("adapter_crashed").contains("signal 9"));
    assert_eq!(
        (ran.result.retryable, ran.result.output.as_deref()),
        (Some(true), Some("begun"))
    );
}

#[tokio::test]
async fn a_cancel_asks_first_and_then_kills() {
    let polite = Bench::sh(
        "trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.05; done",
        json!({}),
    )
    .await;
    let deaf = Bench::sh(
        "trap '' TERM; echo begun; while :; do sleep 0.05; done",
        json!({"kill_after_seconds": 0.3}),
    )
    .await;
    for (bench, output) in [(polite, "begun\nbye"), (deaf, "begun")] {
        let request = bench.request("a");
        let ran = run_until(&bench.adapter, request, "assistant.text", async || {
            assert!(bench.adapter.cancel("task-sample").await.unwrap());
        })
        .await;
        ran.failed("cancelled");
        assert_eq!(ran.result.output.as_deref(), Some(output));
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_nothing_running() {
    let bench = Bench::sh(
        "trap '' TERM; sleep 300 & echo $! > pid; echo begun; wait",
        json!({}),
    )
    .await;
    let (events, mut seen) = forge_adapter_api::Events::channel(10);
    let execution = bench.adapter.execute(bench.request("a"), events);
    tokio::select! {
        result = execution => panic!("{result:?}"),
        event = seen.recv() => assert_eq!(event.unwrap().kind, "assistant.text"),
    }
    let pid = fs::read_to_string(bench.workspace.path().join("pid")).unwrap();
    until(|| !process::exists(&pid)).await;
}

#[tokio::test]
async fn thirty_cancelled_runs_leave_no_process() {
    let bench = Bench::sh(
        "sleep 300 & echo $! >> pids; echo begun; wait",
        json!({"kill_after_seconds": 1.0}),
    )
    .await;
    for _ in 0..30 {
        let request = bench.request("a");
        let ran = run_until(&bench.adapter, request, "assistant.text", async || {
            assert!(bench.adapter.cancel("task-sample").await.unwrap());
        })
        .await;
        ran.failed("cancelled");
    }
    let pids = fs::read_to_string(bench.workspace.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 30);
    for pid in pids.lines() {
        until(|| !process::exists(pid)).await;
    }
}

#[tokio::test]
async fn output_is_bounded_as_a_line_and_as_a_whole() {
    let bench = Bench::sh(
        "head -c 5000 /dev/zero | tr '\\0' a; sleep 300",
        json!({"line_bytes": 1000, "output_bytes": 100_000}),
    )
    .await;
    // Reported only when the line or the program ends.
    let ran = tokio::time::timeout(Duration::from_millis(300), bench.say("a")).await;
    assert!(ran.is_err(), "an open line is not sent, and does not grow");
    let bench = Bench::sh(
        "head -c 5000 /dev/zero | tr '\\0' a; echo; sleep 300",
        json!({"line_bytes": 1000}),
    )
    .await;
    let ran = bench.say("a").await;
    assert!(ran.failed("output_too_large").contains("5000"));
    assert_eq!(ran.result.output.unwrap(), "a".repeat(1000));
    let bench = Bench::sh(
        "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaa; done",
        json!({"output_bytes": 1000}),
    )
    .await;
    let ran = bench.say("a").await;
    ran.failed("output_too_large");
    assert_eq!(ran.result.output.unwrap().len(), 1000);
}

#[tokio::test]
async fn output_that_is_half_or_no_json_is_an_error_or_skipped() {
    let rules = json!([{"text": "/delta", "output": "/answer"}]);
    let whole = Bench::sh(
        "echo '{\"answer\":'; sleep 0.01",
        json!({"output": "json", "rules": rules}),
    )
    .await;
    assert!(
        whole
            .say("a")
            .await
            .failed("upstream_error")
            .contains("not JSON")
    );
    let whole = Bench::sh(
        "echo '{'; echo '\"answer\": \"x\"}'",
        json!({"output": "json", "rules": rules}),
    )
    .await;
    assert_eq!(whole.say("a").await.succeeded(), "x");
    let deep = format!(
        "printf '%0200000d' 0 | tr 0 '['; echo; echo '{}'",
        "{\"delta\":\"x\"}"
    );
    let lines = Bench::sh(&deep, json!({"output": "json_lines", "rules": rules})).await;
    assert_eq!(lines.say("a").await.succeeded(), "x");
    let cut = Bench::sh(
        "echo '{\"delta\":\"x\"}'; printf '{\"delta\":'; kill -KILL $$",
        json!({"output": "json_lines", "rules": rules}),
    )
    .await;
    let ran = cut.say("a").await;
    ran.failed("adapter_crashed");
    assert_eq!(ran.result.output.as_deref(), Some("x"));
}

#[tokio::test]
async fn without_a_program_or_a_variable_it_is_degraded_with_the_cure() {
    for (table, cure) in [
        (json!({}), "adapters.command.program"),
        (json!({"program": "/nowhere/agent"}), "/nowhere/agent"),
        (json!({"program": "sh", "pass_env": ["A_KEY"]}), "A_KEY"),
    ] {
        let adapter = initialize::<Command>(table.clone()).await;
        let health = adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Degraded, "{table}");
        assert!(health.message.unwrap().contains(cure), "{table}");
    }
    let bench = Bench::new(json!({"program": "/nowhere/agent"})).await;
    assert!(
        bench
            .say("a")
            .await
            .failed("adapter_unavailable")
            .contains("/nowhere/agent")
    );
}
