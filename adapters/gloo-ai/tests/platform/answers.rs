//! Results of single runs, on both generations of paths.

use forge_adapter_api::request::{Tool, ToolResult, Turn};
use forge_adapter_api::{ExecutionRequest, Usage};
use forge_test_model::gloo::{API_KEY, CLIENT_ID, CLIENT_SECRET, ROUTED_MODEL};
use forge_test_support::conversation::every_order;
use forge_test_support::execution::run;
use forge_test_support::tool::find;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bench::{Bench, CALL_COST, about, adapter};

#[tokio::test]
async fn a_text_is_routed_streamed_and_paid_for() {
    let bench = Bench::new().await;
    let mut request = ExecutionRequest::sample("hello");
    request.system_prompt = Some("You answer.".to_owned());
    let ran = bench.run(request).await;

    assert_eq!(ran.succeeded(), "pong: hello");
    assert_eq!(ran.text(), "pong: hello");
    assert!(ran.all("assistant.text").len() > 1, "it came in pieces");
    assert_eq!(
        ran.result.usage,
        Usage {
            input_tokens: Some(31),
            output_tokens: Some(9),
            thinking_tokens: Some(2),
            total_tokens: Some(40),
            cache_read_tokens: Some(5),
            cache_write_tokens: None,
        }
    );
    assert!((ran.result.cost_usd.unwrap() - CALL_COST).abs() < 1e-12);
    assert_eq!(ran.all("usage")[0]["outputTokens"], 9);
    assert_eq!(ran.result.model.as_deref(), Some(ROUTED_MODEL));
    assert_eq!(ran.result.model_provider.as_deref(), Some("anthropic"));
    assert_eq!(
        about(&ran),
        json!({
            "provider": "Gloo AI", "modelFamily": "anthropic", "autoRouting": true,
            "routingMechanism": "auto_routing", "routingTier": "tier_2", "routingConfidence": 0.87,
        })
    );
    let (path, body) = bench.asked();
    assert_eq!(path, "/ai/v2/guarded/chat/completions");
    assert_eq!(body["messages"][0]["content"], "You answer.");
    assert_eq!(body["auto_routing"], true);
}

#[tokio::test]
async fn a_model_is_routed_chosen_or_taken_of_a_family() {
    let bench = Bench::new().await;
    for (model, mechanism, answered_by) in [
        ("auto", "auto_routing", ROUTED_MODEL),
        ("family:Open Source", "model_family", "gloo-deepseek-r1"),
        (
            "gloo-openai-gpt-5-mini",
            "direct_model_selection",
            "gloo-openai-gpt-5-mini",
        ),
    ] {
        let mut request = ExecutionRequest::sample("hello");
        request.model = Some(model.to_owned());
        let ran = bench.run(request).await;
        ran.succeeded();
        assert_eq!(ran.result.model.as_deref(), Some(answered_by));
        assert_eq!(about(&ran)["routingMechanism"], mechanism);
    }
}

#[tokio::test]
async fn grounded_answers_come_with_their_sources_on_both_generations() {
    for (generation, path) in [
        ("newer", "/ai/v2/grounded/chat/completions"),
        ("older", "/ai/v2/chat/completions/grounded"),
    ] {
        let bench = Bench::with(json!({
            "generation": generation, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET,
            "tradition": "mainline", "rag_publisher": "GlooGrounded",
        }))
        .await;
        let ran = bench
            .run(wishing(
                &json!({"surface": "grounded", "sourcesLimit": 2, "includeCitations": true}),
            ))
            .await;
        ran.succeeded();
        let citations = json!([
            {"title": "Source 1", "url": "https://example.org/1"},
            {"title": "Source 2", "url": "https://example.org/2"},
        ]);
        assert_eq!(
            ran.all("gloo.citations"),
            [&json!({"citations": citations})]
        );
        let kinds: Vec<_> = ran.events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(
            kinds[..3],
            ["session.updated", "gloo.citations", "assistant.text"]
        );
        let about = about(&ran);
        assert_eq!(about["citations"], citations);
        assert_eq!(about["sourcesReturned"], 2);
        assert_eq!(about["tradition"], "mainline");
        let (asked, body) = bench.asked();
        assert_eq!(
            (asked.as_str(), &body["rag_publisher"]),
            (path, &json!("GlooGrounded"))
        );
    }
}

