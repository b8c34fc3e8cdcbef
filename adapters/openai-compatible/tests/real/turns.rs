//! Successful runs: text, thoughts, tools, structured output, conversations, usage and cost.

use forge_adapter_api::request::{Tool, ToolResult, Turn};
use forge_adapter_api::{ExecutionRequest, Usage};
use forge_test_support::execution::run;
use forge_test_support::tool::find;
use serde_json::json;

use crate::bench::{Bench, adapter, config};

#[tokio::test]
async fn text_comes_in_pieces_with_usage_and_cost() {
    let prices = json!({"prices": {"fake-1": {"input": 1.0, "output": 10.0, "cache_read": 0.2}}});
    let bench = Bench::with(&prices).await;
    let mut request = ExecutionRequest::sample("hello there");
    request.system_prompt = Some("Be brief.".to_owned());
    let ran = bench.run(request).await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: hello there");
    assert_eq!(ran.text(), ran.output());
    let wanted = Usage {
        input_tokens: Some(31),
        output_tokens: Some(9),
        thinking_tokens: Some(2),
        total_tokens: Some(40),
        cache_read_tokens: Some(5),
        cache_write_tokens: None,
    };
    assert_eq!(ran.result.usage, wanted);
    assert_eq!(ran.result.cost_usd, Some((26.0 + 1.0 + 90.0) / 1e6));
    assert_eq!(ran.result.model.as_deref(), Some("fake-1"));
    let asked = bench.model.requests().pop().unwrap();
    assert_eq!(asked.path, "/v1/chat/completions");
    assert_eq!(asked.headers["authorization"], "Bearer k-1");
    let wanted = json!({
        "model": "fake-1", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}],
    });
    assert_eq!(asked.body, wanted);
}

#[tokio::test]
async fn a_server_that_cannot_stream_answers_as_well() {
    let bench = Bench::with(&json!({"stream": "off"})).await;
    let ran = bench.say("hello").await;
    ran.succeeded();
    assert_eq!(
        (ran.output(), ran.text().as_str()),
        ("pong: hello", "pong: hello")
    );
    assert_eq!(ran.result.usage.total_tokens, Some(40));
    assert!(bench.asked().get("stream").is_none());
}

#[tokio::test]
async fn thoughts_are_told_apart_from_the_answer() {
    let ran = Bench::new().await.say("THINK about it").await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: THINK about it");
    assert_eq!(ran.deltas("assistant.thinking"), "a fake thought");
}

#[tokio::test]
async fn an_answer_follows_its_schema() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}});
    for how in ["json_schema", "json_object"] {
        let bench = Bench::with(&json!({"structured": how})).await;
        let mut request = ExecutionRequest::sample("give");
        request.output_schema = Some(schema.clone());
        let ran = bench.run(request).await;
        ran.succeeded();
        let asked = bench.asked();
        assert_eq!(asked["response_format"]["type"], how);
        if how == "json_schema" {
            let wanted = json!({"name": "sample", "n": 42});
            assert_eq!(ran.result.structured_output, Some(wanted));
        } else {
            assert!(
                asked["messages"][0]["content"]
                    .to_string()
                    .contains("JSON schema")
            );
        }
    }
}

#[tokio::test]
async fn calls_are_handed_over_and_answered_by_the_next_run_of_the_session() {
    let bench = Bench::new().await;
    let mut request =
        ExecutionRequest::sample("CALL crm_find {\"who\":\"bob\"} CALL crm_find {\"who\":\"eve\"}");
    request.tools = vec![find("crm.find")];
    let ran = bench.run(request).await;
    ran.succeeded();
    let calls = ran.result.tool_calls.iter();
    let calls: Vec<_> = calls
        .map(|call| (call.name.as_str(), &call.input))
        .collect();
    assert_eq!(
        calls,
        [
            ("crm.find", &json!({"who": "bob"})),
            ("crm.find", &json!({"who": "eve"}))
        ]
    );
    assert!(
        !ran.events
            .iter()
            .any(|event| event.kind.starts_with("tool."))
    );

    let mut next = ExecutionRequest::sample("go on");
    next.session_id.clone_from(&ran.result.session_id);
    next.tools = vec![find("crm.find")];
    next.tool_results = ran.tool_results(&json!({"id": 7}));
    next.tool_results.pop();
    let next = bench.run(next).await;
    next.succeeded();
    assert_eq!(next.output(), "pong: go on");
    let messages = bench.asked()["messages"].clone();
    let roles: Vec<_> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"]);
    assert_eq!(messages[2]["content"], "{\"id\":7}");
    assert_eq!(messages[3]["content"], "This call was not made.");
}

