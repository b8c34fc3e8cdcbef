//! Agents that violate the protocol or use rare parts of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forge_adapter_acp::Acp;
use forge_adapter_api::{ExecutionAdapter as _, HealthStatus, Usage};
use forge_test_support::execution::Execution;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bench::{self, run_until};

struct Strange {
    adapter: Acp,
    workspace: TempDir,
}

impl Strange {
    async fn new(what: &str) -> Self {
        let script = format!("{}/tests/real/agent.py", env!("CARGO_MANIFEST_DIR"));
        Self {
            adapter: bench::adapter(json!({"program": "python3", "args": [script, what]})).await,
            workspace: tempfile::tempdir().unwrap(),
        }
    }

    async fn run(&self) -> Execution {
        bench::run(
            &self.adapter,
            bench::request("hello", self.workspace.path()),
        )
        .await
    }

    async fn resume(&self) -> Execution {
        let mut request = bench::request("hello", self.workspace.path());
        request.session_id = Some("s".to_owned());
        bench::run(&self.adapter, request).await
    }
}

#[tokio::test]
async fn what_is_not_meant_for_us_is_skipped() {
    let ran = Strange::new("greet").await.run().await;
    ran.succeeded();
    assert_eq!(ran.output(), "fine");
    assert_eq!(ran.result.usage, Usage::default());
}

#[tokio::test]
async fn text_behind_the_answer_is_part_of_it() {
    let ran = Strange::new("late").await.run().await;
    ran.succeeded();
    assert_eq!(ran.output(), "done");
    assert_eq!(ran.text(), ran.output());
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_run_with_what_was_said() {
    let cases = [
        ("half", "protocol_violation", "so far"),
        ("cut", "protocol_violation", "so far"),
        ("long", "protocol_violation", ""),
        ("deep", "protocol_violation", ""),
        ("flood", "protocol_violation", ""),
        ("other_version", "protocol_violation", ""),
        ("nameless", "protocol_violation", ""),
        ("refusal", "refusal", ""),
        ("max_tokens", "max_tokens", ""),
        ("max_turn_requests", "max_turns", ""),
        ("of a later version", "adapter_error", ""),
    ];
    for (what, code, said) in cases {
        let strange = Strange::new(what).await;
        let ran = tokio::time::timeout(Duration::from_secs(30), strange.run());
        let ran = ran.await.unwrap_or_else(|_| panic!("{what} hangs"));
        assert_eq!(
            ran.result.error_code.as_deref(),
            Some(code),
            "{what}: {:?}",
            ran.result
        );
        assert_eq!(ran.output(), said, "{what}");
    }
}

#[tokio::test]
async fn an_agent_that_would_act_without_asking_is_stopped() {
    for (what, said) in [("grants", ""), ("loosens", "so far")] {
        let strange = Strange::new(what).await;
        let ran = strange.run().await;
        ran.failed("blocked_by_policy");
        assert_eq!(ran.output(), said, "{what}");
        let health = strange.adapter.check_health().await;
        assert_eq!(health.status == HealthStatus::Degraded, what == "grants");
    }
}

#[tokio::test]
async fn requests_are_answered_by_policy_and_unknown_ones_refused() {
    let strange = Strange::new("asks").await;
    let ran = strange.run().await;
    ran.succeeded();
    let answers: Value = serde_json::from_str(ran.output()).unwrap();
    assert_eq!(
        answers,
        json!([
            [-32601, -32601, -32602, null],
            {"content": "through us"},
            {"outcome": {"outcome": "cancelled"}},
        ])
    );
    let file = strange.workspace.path().join("new/a.txt");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "through us");

    let mut request = bench::request("hello", strange.workspace.path());
    request.workspace = None;
    let ran = bench::run(&strange.adapter, request).await;
    let answers: Value = serde_json::from_str(ran.output()).unwrap();
    assert_eq!(
        answers[0],
        json!([-32601, -32601, -32601, -32601]),
        "no workspace, no files"
    );
}