#[tokio::test]
async fn the_other_paths_are_asked_without_what_only_grounded_ones_take() {
    for (table, path) in [
        (
            json!({"surface": "direct"}),
            "/ai/v2/direct/chat/completions",
        ),
        (json!({"generation": "older"}), "/ai/v2/chat/completions"),
    ] {
        let mut table = table;
        table["client_id"] = CLIENT_ID.into();
        table["client_secret"] = CLIENT_SECRET.into();
        let bench = Bench::with(table).await;
        bench
            .run(wishing(&json!({"sourcesLimit": 2})))
            .await
            .succeeded();
        assert_eq!(bench.asked().0, path);
    }
}

#[tokio::test]
async fn a_stream_ends_with_or_without_done() {
    let bench = Bench::new().await;
    for message in ["hello", "WITHDONE hello"] {
        let ran = bench.say(message).await;
        assert_eq!(ran.succeeded(), format!("pong: {message}"));
        assert_eq!(ran.result.usage.output_tokens, Some(9));
    }
}

#[tokio::test]
async fn calls_of_tools_are_handed_back_and_answered_in_the_next_round() {
    let bench = Bench::new().await;
    let mut request = ExecutionRequest::sample("CALL look {\"at\":\"Romans 8\"}");
    request.tools = vec![Tool {
        name: "look".to_owned(),
        description: None,
        input_schema: json!({"type": "object"}),
    }];
    let first = bench.run(request.clone()).await;
    first.succeeded();
    let [call] = first.result.tool_calls.as_slice() else {
        panic!("{:?}", first.result);
    };
    assert_eq!(
        (call.name.as_str(), &call.input),
        ("look", &json!({"at": "Romans 8"}))
    );
    assert_eq!(first.result.usage.output_tokens, Some(9));

    let results = vec![ToolResult {
        tool_call_id: call.tool_call_id.clone(),
        name: call.name.clone(),
        output: "found it".into(),
        is_error: false,
    }];
    request.tool_results = results.clone();
    request.turns = vec![Turn {
        output: None,
        tool_calls: first.result.tool_calls.clone(),
        tool_results: results,
    }];
    let second = bench.run(request.clone()).await;
    assert_eq!(second.succeeded(), "tool said: found it");

    request.turns.clear();
    request.session_id = Some(Uuid::now_v7().to_string());
    bench.run(request).await.failed("session_not_found");
}

#[tokio::test]
async fn the_next_dispatch_of_the_session_answers_the_calls_and_the_folder_outlives_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let table = json!({"api_key": API_KEY, "session_dir": folder.path()});
    let bench = Bench::with(table.clone()).await;
    let mut request = ExecutionRequest::sample("CALL find {\"who\":\"bob\"}");
    request.tools = vec![find("find")];
    let asked = bench.run(request.clone()).await;
    asked.succeeded();
    assert_eq!(
        asked.all("session.updated")[0]["sessionId"],
        json!(asked.result.session_id)
    );
    request.session_id.clone_from(&asked.result.session_id);
    request.tool_results = asked.tool_results(&json!("seven"));
    request.message = "and now?".to_owned();
    let again = adapter(bench.gloo.url(), table).await;
    let answered = run(&again, request).await;
    assert_eq!(answered.succeeded(), "pong: and now?");
    let said = bench.asked().1["messages"].to_string();
    assert!(said.contains("seven") && said.contains("bob"), "{said}");
}

#[tokio::test]
async fn no_turn_makes_the_next_one_fail() {
    let bench = Bench::new().await;
    every_order(&bench.adapter, None).await;
}

fn wishing(own: &Value) -> ExecutionRequest {
    let mut request = ExecutionRequest::sample("hello");
    request.metadata = Some(json!({"gloo-ai": own}));
    request
}

#[tokio::test]
async fn options_of_the_dispatch_go_before_the_operators() {
    let bench =
        Bench::with(json!({"api_key": API_KEY, "max_tokens": 500, "temperature": 1.0})).await;
    let mut request = ExecutionRequest::sample("hello");
    request.options.max_output_tokens = Some(77);
    request.options.temperature = Some(0.25);
    request.options.seed = Some(7);
    bench.run(request).await.succeeded();
    let (_, body) = bench.asked();
    assert_eq!(
        (&body["max_tokens"], &body["temperature"]),
        (&json!(77), &json!(0.25))
    );
    assert_eq!(body.get("seed"), None, "the platform has none");
}
