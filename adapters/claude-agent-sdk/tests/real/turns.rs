//! Results of single runs: text, thoughts, usage, structured output, files, subagents, limits.

use std::fs;

use forge_adapter_api::options::Reasoning;
use forge_adapter_api::{OutputStrategy, request::Budget};
use serde_json::json;

use crate::bench::{Bench, used};

#[tokio::test]
async fn a_text_is_streamed_and_paid_for() {
    let bench = Bench::new().await;
    let mut request = bench.request("hello");
    request.system_prompt = Some("You answer.".to_owned());

    let ran = bench.run(request).await;

    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.output(), "pong: hello");
    assert_eq!(ran.text(), "pong: hello");
    assert!(ran.all("assistant.text").len() > 1, "it came in pieces");
    assert_eq!(ran.result.model.as_deref(), Some("claude-sonnet-4-5"));
    assert_eq!(ran.all("session.updated").len(), 1);
    assert_eq!(
        ran.all("session.updated")[0]["sessionId"].as_str(),
        ran.result.session_id.as_deref()
    );
    let asked = bench.model.requests();
    assert!(asked[0].body["system"].to_string().contains("You answer."));
}

#[tokio::test]
async fn a_text_that_is_tried_again_is_withdrawn_first() {
    let bench = Bench::new().await;
    let ran = bench.say("FAULTONCE CUTOFF please answer").await;
    ran.succeeded();
    let withdrawn = ran.all("assistant.retracted");
    assert_eq!(withdrawn.len(), 1, "{:?}", ran.events);
    let texts = ran.all("assistant.text");
    let of = |is_withdrawn: bool| -> String {
        let stays = |data: &&&serde_json::Value| {
            (data["messageId"] == withdrawn[0]["messageId"]) == is_withdrawn
        };
        let texts = texts.iter().filter(stays);
        texts.map(|data| data["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(of(true), "pong: FA");
    assert_eq!(of(false), ran.output());
}

#[tokio::test]
async fn a_thought_is_streamed_beside_the_text() {
    let bench = Bench::new().await;
    let ran = bench.say("THINK about it").await;
    ran.succeeded();
    assert_eq!(ran.deltas("assistant.thinking"), "a fake thought");
    assert_eq!(ran.text(), "pong: THINK about it");
}

#[tokio::test]
async fn structured_output_is_given_or_its_absence_is_an_error() {
    let bench = Bench::new().await;
    let schema =
        json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let structured = |message: &str| {
        let mut request = bench.request(message);
        request.output_strategy = OutputStrategy::Structured;
        request.output_schema = Some(schema.clone());
        request
    };

    let good = bench
        .run(structured("CALL StructuredOutput {\"name\":\"bob\"}"))
        .await;
    good.succeeded();
    assert_eq!(good.result.structured_output, Some(json!({"name": "bob"})));

    let missing = bench.run(structured("just text")).await;
    missing.failed("output_invalid");
    assert_eq!(missing.result.structured_output, None);
    used(&missing, 2);
}

#[tokio::test]
async fn a_subagents_events_carry_the_call_that_began_it_and_its_usage_counts() {
    let bench = Bench::with(json!({"agents": {
        "helper": {"description": "helps", "prompt": "You are helper", "tools": ["Read"], "model": "haiku"},
    }}))
    .await;
    let ran = bench
        .say("CALL Task {\"subagent_type\":\"helper\",\"description\":\"do it\",\"prompt\":\"sub hello\"}")
        .await;
    ran.succeeded();
    let call = &ran.all("tool.invoked")[0]["toolCallId"];
    let subagent: Vec<_> = ran
        .all("assistant.text")
        .into_iter()
        .filter(|data| &data["parentToolCallId"] == call)
        .collect();
    assert_eq!(subagent.len(), 1, "{:?}", ran.events);
    assert_eq!(subagent[0]["delta"], "pong: sub hello");
    let calls = bench.model.requests().len() as u64;
    assert!(
        calls >= 4,
        "a call, its subagent, and the turn behind its notification: {calls}"
    );
    assert_eq!(
        ran.result.usage.output_tokens,
        Some(calls * crate::bench::CALL_OUTPUT)
    );
    assert!(ran.result.cost_usd.is_some());
}

#[tokio::test]
async fn a_run_ends_at_its_limits() {
    let bench = Bench::with(json!({"max_turns": 1, "allowed_tools": ["Bash(echo:*)"]})).await;
    let command = "CALL Bash {\"command\":\"echo x\",\"description\":\"d\"}";

    let turns = bench.say(command).await;
    turns.failed("max_turns");
    used(&turns, 1);

    let bench = Bench::with(json!({"allowed_tools": ["Bash(echo:*)"]})).await;
    let mut request = bench.request(command);
    request.budget = Some(Budget {
        max_cost_usd: Some(0.0001),
        max_tokens: None,
    });
    let budget = bench.run(request).await;
    budget.failed("budget_exceeded");
    used(&budget, 1);
}

#[tokio::test]
async fn files_below_the_workspace_are_written_without_asking() {
    let bench = Bench::new().await;
    let path = bench.workspace.path().join("note.md");
    let ran = bench
        .say(&format!(
            "CALL Write {}",
            json!({"file_path": path, "content": "written"})
        ))
        .await;
    ran.succeeded();
    used(&ran, 2);
    assert_eq!(fs::read_to_string(path).unwrap(), "written");

    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("note.md");
    let ran = bench
        .say(&format!(
            "CALL Write {}",
            json!({"file_path": path, "content": "written"})
        ))
        .await;
    ran.succeeded();
    assert_eq!(ran.all("tool.completed")[0]["isError"], true);
    assert!(!path.exists());
}

#[tokio::test]
async fn with_the_file_strategy_the_model_is_told_where_to_write() {
    let bench = Bench::new().await;
    let mut request = bench.request("hello");
    request.output_strategy = OutputStrategy::File;
    request.output_file = Some("answer.md".to_owned());
    bench.run(request).await.succeeded();
    assert!(
        bench.model.requests()[0].body["system"]
            .to_string()
            .contains("`answer.md`")
    );
}

#[tokio::test]
async fn the_effort_of_thinking_reaches_the_model() {
    let bench = Bench::new().await;
    for (reasoning, effort, thinking) in [
        (Reasoning::Low, json!("low"), true),
        (Reasoning::High, json!("high"), true),
        (Reasoning::Off, json!(null), false),
    ] {
        let mut request = bench.request("hello");
        request.model = Some("claude-opus-4-6".to_owned());
        request.options.reasoning = Some(reasoning);
        bench.run(request).await.succeeded();
        let body = bench.model.requests().pop().unwrap().body;
        let kind = body["thinking"]["type"].as_str().unwrap_or("disabled");
        assert_eq!(
            kind != "disabled",
            thinking,
            "{reasoning:?}: {}",
            body["thinking"]
        );
        if thinking {
            assert_eq!(body["output_config"]["effort"], effort, "{reasoning:?}");
        }
    }
}

#[tokio::test]
async fn half_a_character_and_counts_as_floats_are_read() {
    let bench = Bench::new().await;
    let ran = bench.say("ODDLY please").await;
    ran.succeeded();
    assert_eq!(ran.output(), "po\u{fffd}ng: ODDLY please");
    assert_eq!(ran.text(), ran.output());
    used(&ran, 1);
}
