//! Tests with real agent programs.

use forge_test_model::Model;
use serde_json::{Value, json};

use crate::bench::Bench;

/// Configuration of `claude -p`, as in `config/examples/command.toml`.
fn claude(model: &Model, home: &std::path::Path) -> Value {
    json!({
        "program": forge_test_runtimes::claude(),
        "args": [
            "-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages",
            "--setting-sources", "", ["--model", "{model}"], ["--resume", "{session_id}"],
            ["--session-id", "{new_session_id}"], ["--json-schema", "{output_schema}"],
        ],
        "env": {"HOME": home, "ANTHROPIC_BASE_URL": model.url(), "ANTHROPIC_API_KEY": "fake-key",
                "CLAUDE_CODE_MAX_RETRIES": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        "output": "json_lines",
        "rules": [
            {"when": {"/type": "system", "/subtype": "init"}, "session_id": "/session_id", "model": "/model"},
            {"when": {"/event/delta/type": "text_delta"}, "text": "/event/delta/text"},
            {"when": {"/event/delta/type": "thinking_delta"}, "thinking": "/event/delta/thinking"},
            {"when": {"/message/content/0/type": "tool_use"},
             "tool": {"id": "/message/content/0/id", "name": "/message/content/0/name", "input": "/message/content/0/input"}},
            {"when": {"/message/content/0/type": "tool_result"},
             "tool_result": {"id": "/message/content/0/tool_use_id", "output": "/message/content/0/content", "is_error": "/message/content/0/is_error"}},
            {"when": {"/type": "result"}, "output": "/result", "structured_output": "/structured_output",
             "usage": {"input_tokens": "/usage/input_tokens", "output_tokens": "/usage/output_tokens",
                       "cache_read_tokens": "/usage/cache_read_input_tokens",
                       "cache_write_tokens": "/usage/cache_creation_input_tokens", "cached": "apart"}},
            {"when": {"/type": "result", "/is_error": true}, "error": "/result", "error_status": "/api_error_status"},
        ],
    })
}

#[tokio::test]
async fn claude_streams_calls_tools_and_goes_on_with_its_session() {
    let model = Model::start().await;
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(claude(&model, home.path())).await;
    let mut request = bench.request("my word is plum");
    request.model = Some("claude-sonnet-4-5".to_owned());
    let first = bench.run(request.clone()).await;
    assert!(
        first.succeeded().contains("my word is plum"),
        "{:?}",
        first.result
    );
    assert_eq!(first.text(), first.succeeded());
    let usage = first.result.usage;
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.total_tokens),
        (Some(35), Some(12), Some(47))
    );
    assert_eq!(
        first.result.cost_usd, None,
        "claude reports the cost of the whole session"
    );
    assert_eq!(first.result.model.as_deref(), Some("claude-sonnet-4-5"));

    request.session_id = first.result.session_id.clone();
    request.message = "CALL Read {\"file_path\":\"/nowhere\"}".to_owned();
    let second = bench.run(request).await;
    second.succeeded();
    assert_eq!(second.result.session_id, first.result.session_id);
    let call = second.all("tool.invoked")[0];
    let result = second.all("tool.completed")[0];
    assert_eq!(
        (&call["name"], &call["toolCallId"]),
        (&json!("Read"), &result["toolCallId"])
    );
    assert_eq!(
        (&result["name"], &result["isError"]),
        (&json!("Read"), &json!(true))
    );
    let last = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(last.contains("my word is plum"), "{last}");
}

#[tokio::test]
async fn claude_says_what_its_model_refused() {
    let model = Model::start().await;
    let home = tempfile::tempdir().unwrap();
    let bench = Bench::new(claude(&model, home.path())).await;
    for (status, code) in [
        (400, "invalid_request"),
        (429, "rate_limited"),
        (529, "upstream_error"),
    ] {
        let mut request = bench.request(&format!("FAIL{status} now"));
        request.model = Some("claude-sonnet-4-5".to_owned());
        let ran = bench.run(request).await;
        let text = ran.failed(code);
        assert!(
            text.contains(&status.to_string()) && !text.contains("fake-key"),
            "{text}"
        );
        assert_eq!(ran.result.retryable, Some(status != 400));
    }
}

#[tokio::test]
async fn hermes_tells_its_usage_in_a_file() {
    let model = Model::start().await;
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model:\n  default: fake-1\n  provider: custom\n  base_url: {}/v1\n  api_key: x\n  context_length: 128000\n",
        model.url()
    );
    std::fs::write(home.path().join("config.yaml"), config).unwrap();
    let bench = Bench::new(json!({
        "program": forge_test_runtimes::hermes(),
        "args": ["-z", "{prompt}", "--usage-file", "{usage_file}"],
        "usage": {"input_tokens": "/input_tokens", "output_tokens": "/output_tokens",
                  "cache_read_tokens": "/cache_read_tokens", "cached": "apart"},
        "env": {"HOME": home.path(), "HERMES_HOME": home.path()},
    }))
    .await;
    let ran = bench.say("- a prompt like an option").await;
    assert!(ran.succeeded().contains("pong: "), "{:?}", ran.result);
    let usage = ran.result.usage;
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.total_tokens),
        (Some(31), Some(9), Some(40))
    );
    assert_eq!(usage.cache_read_tokens, Some(5));
}
