//! Failures of the provider and the program; cancellation.

use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus, Usage};
use forge_test_support::deadline::until_within;
use forge_test_support::process;
use serde_json::json;

use crate::bench::{self, AGENTS, Agent, Bench, run_until};

#[tokio::test]
async fn what_the_provider_refuses_has_a_code_and_a_hint_whether_to_try_again() {
    let bench = Bench::new(Agent::Hermes).await;
    let cases = [
        (400, "invalid_request", false),
        (429, "rate_limited", true),
        (500, "upstream_error", true),
    ];
    for (status, code, retryable) in cases {
        let ran = bench.say(&format!("FAIL{status} SOON")).await;
        ran.failed(code);
        assert_eq!(ran.result.retryable, Some(retryable), "{status}");
        assert_eq!(ran.result.usage, Usage::default(), "{status}");
        assert!(ran.result.error.unwrap().contains(&status.to_string()));
        assert_eq!(ran.result.output, None, "{status}");
    }
}

#[tokio::test]
async fn an_agent_that_does_not_tell_the_status_gives_a_code_without_a_hint() {
    let bench = Bench::new(Agent::OpenCode).await;
    for status in [400, 429] {
        let ran = bench.say(&format!("FAIL{status} SOON")).await;
        ran.failed("upstream_error");
        assert_eq!(ran.result.retryable, None, "{status}");
        assert_eq!(ran.result.usage, Usage::default(), "{status}");
        assert!(ran.result.error.unwrap().contains(&status.to_string()));
    }
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_text_keeps_the_text() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let ran = bench.cancelled().await;
        assert_eq!(
            ran.result.usage.output_tokens, None,
            "{agent:?}: usage is unknown"
        );
        assert_eq!(ran.result.cost_usd, None, "{agent:?}: cost is unknown");
        assert!(ran.all("usage").is_empty(), "{agent:?}: {:?}", ran.events);
        let again = bench.adapter.cancel("task-1").await.unwrap();
        assert!(!again, "nothing runs any more");
    }
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_tool_ends_the_tool() {
    for agent in AGENTS {
        let bench = Bench::with(agent, json!({"permission": "allow"})).await;
        let pid_file = bench.path("pid");
        let command = format!("echo $$ > {}; sleep 300", pid_file.display());
        let ran = run_until(
            &bench.adapter,
            bench.request(&agent.shell(&command)),
            "tool.invoked",
            async || {
                let told =
                    || std::fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n'));
                until(told).await;
                assert!(bench.adapter.cancel("task-1").await.unwrap());
            },
        )
        .await;
        ran.failed("cancelled");
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        until(|| !process::exists(&pid)).await;
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_while_the_provider_hangs_leaves_no_process() {
    let bench = Bench::new(Agent::Hermes).await;
    let workspace = bench.path("");
    let execution = bench::run(&bench.adapter, bench.request("HANG"));
    let hangs = until(|| {
        bench
            .model
            .requests()
            .iter()
            .any(|r| r.body["tools"].is_array())
    });
    // `select!` drops the execution once the model hangs.
    tokio::select! {
        ran = execution => panic!("{:?}", ran.result),
        () = hangs => {}
    }
    until(|| process::pids_in(&workspace).is_empty()).await;
}

#[tokio::test]
async fn an_agent_that_is_killed_is_told_with_its_text() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let workspace = bench.path("");
        let ran = run_until(
            &bench.adapter,
            bench.request("SLOW please"),
            "assistant.text",
            async || process::kill_all_in(&workspace),
        )
        .await;
        ran.failed("adapter_crashed");
        assert_eq!(ran.result.retryable, Some(true));
        assert_eq!(ran.result.usage, Usage::default());
        assert!(ran.output().starts_with("tick"), "{agent:?}");
    }
}

#[tokio::test]
async fn a_missing_program_is_degraded_with_the_cure() {
    for (config, cure) in [
        (json!({}), "adapters.acp.program"),
        (json!({"program": "/nowhere/agent"}), "install the agent"),
    ] {
        let adapter = bench::adapter(config).await;
        // A detached host has no instance name.
        let cure = cure.replace("acp.", ".");
        let health = adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Degraded);
        assert!(
            health.message.as_ref().unwrap().contains(&cure),
            "{health:?}"
        );
        let (events, _received) = forge_adapter_api::Events::channel(1);
        let request = bench::request("hello", &std::env::temp_dir());
        let error = adapter.execute(request, events).await.unwrap_err();
        assert_eq!(error.code, "adapter_unavailable");
        assert_eq!(Some(error.message), health.message);
    }
}

#[tokio::test]
async fn an_agent_that_ends_at_once_is_degraded_until_one_begins() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = bench::adapter(json!({"program": "/bin/false"})).await;
    let ran = bench::run(&adapter, bench::request("hello", folder.path())).await;
    ran.failed("adapter_crashed");
    assert_eq!(ran.result.usage, Usage::default());
    assert_eq!(adapter.check_health().await.status, HealthStatus::Degraded);
}

async fn until(condition: impl Fn() -> bool) {
    until_within(Duration::from_secs(60), condition).await;
}
