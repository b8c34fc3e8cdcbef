//! Compares the requests of the mode `direct` with those of the real `ai` package.

use std::collections::BTreeMap;

use forge_adapter_api::ExecutionRequest;
use forge_adapter_api::request::{Tool, ToolResult, Turn};
use forge_adapter_api::result::ToolCall;
use forge_test_support::attachment::attached;
use serde_json::{Value, json};

use crate::bench::{Bench, MODELS, by_package, to};

/// Allowed differences with reasons. List indexes in paths are replaced by `*`.
const DIFFERENCES: [(&str, &str); 1] = [(
    "/tools/*/eager_input_streaming",
    "asks for arguments before they are known to be JSON; calls are handed over whole here",
)];

#[tokio::test]
async fn the_same_request_is_the_same_to_the_provider() {
    let (direct, package) = (Bench::new().await, Bench::with(&by_package()).await);
    let mut seen = BTreeMap::new();
    for model in MODELS.into_iter().chain(["openai/gpt-5", "openai-chat/o3"]) {
        for request in requests(model) {
            direct.run(request.clone()).await.succeeded();
            package.run(request).await.succeeded();
            let [ours, theirs] =
                [&direct, &package].map(|bench| bench.model.requests().pop().unwrap());
            assert_eq!(ours.path, theirs.path, "{model}");
            for header in [
                "x-api-key",
                "authorization",
                "x-goog-api-key",
                "anthropic-version",
                "content-type",
            ] {
                assert_eq!(
                    ours.headers.get(header),
                    theirs.headers.get(header),
                    "{model}: {header}"
                );
            }
            compare("", &ours.body, &theirs.body, &mut |path, ours, theirs| {
                seen.insert(
                    path.to_owned(),
                    format!("{model}: ours {ours}, theirs {theirs}"),
                );
            });
        }
    }
    let explained = DIFFERENCES.map(|(path, _)| path);
    let strange: Vec<_> = seen
        .iter()
        .filter(|(path, _)| !explained.contains(&path.as_str()))
        .collect();
    assert!(strange.is_empty(), "{strange:#?}");
    for path in explained {
        assert!(seen.contains_key(path), "{path} does not differ any more");
    }
}

/// A text, a tool call, its round trip, and a schema.
fn requests(model: &str) -> [ExecutionRequest; 4] {
    let tool = Tool {
        name: "find".to_owned(),
        description: Some("finds".to_owned()),
        input_schema: json!({"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}),
    };
    let mut text = to(model, "hello there");
    text.system_prompt = Some("Be brief.".to_owned());
    let mut call = to(model, "CALL find {\"who\":\"bob\"}");
    call.tools = vec![tool];
    let mut round = call.clone();
    round.session_id = Some("0198c0de-0000-7000-8000-000000000000".to_owned());
    round.tool_results = vec![ToolResult {
        tool_call_id: "call_1".to_owned(),
        name: "find".to_owned(),
        output: json!("seven"),
        is_error: false,
    }];
    round.turns = vec![Turn {
        output: None,
        tool_calls: vec![ToolCall {
            tool_call_id: "call_1".to_owned(),
            name: "find".to_owned(),
            input: json!({"who": "bob"}),
        }],
        tool_results: round.tool_results.clone(),
    }];
    let mut schema = to(model, "give");
    schema.output_schema = Some(json!({
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false,
    }));
    [text, call, round, schema]
}

/// Calls `tell` for each difference.
fn compare(path: &str, ours: &Value, theirs: &Value, tell: &mut impl FnMut(&str, &Value, &Value)) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
            for name in names {
                let at = |object: &serde_json::Map<String, Value>| {
                    object.get(name).cloned().unwrap_or_default()
                };
                compare(&format!("{path}/{name}"), &at(ours), &at(theirs), tell);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            for (ours, theirs) in ours.iter().zip(theirs) {
                compare(&format!("{path}/*"), ours, theirs, tell);
            }
        }
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => tell(path, ours, theirs),
    }
}

#[tokio::test]
async fn options_are_the_same_to_the_provider() {
    let (direct, package) = (Bench::new().await, Bench::with(&by_package()).await);
    let mut strange = Vec::new();
    for (model, options) in [
        (
            "anthropic/claude-sonnet-4-5",
            json!({"temperature": 0.5, "maxOutputTokens": 700, "stop": ["END"], "toolChoice": {"tool": "find"}}),
        ),
        (
            "anthropic/claude-opus-5",
            json!({"reasoning": "medium", "toolChoice": "auto"}),
        ),
        (
            "anthropic/claude-sonnet-4-5",
            json!({"reasoning": "off", "topP": 0.9, "toolChoice": "required"}),
        ),
        (
            "openai/gpt-4.1",
            json!({"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 700, "toolChoice": "required"}),
        ),
        (
            "openai/gpt-5",
            json!({"reasoning": "high", "toolChoice": {"tool": "find"}}),
        ),
        (
            "openai-chat/gpt-4.1",
            json!({"temperature": 0.5, "topP": 0.9, "stop": ["END"], "seed": 7, "toolChoice": {"tool": "find"}}),
        ),
        (
            "google/gemini-2.5-flash",
            json!({"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 700, "stop": ["END"], "seed": 7,
                "reasoning": "off", "toolChoice": {"tool": "find"}}),
        ),
        (
            "google/gemini-2.5-flash",
            json!({"reasoning": "medium", "toolChoice": "required"}),
        ),
        ("google/gemini-3-pro-preview", json!({"reasoning": "low"})),
    ] {
        let [_, mut request, ..] = requests(model);
        request.options = serde_json::from_value(options.clone()).unwrap();
        direct.run(request.clone()).await.succeeded();
        package.run(request).await.succeeded();
        let (ours, theirs) = (direct.asked(), package.asked());
        compare("", &ours, &theirs, &mut |path, ours, theirs| {
            if !DIFFERENCES.iter().any(|(known, _)| *known == path) {
                strange.push(format!(
                    "{model} {options} {path}: ours {ours}, theirs {theirs}"
                ));
            }
        });
    }
    assert!(strange.is_empty(), "{strange:#?}");
}

#[tokio::test]
async fn attachments_are_the_same_to_the_provider() {
    let (direct, package) = (Bench::new().await, Bench::with(&by_package()).await);
    let folder = tempfile::tempdir().unwrap();
    let attached = |name: &str, media_type: &str| attached(folder.path(), name, media_type, b"abc");
    let mut strange = Vec::new();
    for model in MODELS {
        let mut request = to(model, "look");
        request.attachments = vec![
            attached("a.png", "image/png"),
            attached("b.pdf", "application/pdf"),
        ];
        direct.run(request.clone()).await.succeeded();
        package.run(request).await.succeeded();
        let (ours, theirs) = (direct.asked(), package.asked());
        assert_eq!(
            ours.to_string().matches("YWJj").count(),
            2,
            "{model}: {ours}"
        );
        compare("", &ours, &theirs, &mut |path, ours, theirs| {
            strange.push(format!("{model} {path}: ours {ours}, theirs {theirs}"));
        });
    }
    assert!(strange.is_empty(), "{strange:#?}");
}
