//! Successful runs: text, tools, structured output, sessions, questions.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_api::request::{Tool, ToolResult, Turn};
use serde_json::{Value, json};

use crate::bench::{Bench, in_session, paths, request, used};

#[tokio::test]
async fn a_text_is_streamed_and_told_whole_with_its_usage() {
    let bench = Bench::new().await;
    let ran = bench
        .run(ExecutionRequest {
            system_prompt: Some("be kind".to_owned()),
            model: Some("fake-7".to_owned()),
            ..request("hello, how are you today?")
        })
        .await;
    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.output(), "pong: hello, how are you today?");
    assert_eq!(ran.text(), ran.output());
    assert!(ran.all("assistant.text").len() > 2, "it comes in pieces");
    assert_eq!(ran.result.model.as_deref(), Some("fake-7"));
    assert_eq!(ran.result.model_provider.as_deref(), Some("openai"));
    assert_eq!(
        ran.progress("custom")[0]["value"],
        json!({"progress": "half"})
    );
    assert_eq!(ran.progress("node")[0]["node"], "think");
    assert_eq!(ran.all("session.updated")[0]["assistantId"], "agent");
    let asked = &bench.model.requests()[0].body;
    assert_eq!(asked["messages"][0]["content"], "be kind");
}

#[tokio::test]
async fn a_tool_of_the_graph_is_called_once_and_told_once() {
    let bench = Bench::new().await;
    let ran = bench.say("CALL add {\"a\": 40, \"b\": 2}").await;
    ran.succeeded();
    used(&ran, 2);
    assert_eq!(ran.output(), "tool said: 42");
    let (invoked, completed) = (ran.all("tool.invoked"), ran.all("tool.completed"));
    assert_eq!((invoked.len(), completed.len()), (1, 1));
    assert_eq!(invoked[0]["input"], json!({"a": 40, "b": 2}));
    assert_eq!(
        (&completed[0]["name"], &completed[0]["output"]),
        (&json!("add"), &json!("42"))
    );
    assert_eq!(invoked[0]["toolCallId"], completed[0]["toolCallId"]);
}

#[tokio::test]
async fn a_structured_answer_is_read_from_the_state() {
    let bench = Bench::new().await;
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                        "additionalProperties": false});
    let ran = bench
        .run(ExecutionRequest {
            output_schema: Some(schema),
            ..request("SCHEMA please")
        })
        .await;
    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.result.structured_output, Some(json!({"n": 42})));

    let ran = bench
        .run(ExecutionRequest {
            output_schema: Some(json!({"type": "object"})),
            ..request("just talk")
        })
        .await;
    ran.failed("output_invalid");
    assert_eq!(ran.output(), "pong: just talk");
}

#[tokio::test]
async fn a_graph_with_another_state_is_asked_in_its_shape() {
    let bench = Bench::with(json!({"assistant": "shop", "assistants": {"shop": {
        "input": {"question": "$message"}, "output": "reply.text", "structured": "reply",
    }}}))
    .await;
    let ran = bench
        .run(ExecutionRequest {
            output_schema: Some(json!({"type": "object"})),
            ..request("how much?")
        })
        .await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: how much?");
    assert_eq!(
        ran.result.structured_output,
        Some(json!({"text": "pong: how much?"}))
    );
    used(&ran, 1);
}

#[tokio::test]
async fn a_session_keeps_its_thread_and_bills_only_its_own_turn() {
    let bench = Bench::new().await;
    let first = bench.say("my word is plum").await;
    let session = first.result.session_id.clone().unwrap();
    let system = |text: &str, message: &str| ExecutionRequest {
        system_prompt: Some(text.to_owned()),
        ..in_session(&session, message)
    };
    let second = bench.run(system("be kind", "what is it")).await;
    let third = bench.run(system("be brief", "what was it?")).await;
    for ran in [&second, &third] {
        ran.succeeded();
        used(ran, 1);
        assert_eq!(ran.result.session_id.as_deref(), Some(session.as_str()));
    }
    let last = bench.model.requests().pop().unwrap().body["messages"].to_string();
    assert!(last.contains("plum"), "{last}");
    assert!(
        last.contains("be brief") && !last.contains("be kind"),
        "one system prompt, the newest: {last}"
    );

    let named = bench.say_in("any name will do", "hello").await;
    named.succeeded();
    assert_eq!(named.result.session_id.as_deref(), Some("any name will do"));
    let (thread, _) = paths(&named);
    assert!(bench.get(&thread).await.is_some());
}

