//! The real `ai` package in its Node process.

use std::fs;
use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_test_support::deadline::until_within;
use forge_test_support::execution::{run, run_until};
use forge_test_support::instance::with_members;
use forge_test_support::process;
use forge_test_support::tool::find;
use serde_json::json;

use crate::bench::{Bench, MODELS, adapter, by_package, to};

#[tokio::test]
async fn text_usage_tools_and_schemas_of_each_provider() {
    let bench = Bench::with(&by_package()).await;
    assert_eq!(
        bench.adapter.check_health().await.status,
        HealthStatus::Healthy
    );
    for model in MODELS {
        let ran = bench.run(to(model, "hello there")).await;
        ran.succeeded();
        assert_eq!(
            (ran.output(), ran.text().as_str()),
            ("pong: hello there", "pong: hello there")
        );
        assert!(
            ran.result
                .usage
                .total_tokens
                .is_some_and(|total| total >= 40),
            "{model}"
        );

        let mut request = to(model, "CALL find {\"who\":\"bob\"}");
        request.tools = vec![find("find")];
        let ran = bench.run(request.clone()).await;
        ran.succeeded();
        let call = &ran.result.tool_calls[0];
        assert_eq!(
            (call.name.as_str(), &call.input),
            ("find", &json!({"who": "bob"})),
            "{model}"
        );
        request.session_id.clone_from(&ran.result.session_id);
        request.tool_results = ran.tool_results(&json!("seven"));
        request.message = "go on".to_owned();
        let next = bench.run(request).await;
        next.succeeded();
        assert!(bench.asked().to_string().contains("seven"), "{model}");

        let mut request = to(model, "give");
        request.output_schema = Some(json!({
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false,
        }));
        let ran = bench.run(request).await;
        ran.succeeded();
        assert_eq!(
            ran.result.structured_output,
            Some(json!({"n": 42})),
            "{model}"
        );
    }
}

#[tokio::test]
async fn refusals_and_broken_streams_have_their_codes() {
    let table = with_members(by_package(), &json!({"model_retries": 0}));
    let bench = Bench::with(&table).await;
    for (message, code, retryable) in [
        ("FAIL400 now", "invalid_request", false),
        ("FAIL429 RETRYAFTER7", "rate_limited", true),
        ("FAIL500 now", "upstream_error", true),
        ("CUTOFF please", "upstream_error", true),
        ("GARBLED please", "upstream_error", true),
    ] {
        let ran = bench.run(to(MODELS[0], message)).await;
        ran.failed(code);
        assert_eq!(
            ran.result.retryable,
            Some(retryable),
            "{message}: {:?}",
            ran.result.error
        );
        assert_eq!(
            ran.result.retry_after_ms,
            message.contains("RETRY").then_some(7_000)
        );
    }
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_text_and_leaves_no_process() {
    let bench = Bench::with(&by_package()).await;
    let ran = run_until(
        &bench.adapter,
        slow("dsp_cancelled/1"),
        "assistant.text",
        async || {
            assert_eq!(processes("dsp_cancelled/1").len(), 1);
            assert!(bench.adapter.cancel("task-sample").await.unwrap());
        },
    )
    .await;
    ran.failed_with("cancelled", "cancelled");
    assert!(ran.output().starts_with("tick000"));
    until_within(Duration::from_secs(10), || {
        processes("dsp_cancelled/1").is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_process_that_is_killed_is_told() {
    let bench = Bench::with(&by_package()).await;
    let ran = run_until(
        &bench.adapter,
        slow("dsp_killed/1"),
        "assistant.text",
        async || {
            for pid in processes("dsp_killed/1") {
                assert!(process::kill(&pid));
            }
        },
    )
    .await;
    ran.failed_with("adapter_crashed", "ended before the answer");
    assert_eq!(ran.result.retryable, Some(true));
}

#[tokio::test]
async fn what_is_missing_is_told_with_the_cure() {
    let empty = tempfile::tempdir().unwrap();
    let node = forge_test_runtimes::node();
    for (sidecar, said) in [
        (
            json!({"node": node, "packages": empty.path()}),
            "npm install ai",
        ),
        (
            json!({"node": "/nowhere/node", "packages": empty.path()}),
            "adapters.vercel-ai.sidecar.node",
        ),
    ] {
        let adapter = adapter(json!({
            "mode": "sidecar", "sidecar": sidecar, "providers": {"openai": {"api_key": "k"}},
        }))
        .await;
        let health = adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Degraded, "{health:?}");
        assert!(health.message.unwrap().contains(said));
        let ran = run(&adapter, to(MODELS[1], "hello")).await;
        ran.failed_with("adapter_unavailable", said);
    }
}

/// Ids of the processes of this execution, found by the id in their environment.
fn processes(execution: &str) -> Vec<String> {
    let wanted = format!("FORGE_EXECUTION={execution}\0");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&wanted)
    })
    .collect()
}

fn slow(execution: &str) -> ExecutionRequest {
    ExecutionRequest {
        execution_id: execution.to_owned(),
        ..to(MODELS[0], "SLOW please")
    }
}
