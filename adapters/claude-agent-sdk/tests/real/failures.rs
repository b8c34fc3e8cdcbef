//! Failures of the provider, the credentials and the program; cancellation.

use forge_adapter_api::{ExecutionAdapter as _, Health, HealthStatus, Usage};
use forge_adapter_claude_agent_sdk::ClaudeAgentSdk;
use forge_test_support::deadline::until;
use forge_test_support::instance::initialize;
use forge_test_support::process;
use serde_json::json;

use crate::bench::{Bench, used};

#[tokio::test]
async fn what_the_provider_refuses_has_a_code_and_a_hint_whether_to_try_again() {
    let bench = Bench::new().await;
    let cases = [
        (400, "invalid_request", false),
        (401, "unauthenticated", false),
        (429, "rate_limited", true),
        (529, "upstream_error", true),
    ];
    for (status, code, retryable) in cases {
        let ran = bench.say(&format!("FAIL{status} now")).await;
        ran.failed(code);
        assert_eq!(ran.result.retryable, Some(retryable), "{status}");
        assert_eq!(ran.result.usage.output_tokens, Some(0), "{status}");
        assert_eq!(ran.result.cost_usd, Some(0.0), "{status}");
        assert!(ran.result.error.unwrap().contains(&status.to_string()));
    }
}

#[tokio::test]
async fn a_call_that_is_tried_again_is_progress() {
    let bench = Bench::new().await;
    let ran = bench.say("FAILONCE529 then fine").await;
    ran.succeeded();
    used(&ran, 1);
    let progress = ran.all("exec.progress");
    assert_eq!(
        (&progress[0]["kind"], &progress[0]["errorStatus"]),
        (&json!("api_retry"), &json!(529))
    );
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_text_keeps_the_text_and_the_usage() {
    let bench = Bench::new().await;
    let ran = bench
        .run_until(bench.request("SLOW please"), "assistant.text", async || {
            assert!(bench.adapter.cancel("task-1").await.unwrap());
        })
        .await;
    ran.failed("cancelled");
    assert!(ran.output().starts_with("tick0"), "{:?}", ran.result);
    assert_eq!(
        ran.result.usage.input_tokens,
        Some(crate::bench::CALL_INPUT)
    );
    assert!(ran.result.cost_usd.is_some());
    assert!(
        !bench.adapter.cancel("task-1").await.unwrap(),
        "nothing runs any more"
    );
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_tool_ends_the_tool() {
    let bench = Bench::with(json!({"permission": "allow"})).await;
    let pid_file = bench.workspace.path().join("pid");
    let command = format!("echo $$ > {}; sleep 300", pid_file.display());
    let call = json!({"command": command, "description": "d"});
    let ran = bench
        .run_until(
            bench.request(&format!("CALL Bash {call}")),
            "tool.invoked",
            async || {
                until(|| std::fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n')))
                    .await;
                assert!(bench.adapter.cancel("task-1").await.unwrap());
            },
        )
        .await;
    ran.failed("cancelled");
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    until(|| !process::exists(&pid)).await;
}

#[tokio::test]
async fn a_provider_that_hangs_can_be_cancelled() {
    let bench = Bench::new().await;
    let ran = bench
        .run_until(bench.request("HANG"), "session.updated", async || {
            assert!(bench.adapter.cancel("task-1").await.unwrap());
        })
        .await;
    ran.failed("cancelled");
}

#[tokio::test]
async fn a_program_that_is_killed_is_told_with_what_it_used() {
    let bench = Bench::new().await;
    let workspace = bench.workspace.path();
    let ran = bench
        .run_until(bench.request("SLOW please"), "assistant.text", async || {
            process::kill_all_in(workspace);
        })
        .await;
    ran.failed("adapter_crashed");
    assert_eq!(
        ran.result.usage.input_tokens,
        Some(crate::bench::CALL_INPUT)
    );
    assert_eq!(ran.result.cost_usd, None, "cost is unknown");
    assert!(ran.output().is_empty() || ran.output().starts_with("tick"));
}

#[tokio::test]
async fn a_missing_program_is_degraded_with_the_cure() {
    let health = health(json!({"program": "/nowhere/claude", "ANTHROPIC_API_KEY": "k"})).await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(
        health
            .message
            .unwrap()
            .contains("npm install -g @anthropic-ai/claude-code")
    );

    let bench = Bench::with(json!({"program": "/nowhere/claude"})).await;
    let (events, _received) = forge_adapter_api::Events::channel(1);
    let error = bench
        .adapter
        .execute(bench.request("hello"), events)
        .await
        .unwrap_err();
    assert_eq!(error.code, "adapter_unavailable");
    assert!(error.message.contains("/nowhere/claude"));
}

#[tokio::test]
async fn missing_credentials_are_degraded_with_the_cure() {
    let home = tempfile::tempdir().unwrap();
    let health =
        health(json!({"program": forge_test_runtimes::claude(), "HOME": home.path()})).await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains("ANTHROPIC_API_KEY"));
}

#[tokio::test]
async fn a_run_that_never_began_has_no_usage() {
    let bench = Bench::with(json!({"program": "/bin/false"})).await;
    let ran = bench.say("hello").await;
    ran.failed("adapter_crashed");
    assert_eq!(ran.result.usage, Usage::default());
}

async fn health(config: serde_json::Value) -> Health {
    let adapter: ClaudeAgentSdk = initialize(config).await;
    adapter.check_health().await
}