#[tokio::test]
async fn a_question_is_a_result_that_asks_and_the_next_dispatch_answers() {
    let bench = Bench::new().await;
    let asked = bench.say_in("asking", "ASK me").await;
    asked.failed("input_required");
    let question = &asked.result.input_request.as_ref().unwrap()["interrupts"][0];
    assert_eq!(
        question["value"],
        json!({"question": "go on?", "about": "ASK me"})
    );
    assert!(asked.result.error.as_ref().unwrap().contains("go on?"));

    let answered = bench.say_in("asking", "certainly").await;
    answered.succeeded();
    used(&answered, 1);
    assert_eq!(answered.output(), "pong: the human said certainly");

    bench
        .say_in("asking", "ASK me again")
        .await
        .failed("input_required");
    let answered = bench
        .run(ExecutionRequest {
            metadata: Some(json!({"langgraph": {"resume": {"ok": true}}})),
            ..in_session("asking", "")
        })
        .await;
    assert_eq!(answered.output(), "pong: the human said {'ok': True}");
}

#[tokio::test]
async fn two_questions_at_once_are_answered_by_name() {
    let bench = Bench::new().await;
    let asked = bench.say_in("two", "TWICE").await;
    asked.failed("input_required");
    let interrupts = asked.result.input_request.as_ref().unwrap()["interrupts"].clone();
    let interrupts = interrupts.as_array().unwrap();
    assert_eq!(interrupts.len(), 2);
    let answers: serde_json::Map<String, Value> = interrupts
        .iter()
        .map(|one| (one["id"].as_str().unwrap().to_owned(), json!("large")))
        .collect();
    let answered = bench
        .run(ExecutionRequest {
            metadata: Some(json!({"langgraph": {"resume": answers}})),
            ..in_session("two", "")
        })
        .await;
    answered.succeeded();
}

#[tokio::test]
async fn a_call_of_the_callers_tool_is_handed_back_and_goes_on_with_its_result() {
    let bench = Bench::new().await;
    let asking = ExecutionRequest {
        tools: vec![Tool {
            name: "find".to_owned(),
            description: None,
            input_schema: json!({"type": "object", "properties": {"who": {"type": "string"}}}),
        }],
        ..in_session("tools", "CALL find {\"who\": \"bob\"}")
    };
    let asked = bench.run(asking.clone()).await;
    let call = asked.result.tool_calls[0].clone();
    assert_eq!(
        (call.name.as_str(), &call.input),
        ("find", &json!({"who": "bob"}))
    );
    assert!(asked.all("tool.invoked").is_empty(), "the bridge emits it");

    let result = ToolResult {
        tool_call_id: call.tool_call_id.clone(),
        name: "find".to_owned(),
        output: json!("room 7"),
        is_error: false,
    };
    let answered = bench
        .run(ExecutionRequest {
            turns: vec![Turn {
                output: None,
                tool_calls: vec![call],
                tool_results: vec![result.clone()],
            }],
            tool_results: vec![result],
            ..asking
        })
        .await;
    answered.succeeded();
    used(&answered, 1);
    assert_eq!(answered.output(), "tool said: room 7");
}

#[tokio::test]
async fn half_a_character_ends_the_run_of_the_server_with_its_reason() {
    let bench = Bench::new().await;
    let ran = bench.say("ODDLY please").await;
    // Its own serializer refuses what its model wrote.
    ran.failed_with("adapter_error", "surrogates not allowed");
    // Its text arrives before the end, or not at all.
    let output = ran.output();
    assert!(
        output.is_empty() || output.ends_with("ng: ODDLY please"),
        "{output}"
    );
}
