//! Faults that only a fake gateway has: refused handshakes, garbage, lost answers.

use forge_adapter_api::manage::AgentManager;
use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_openclaw::OpenClaw;
use forge_test_support::execution::run;
use forge_test_support::instance::initialize;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bench::{config, request, until};
use crate::fake::{Fake, hello_without, ok};

fn silent(_: &str, _: usize) -> Vec<Value> {
    Vec::new()
}

async fn adapter(fake: &Fake) -> OpenClaw {
    initialize(config(&fake.url)).await
}

/// Waits until the adapter is degraded, or at least not healthy, with a message that contains this.
async fn is_unwell(adapter: &OpenClaw, part: &str) -> HealthStatus {
    until(part, async || {
        let health = adapter.check_health().await;
        let found = health.message.unwrap_or_default().contains(part);
        found.then_some(health.status)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_handshake_says_how_to_repair_it() {
    let refused = |code: &str, details: Value| json!({"ok": false, "error": {"code": code, "message": "no", "details": details}});
    let older = json!({"code": "PROTOCOL_MISMATCH", "expectedProtocol": 3});
    let pairing = json!({"code": "PAIRING_REQUIRED", "requestId": "r-1"});
    let approve = "openclaw devices approve r-1";
    for (answer, part) in [
        (refused("INVALID_REQUEST", older), "protocol 3"),
        (refused("NOT_PAIRED", pairing), approve),
        (hello_without("operator.admin"), "operator.admin"),
    ] {
        let fake = Fake::start(answer, silent).await;
        let status = is_unwell(&adapter(&fake).await, part).await;
        assert_eq!(status, HealthStatus::Degraded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_no_protocol_or_too_large_end_the_connection() {
    for (message, part) in [
        ("no JSON".to_owned(), "not OpenClaw's protocol"),
        ("x".repeat(100 << 20), "too long"),
    ] {
        let fake = Fake::saying(hello_without(""), silent, Some(message)).await;
        is_unwell(&adapter(&fake).await, part).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_comes_ends_the_request_and_aborts_the_run() {
    let fake = Fake::start(hello_without(""), silent).await;
    let adapter = adapter(&fake).await;
    let error = AgentManager::list(&adapter).await.unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.retryable),
        ("upstream_error", true)
    );
    let ran = run(&adapter, request("dsp_silent", "hello")).await;
    ran.failed_with("upstream_error", "did not answer agent");
    let run = &fake.requests("agent")[0]["idempotencyKey"];
    until("the abort", async || {
        let aborts = fake.requests("chat.abort");
        aborts
            .iter()
            .any(|abort| abort["runId"] == *run)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_last_answer_is_lost_is_fetched() {
    let fake = Fake::start(hello_without(""), |method, _| match method {
        "agent" => vec![ok(json!({"status": "accepted"}))],
        "agent.wait" => vec![ok(
            json!({"status": "ok", "terminalReply": {"text": "fetched"}}),
        )],
        "chat.history" => vec![ok(json!({"messages": []}))],
        "tasks.list" => vec![ok(json!({"tasks": []}))],
        _ => Vec::new(),
    })
    .await;
    let ran = run(&adapter(&fake).await, request("dsp_lost", "hello")).await;
    assert_eq!(ran.succeeded(), "fetched");
    assert_eq!(fake.requests("agent").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_wait_for_a_connection_share_its_attempts() {
    let refused = json!({"ok": false, "error": {"code": "BUSY", "message": "later"}});
    let fake = Fake::start(refused, silent).await;
    let adapter = adapter(&fake).await;
    let runs = (0..50).map(|n| run(&adapter, request(&format!("dsp_storm{n}"), "hello")));
    let lists = (0..50).map(|_| AgentManager::list(&adapter));
    let (runs, lists) = tokio::join!(join_all(runs), join_all(lists));
    for ran in runs {
        ran.failed_with("adapter_unavailable", "later");
    }
    for error in lists.into_iter().map(Result::unwrap_err) {
        assert!(error.message.contains("later"), "{error}");
    }
    // Executions wait for 5 s; it connects at 0, 0.5, 1.5 and 3.5 s, with waits that vary by a quarter.
    let connections = fake.connections();
    assert!((3..=5).contains(&connections), "{connections}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profile_follows_the_tools_of_the_gateway() {
    let fake = Fake::start(hello_without(""), |method, earlier| match method {
        "config.get" => vec![ok(json!({"hash": (earlier / 2).to_string()}))],
        "agents.list" => vec![ok(json!({"defaultId": "main"}))],
        "tools.catalog" => vec![ok(
            json!({"groups": [{"tools": [{"id": format!("t{earlier}")}]}]}),
        )],
        _ => Vec::new(),
    })
    .await;
    let adapter = adapter(&fake).await;
    // The settings change with every second look.
    for tool in ["t0", "t0", "t1", "t1"] {
        assert_eq!(adapter.capabilities().native_tools, [tool]);
        adapter.check_health().await;
    }
    assert_eq!(fake.requests("tools.catalog").len(), 3);
}