#[tokio::test]
async fn a_further_round_goes_on_with_the_session_or_with_all_that_was_said() {
    let (kept, forgot) = (Bench::new().await, Bench::new().await);
    let mut request = ExecutionRequest::sample("CALL crm_find {\"who\":\"bob\"}");
    request.tools = vec![find("crm.find")];
    let ran = kept.run(request.clone()).await;
    request.session_id.clone_from(&ran.result.session_id);
    request.tool_results = ran.tool_results(&json!({"id": 7}));
    request.turns = vec![Turn {
        output: ran.result.output.clone(),
        tool_calls: ran.result.tool_calls.clone(),
        tool_results: request.tool_results.clone(),
    }];
    for bench in [&kept, &forgot] {
        let ran = bench.run(request.clone()).await;
        ran.succeeded();
        assert_eq!(ran.output(), "tool said: {\"id\":7}");
    }
    assert_eq!(kept.asked()["messages"], forgot.asked()["messages"]);
}

#[tokio::test]
async fn a_conversation_goes_on_and_outlives_the_adapter_where_there_is_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::with(&json!({"session_dir": folder.path()})).await;
    let first = bench.say("my word is plum").await;
    let mut table = config(bench.model.url());
    table["session_dir"] = json!(folder.path());
    let again = adapter(table).await;
    let mut request = ExecutionRequest::sample("what is it?");
    request.session_id.clone_from(&first.result.session_id);
    let second = run(&again, request).await;
    second.succeeded();
    assert_eq!(second.result.session_id, first.result.session_id);
    let said = bench.asked()["messages"].to_string();
    assert!(
        said.contains("my word is plum") && said.contains("pong: my word"),
        "{said}"
    );
}

#[tokio::test]
async fn an_unknown_session_is_told_unless_a_crashed_attempt_left_none() {
    let bench = Bench::new().await;
    for id in ["00000000-0000-4000-8000-000000000000", "../../etc/passwd"] {
        let mut request = ExecutionRequest::sample("hello");
        request.session_id = Some(id.to_owned());
        bench
            .run(request.clone())
            .await
            .failed_with("session_not_found", "session_dir");
        request.resume = true;
        bench.run(request).await.succeeded();
    }
}

#[tokio::test]
async fn the_body_takes_what_operator_and_caller_add_and_no_more() {
    let bench = Bench::with(&json!({
        "extra": {"temperature": 0.5, "top_k": 3}, "headers": {"X-Team": "blue"},
    }))
    .await;
    let mut request = ExecutionRequest::sample("hello");
    request.model = Some("other".to_owned());
    request.metadata =
        Some(json!({"openai-compatible": {"temperature": 0.1, "messages": [], "top_k": 9}}));
    bench.run(request).await.succeeded();
    let asked = bench.model.requests().pop().unwrap();
    assert_eq!(asked.headers["x-team"], "blue");
    let body = &asked.body;
    assert_eq!(
        (&body["temperature"], &body["top_k"], &body["model"]),
        (&json!(0.1), &json!(3), &json!("other"))
    );
    assert_eq!(body["messages"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn options_of_the_dispatch_go_before_the_operators_and_a_forced_call_is_made_once() {
    let bench = Bench::with(&json!({"extra": {"temperature": 0.5}})).await;
    let mut request = ExecutionRequest::sample("CALL crm.find {}");
    request.tools = vec![Tool {
        name: "crm.find".to_owned(),
        description: None,
        input_schema: json!({"type": "object"}),
    }];
    request.options = serde_json::from_value(json!({
        "temperature": 0.1, "topP": 0.9, "maxOutputTokens": 77, "reasoning": "off",
        "toolChoice": {"tool": "crm.find"}, "stop": ["END"], "seed": 7,
    }))
    .unwrap();
    let ran = bench.run(request.clone()).await;
    let body = bench.model.requests().pop().unwrap().body;
    let wanted = json!({
        "temperature": 0.1, "top_p": 0.9, "max_tokens": 77, "reasoning_effort": "none",
        "tool_choice": {"type": "function", "function": {"name": "crm_find"}}, "stop": ["END"], "seed": 7,
    });
    for (name, value) in wanted.as_object().unwrap() {
        assert_eq!(&body[name], value, "{name}");
    }
    let tool_results = vec![ToolResult {
        tool_call_id: ran.result.tool_calls[0].tool_call_id.clone(),
        name: "crm.find".to_owned(),
        output: json!("bob"),
        is_error: false,
    }];
    request.turns = vec![Turn {
        output: None,
        tool_calls: ran.result.tool_calls,
        tool_results: tool_results.clone(),
    }];
    request.tool_results = tool_results;
    request.session_id = ran.result.session_id;
    bench.run(request).await.succeeded();
    let body = bench.model.requests().pop().unwrap().body;
    assert_eq!(
        (&body["seed"], &body["tool_choice"]),
        (&json!(7), &json!(null))
    );
}

#[tokio::test]
async fn half_a_character_and_counts_as_floats_are_read() {
    let bench = Bench::new().await;
    let ran = bench.say("ODDLY please").await;
    ran.succeeded();
    assert_eq!(ran.output(), "po\u{fffd}ng: ODDLY please");
    assert_eq!(ran.text(), ran.output());
    assert_eq!(ran.result.usage.total_tokens, Some(40));
}
