//! Tests of the fake model endpoint, which must behave alike in its four protocols.

use forge_test_model::Model;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::harness::Api;

/// Request of a protocol, and pointers to text and tool call in its answer.
struct Protocol {
    path: &'static str,
    stream: &'static str,
    ask: fn(&str) -> Value,
    text: &'static str,
    tool: &'static str,
}

const PROTOCOLS: [Protocol; 4] = [
    Protocol {
        path: "/v1/messages",
        stream: "/v1/messages",
        ask: |text| json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}),
        text: "/content/0/text",
        tool: "/content/0/name",
    },
    Protocol {
        path: "/v1/chat/completions",
        stream: "/v1/chat/completions",
        ask: |text| json!({"model": "m", "messages": [{"role": "user", "content": text}]}),
        text: "/choices/0/message/content",
        tool: "/choices/0/message/tool_calls/0/function/name",
    },
    Protocol {
        path: "/v1/responses",
        stream: "/v1/responses",
        ask: |text| json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]}),
        text: "/output/0/content/0/text",
        tool: "/output/0/name",
    },
    Protocol {
        path: "/v1beta/models/m:generateContent",
        stream: "/v1beta/models/m:streamGenerateContent?alt=sse",
        ask: |text| json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}),
        text: "/candidates/0/content/parts/0/text",
        tool: "/candidates/0/content/parts/0/functionCall/name",
    },
];

#[tokio::test]
async fn every_protocol_answers_calls_and_fails_as_the_prompt_says() {
    let model = Model::start().await;
    let api = Api::new(model.url().to_owned());
    for protocol in PROTOCOLS {
        let (status, answer) = api.post(protocol.path, &(protocol.ask)("hello")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            answer.pointer(protocol.text),
            Some(&json!("pong: hello")),
            "{answer}"
        );
        let (_, answer) = api
            .post(protocol.path, &(protocol.ask)("CALL look {\"at\": 1}"))
            .await;
        assert_eq!(
            answer.pointer(protocol.tool),
            Some(&json!("look")),
            "{answer}"
        );
        let (status, _) = api.post(protocol.path, &(protocol.ask)("FAIL429")).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let once = format!("FAILONCE503 {}", protocol.path);
        let (first, _) = api.post(protocol.path, &(protocol.ask)(&once)).await;
        let (second, _) = api.post(protocol.path, &(protocol.ask)(&once)).await;
        assert_eq!(
            (first, second),
            (StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK)
        );
    }
}

#[tokio::test]
async fn every_protocol_streams_in_pieces() {
    let model = Model::start().await;
    let api = Api::new(model.url().to_owned());
    for protocol in PROTOCOLS {
        let mut body = (protocol.ask)("hello there you");
        if protocol.stream == protocol.path {
            body["stream"] = true.into();
        }
        let request = api
            .request(reqwest::Method::POST, protocol.stream)
            .body(body.to_string());
        let answer = request.send().await.unwrap().text().await.unwrap();
        for piece in ["pong: he", "llo ther", "e you"] {
            assert!(answer.contains(piece), "{}: {answer}", protocol.stream);
        }
    }
}