#[tokio::test]
async fn a_cancel_ends_a_deaf_agent_and_allows_nothing_more() {
    for (what, said) in [
        ("deaf_to_cancel", "so far"),
        (
            "asks_when_cancelled",
            "so far{\"outcome\": {\"outcome\": \"cancelled\"}}",
        ),
    ] {
        let strange = Strange::new(what).await;
        let request = bench::request("hello", strange.workspace.path());
        let ran = run_until(&strange.adapter, request, "assistant.text", async || {
            assert!(strange.adapter.cancel("task-1").await.unwrap());
        })
        .await;
        ran.failed("cancelled");
        assert_eq!(ran.output(), said);
    }
}

#[tokio::test]
async fn a_cancel_before_the_agent_answers_ends_it() {
    let strange = Strange::new("mute").await;
    let execution = strange.run();
    let cancelling = async {
        while !strange.adapter.cancel("task-1").await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    let (ran, ()) = tokio::join!(execution, cancelling);
    ran.failed("cancelled");
}

#[tokio::test]
async fn an_agent_that_wants_a_login_says_how_and_is_degraded() {
    let strange = Strange::new("login").await;
    let ran = strange.run().await;
    ran.failed("unauthenticated");
    assert!(ran.result.error.unwrap().contains("agent login"));
    let health = strange.adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains("agent login"));
}

#[tokio::test]
async fn an_agent_that_keeps_no_sessions_cannot_continue_one() {
    Strange::new("forgetful")
        .await
        .resume()
        .await
        .failed("invalid_request");
}

#[tokio::test]
async fn a_session_that_a_crashed_attempt_did_not_leave_is_begun_again() {
    let strange = Strange::new("forgot").await;
    strange.resume().await.failed("session_not_found");
    let mut request = bench::request("hello", strange.workspace.path());
    request.session_id = Some("s".to_owned());
    request.resume = true;
    let ran = bench::run(&strange.adapter, request).await;
    ran.succeeded();
    assert!(ran.output().ends_with(": hello"), "{}", ran.output());
}

#[tokio::test]
async fn without_a_workspace_it_runs_in_the_configured_folder_or_one_that_goes_with_the_run() {
    let strange = Strange::new("plain").await;
    let folder = strange.workspace.path().canonicalize().unwrap();
    let script = format!("{}/tests/real/agent.py", env!("CARGO_MANIFEST_DIR"));
    let table = json!({"program": "python3", "args": [script, "plain"], "dir": folder});
    let with_folder = bench::adapter(table).await;
    for (adapter, remains) in [(&strange.adapter, false), (&with_folder, true)] {
        let mut request = bench::request("hello", &folder);
        request.workspace = None;
        let ran = bench::run(adapter, request).await;
        let worked_in = Path::new(ran.output().split_once(':').unwrap().0);
        assert_eq!(worked_in.exists(), remains, "{}", worked_in.display());
        assert_eq!(worked_in == folder, remains);
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_had_and_a_server_out_of_reach_are_refused() {
    let strange = Strange::new("plain").await;
    let mut request = bench::request("hello", strange.workspace.path());
    request.model = Some("fake-9".to_owned());
    let ran = bench::run(&strange.adapter, request).await;
    ran.failed("invalid_request");
    assert!(ran.result.error.unwrap().contains("fake-9"));

    let mut request = bench::request("hello", strange.workspace.path());
    let server = json!({"url": "http://127.0.0.1:9/mcp"});
    request.mcp_servers = BTreeMap::from([("far".to_owned(), server)]);
    let ran = bench::run(&strange.adapter, request).await;
    ran.failed("invalid_request");
    assert!(ran.result.error.unwrap().contains("far"));
}

#[tokio::test]
async fn counts_of_an_unknown_agent_are_told_only_where_they_are_certain() {
    let strange = Strange::new("counts").await;
    let fresh = strange.run().await;
    fresh.succeeded();
    assert_eq!(fresh.result.usage.total_tokens, Some(7));
    assert_eq!(fresh.result.cost_usd, Some(0.5));
    let resumed = strange.resume().await;
    resumed.succeeded();
    assert_eq!(resumed.result.usage, Usage::default());
    assert_eq!(
        resumed.result.cost_usd,
        Some(0.0),
        "the session's cost has not grown"
    );
    assert!(
        resumed.all("assistant.text").is_empty(),
        "history is not emitted"
    );
    // Marks are kept in memory, so another bridge process has none.
    let unmarked = Strange::new("counts").await.resume().await;
    assert_eq!(unmarked.result.cost_usd, None);
}
