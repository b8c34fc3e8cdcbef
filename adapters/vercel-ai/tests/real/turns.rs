//! Successful runs by each protocol and through the gateway.

use forge_adapter_api::Usage;
use forge_test_support::execution::run;
use forge_test_support::tool::find;
use serde_json::{Value, json};

use crate::bench::{Bench, MODELS, adapter, config, to};

#[tokio::test]
async fn text_comes_in_pieces_with_usage_and_cost_by_the_price_list() {
    let prices: Value = MODELS
        .iter()
        .map(|model| ((*model).to_owned(), json!({"input": 1.0, "output": 10.0})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let bench = Bench::with(&json!({ "prices": prices })).await;
    for (model, input, output) in [
        (MODELS[0], 35, 12),
        (MODELS[1], 31, 9),
        (MODELS[2], 31, 9),
        (MODELS[3], 31, 9),
    ] {
        let ran = bench.run(to(model, "hello there")).await;
        ran.succeeded();
        assert_eq!(ran.output(), "pong: hello there", "{model}");
        assert_eq!(ran.text(), ran.output());
        let usage = ran.result.usage;
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (Some(input), Some(output)),
            "{model}"
        );
        assert_eq!(usage.total_tokens, Some(input + output));
        let cost = ran.result.cost_usd.unwrap() * 1e6;
        assert!(
            (cost - f64::from(u32::try_from(input + 10 * output).unwrap())).abs() < 1e-6,
            "{model}: {cost}"
        );
        assert_eq!(
            ran.result.model_provider.as_deref(),
            model.split('/').next()
        );
        assert!(ran.events.iter().any(|event| event.kind == "usage"));
    }
}

#[tokio::test]
async fn the_cached_part_of_the_input_is_told_and_what_is_not_known_is_null() {
    let bench = Bench::new().await;
    let ran = bench.run(to(MODELS[0], "hello")).await;
    let wanted = Usage {
        input_tokens: Some(35),
        output_tokens: Some(12),
        thinking_tokens: None,
        total_tokens: Some(47),
        cache_read_tokens: Some(7),
        cache_write_tokens: Some(3),
    };
    assert_eq!(ran.result.usage, wanted);
    assert_eq!(ran.result.cost_usd, None, "no cost reported");
    let ran = bench.run(to(MODELS[3], "hello")).await;
    assert_eq!(ran.result.usage.thinking_tokens, Some(2));
    assert_eq!(ran.result.usage.cache_write_tokens, None);
}

#[tokio::test]
async fn calls_are_handed_over_and_answered_by_the_next_run_of_the_session() {
    let bench = Bench::new().await;
    for model in MODELS {
        let mut request = to(
            model,
            "CALL crm_find {\"who\":\"bob\"} CALL crm_find {\"who\":\"eve\"}",
        );
        request.tools = vec![find("crm.find")];
        let ran = bench.run(request.clone()).await;
        ran.succeeded();
        let calls = ran.result.tool_calls.iter();
        let calls: Vec<_> = calls
            .map(|call| (call.name.as_str(), &call.input))
            .collect();
        let wanted = [json!({"who": "bob"}), json!({"who": "eve"})];
        assert_eq!(
            calls,
            [("crm.find", &wanted[0]), ("crm.find", &wanted[1])],
            "{model}"
        );

        request.session_id.clone_from(&ran.result.session_id);
        request.tool_results = ran.tool_results(&json!({"id": 7}));
        request.message = "go on".to_owned();
        let next = bench.run(request).await;
        next.succeeded();
        assert!(
            next.output() == "pong: go on" || next.output().starts_with("tool said"),
            "{model}: {}",
            next.output()
        );
        let asked = bench.asked().to_string();
        assert!(asked.contains("{\\\"id\\\":7}"), "{model}: {asked}");
    }
}

#[tokio::test]
async fn an_answer_follows_its_schema() {
    let schema = json!({
        "type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["name", "n"], "additionalProperties": false,
    });
    let bench = Bench::new().await;
    for model in MODELS {
        let mut request = to(model, "give");
        request.output_schema = Some(schema.clone());
        let ran = bench.run(request).await;
        ran.succeeded();
        let wanted = json!({"name": "sample", "n": 42});
        assert_eq!(ran.result.structured_output, Some(wanted), "{model}");
    }
}

#[tokio::test]
async fn thoughts_are_told_apart_and_come_back_signed() {
    let bench = Bench::new().await;
    let first = bench.run(to(MODELS[0], "THINK about it")).await;
    first.succeeded();
    assert_eq!(first.deltas("assistant.thinking"), "a fake thought");
    assert_eq!(first.output(), "pong: THINK about it");
    let mut request = to(MODELS[0], "and now?");
    request.session_id.clone_from(&first.result.session_id);
    bench.run(request.clone()).await.succeeded();
    let said = &bench.asked()["messages"][1]["content"];
    let wanted = json!([
        {"type": "thinking", "thinking": "a fake thought", "signature": "c2ln"},
        {"type": "text", "text": "pong: THINK about it"},
    ]);
    assert_eq!(*said, wanted);
    // Another provider gets only the text.
    for model in &MODELS[1..] {
        request.model = Some((*model).to_owned());
        bench.run(request.clone()).await.succeeded();
        let asked = bench.asked().to_string();
        assert!(
            asked.contains("pong: THINK") && !asked.contains("c2ln"),
            "{asked}"
        );
    }
}

#[tokio::test]
async fn a_conversation_goes_on_and_outlives_the_adapter_where_there_is_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::with(&json!({"session_dir": folder.path()})).await;
    let first = bench.say("my word is plum").await;
    let mut table = config(bench.model.url());
    table["session_dir"] = json!(folder.path());
    let again = adapter(table).await;
    let mut request = to(MODELS[1], "what is it?");
    request.session_id.clone_from(&first.result.session_id);
    let second = run(&again, request).await;
    second.succeeded();
    assert_eq!(second.result.session_id, first.result.session_id);
    let said = bench.asked()["input"].to_string();
    assert!(
        said.contains("my word is plum") && said.contains("pong: my word"),
        "{said}"
    );
}

