//! Input and output, tested with scripts.

use std::fs;

use forge_adapter_api::OutputStrategy;
use forge_adapter_api::Usage;
use forge_test_support::execution::run_until;
use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn the_prompt_comes_on_stdin_and_the_text_is_streamed() {
    let bench = Bench::sh(
        "read -r a; read -r b; read -r c; echo \"$a|$b|$c\"; echo; echo end",
        json!({}),
    )
    .await;
    let mut request = bench.request("do it");
    request.system_prompt = Some("You are it.".to_owned());
    let ran = bench.run(request).await;
    assert_eq!(ran.succeeded(), "You are it.||do it\n\nend");
    assert_eq!(ran.text(), "You are it.||do it\n\nend");
    assert_eq!(ran.result.usage, Usage::default(), "not reported");
    assert_eq!(ran.result.cost_usd, None);
}

#[tokio::test]
async fn values_of_a_request_are_arguments_and_nothing_else() {
    let bench = Bench::sh(
        "for a in \"$@\"; do printf '[%s]' \"$a\"; done",
        json!({"args": ["{prompt}", ["--model", "{model}"], ["-r", "{session_id}"]]}),
    )
    .await;
    let hostile = "--help $(touch hacked) `touch hacked`; touch hacked\n'\"";
    assert_eq!(
        bench.say(hostile).await.succeeded(),
        format!("[ {hostile}]")
    );
    assert!(!bench.workspace.path().join("hacked").exists());
    let mut request = bench.request("a");
    request.model = Some("m 1".to_owned());
    request.session_id = Some("s-1".to_owned());
    assert_eq!(
        bench.run(request).await.succeeded(),
        "[a][--model][m 1][-r][s-1]"
    );
    for bad in ["--dangerous", "a\0b"] {
        let mut request = bench.request("a");
        request.model = Some(bad.to_owned());
        bench.run(request).await.failed("invalid_request");
    }
}

#[tokio::test]
async fn it_works_in_the_workspace_with_a_clean_environment() {
    let bench = Bench::sh(
        "pwd; echo \"$MINE $PASSED ${CARGO_PKG_NAME-none} $FORGE_TASK_ID\"; echo made > output.md",
        json!({"env": {"MINE": "1"}, "pass_env": ["PASSED"], "PASSED": "2", "CARGO_PKG_NAME": "no"}),
    )
    .await;
    let ran = bench.say("a").await;
    let dir = bench.workspace.path().canonicalize().unwrap();
    assert_eq!(
        ran.succeeded(),
        format!("{}\n1 2 none task-sample", dir.display())
    );
    assert_eq!(fs::read_to_string(dir.join("output.md")).unwrap(), "made\n");
}

#[tokio::test]
async fn an_unread_prompt_and_a_large_one_hold_nothing_up() {
    let deaf = Bench::sh("echo done", json!({})).await;
    let large = "x".repeat(8 << 20);
    assert_eq!(deaf.say(&large).await.succeeded(), "done");
    let counting = Bench::sh("echo first; wc -c", json!({})).await;
    let ran = counting.say(&large).await;
    assert_eq!(
        ran.succeeded().split_whitespace().collect::<Vec<_>>(),
        ["first", &(large.len() + 1).to_string()]
    );
}

#[tokio::test]
async fn a_usage_file_and_a_usage_line_are_the_usage() {
    let usage = json!({"input_tokens": "/in", "output_tokens": "/out", "cache_read_tokens": "/cached", "cost_usd": "/cost", "cached": "apart", "session_id": "/session"});
    let line = "{\"in\":26,\"out\":9,\"cached\":5,\"cost\":0.5,\"session\":\"s-9\"}";
    let file = Bench::sh(
        &format!("echo hi; echo '{line}' > \"$1\""),
        json!({"args": ["{usage_file}"], "usage": usage}),
    )
    .await;
    let by_line = Bench::sh(
        &format!("echo hi; echo 'USAGE {line}'"),
        json!({"usage_line": "USAGE ", "usage": usage}),
    )
    .await;
    for bench in [file, by_line] {
        let ran = bench.say("a").await;
        assert_eq!(ran.succeeded(), "hi");
        let told = ran.result.usage;
        assert_eq!(
            (told.input_tokens, told.output_tokens, told.total_tokens),
            (Some(31), Some(9), Some(40))
        );
        assert_eq!(told.thinking_tokens, None);
        assert_eq!(
            (ran.result.cost_usd, ran.result.session_id.as_deref()),
            (Some(0.5), Some("s-9"))
        );
        assert_eq!(ran.all("usage").len(), 1);
    }
}

#[tokio::test]
async fn a_schema_that_is_asked_for_gives_a_value() {
    let bench = Bench::sh(
        "echo '{\"a\": 1}'",
        json!({"args": [["--schema", "{output_schema}"]]}),
    )
    .await;
    let mut request = bench.request("a");
    request.output_strategy = OutputStrategy::Structured;
    request.output_schema = Some(json!({"type": "object"}));
    let ran = bench.run(request.clone()).await;
    ran.succeeded();
    assert_eq!(ran.result.structured_output, Some(json!({"a": 1})));
    let bench = Bench::sh(
        "echo sorry",
        json!({"args": [["--schema", "{output_schema}"]]}),
    )
    .await;
    bench.run(request).await.failed("output_invalid");
}

#[tokio::test]
async fn a_program_may_speak_the_bridges_own_json() {
    let script = "read -r request
        case $request in *'\"message\":\"ask\"'*)
            echo '{\"type\":\"assistant.text\",\"data\":{\"delta\":\"well\"}}'
            echo '{\"status\":\"ok\",\"sessionId\":\"s-1\",\"toolCalls\":[{\"toolCallId\":\"c1\",\"name\":\"find\",\"input\":{}}]}';;
        *) echo 'Welcome!'; echo '{\"odd\":1}'; exit 3;; esac";
    let bench = Bench::sh(script, json!({"stdin": "request", "output": "bridge"})).await;
    let ran = bench.say("ask").await;
    assert_eq!(ran.succeeded(), "well");
    assert_eq!(ran.result.tool_calls[0].name, "find");
    assert_eq!(ran.result.session_id.as_deref(), Some("s-1"));
    assert!(
        bench
            .say("else")
            .await
            .failed("adapter_error")
            .contains("exit code 3")
    );
    let mute = Bench::sh(
        "cat > /dev/null",
        json!({"stdin": "request", "output": "bridge"}),
    )
    .await;
    mute.say("a").await.failed("adapter_crashed");
}

#[tokio::test]
async fn text_is_streamed_before_its_line_ends() {
    let script =
        "printf one; while [ ! -e go ]; do sleep 0.05; done; printf ' two'; echo; printf three";
    let bench = Bench::sh(script, json!({})).await;
    let go = bench.workspace.path().join("go");
    // The program goes on only after its text has arrived.
    let ran = run_until(
        &bench.adapter,
        bench.request("x"),
        "assistant.text",
        async || {
            fs::write(go, "").unwrap();
        },
    )
    .await;
    assert_eq!(ran.succeeded(), "one two\nthree");
    assert_eq!(ran.text(), "one two\nthree");
    assert_eq!(ran.all("assistant.text")[0]["delta"], "one");
}