#[tokio::test]
async fn the_gateway_is_asked_in_its_protocols_and_says_what_a_run_cost() {
    for (api, path) in [
        ("chat", "/v1/chat/completions"),
        ("responses", "/v1/responses"),
        ("messages", "/v1/messages"),
    ] {
        let bench = Bench::with(&json!({"mode": "gateway"})).await;
        let mut table = config(bench.model.url());
        table["mode"] = "gateway".into();
        table["gateway"]["api"] = api.into();
        let gateway = adapter(table).await;
        let request = to("openai/gpt-4.1", "hello");
        let ran = run(&gateway, request).await;
        ran.succeeded();
        assert_eq!(ran.output(), "pong: hello");
        let asked = bench.model.requests().pop().unwrap();
        assert_eq!(
            (asked.path.as_str(), asked.body["model"].as_str()),
            (path, Some("openai/gpt-4.1"))
        );
        assert_eq!(ran.result.model_provider.as_deref(), Some("openai"));
        // Only answers of Chat Completions carry an id that the gateway's cost request accepts.
        assert_eq!(
            ran.result.cost_usd,
            (api == "chat").then_some(0.00123),
            "{api}"
        );
    }
}

#[tokio::test]
async fn half_a_character_and_counts_as_floats_are_read() {
    let bench = Bench::new().await;
    for model in MODELS {
        let ran = bench.run(to(model, "ODDLY please")).await;
        ran.succeeded();
        assert_eq!(ran.output(), "po\u{fffd}ng: ODDLY please", "{model}");
        assert_eq!(ran.text(), ran.output());
        let total = if model == MODELS[0] { 47 } else { 40 };
        assert_eq!(ran.result.usage.total_tokens, Some(total), "{model}");
    }
}
