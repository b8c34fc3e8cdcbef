//! The Gemini protocol.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::Desk;
use super::plan::{Plan, Prompt, files, plan};
use super::wire::{Frame, array, pieces, sse, text_of};

/// `generateContent`.
pub(crate) async fn whole(desk: &Desk, body: &Value) -> Response {
    match plan(desk, &prompt(body)) {
        Plan::Fail(status) => failure(status),
        Plan::Hang => std::future::pending().await,
        Plan::Calls(calls) => {
            let parts = calls
                .iter()
                .map(|call| json!({"functionCall": {"name": call.tool, "args": call.input}}));
            Json(chunk(parts.collect(), IsLast::Yes)).into_response()
        }
        plan @ (Plan::Text(_) | Plan::Thought(_) | Plan::Slow) => {
            let text = text_of(&plan).unwrap().0;
            Json(chunk(vec![json!({"text": text})], IsLast::Yes)).into_response()
        }
    }
}

/// `streamGenerateContent?alt=sse`.
pub(crate) async fn streamed(desk: &Desk, body: &Value) -> Response {
    let plan = plan(desk, &prompt(body));
    let is_empty = plan.is_empty();
    let (mut parts, pace) = match plan {
        Plan::Fail(status) => return failure(status),
        Plan::Hang => return std::future::pending().await,
        Plan::Calls(calls) => {
            let parts = calls
                .iter()
                .map(|call| json!({"functionCall": {"name": call.tool, "args": call.input}}));
            (parts.collect(), Duration::ZERO)
        }
        plan @ (Plan::Text(_) | Plan::Thought(_) | Plan::Slow) => {
            let (text, pace) = text_of(&plan).unwrap();
            let thought = json!({"text": "a fake thought", "thought": true});
            let thought = matches!(plan, Plan::Thought(_)).then_some(thought);
            let mut parts: Vec<Value> = pieces(&text)
                .iter()
                .map(|piece| json!({"text": piece}))
                .collect();
            if let (Some(_), Some(first)) = (&thought, parts.first_mut()) {
                first["thoughtSignature"] = "c2ln".into();
            }
            (thought.into_iter().chain(parts).collect::<Vec<_>>(), pace)
        }
    };
    let last = parts.pop().into_iter().collect();
    let mut frames: Vec<Frame> = parts
        .into_iter()
        .map(|part| Frame::new(&chunk(vec![part], IsLast::No)).piece())
        .collect();
    let mut last = chunk(last, IsLast::Yes);
    if is_empty {
        last["usageMetadata"]["candidatesTokenCount"] = 0.into();
        last["usageMetadata"]["thoughtsTokenCount"] = 0.into();
    }
    frames.push(Frame::new(&last).piece());
    sse(frames, pace)
}

#[derive(PartialEq)]
enum IsLast {
    Yes,
    No,
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the parts become the chunk's"
)]
fn chunk(parts: Vec<Value>, is_last: IsLast) -> Value {
    let mut chunk = json!({
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "modelVersion": "fake-1", "responseId": "gem_fake",
    });
    if is_last == IsLast::Yes {
        chunk["candidates"][0]["finishReason"] = "STOP".into();
        chunk["usageMetadata"] = json!({
            "promptTokenCount": 31, "candidatesTokenCount": 7, "thoughtsTokenCount": 2,
            "cachedContentTokenCount": 5, "totalTokenCount": 40,
        });
    }
    chunk
}

fn failure(status: axum::http::StatusCode) -> Response {
    let message = format!("fake failure {}", status.as_u16());
    let error =
        json!({"error": {"code": status.as_u16(), "message": message, "status": "UNAVAILABLE"}});
    (status, Json(error)).into_response()
}

fn prompt(body: &Value) -> Prompt {
    let contents = array(&body["contents"]);
    let text = contents
        .iter()
        .rev()
        .filter(|content| content["role"] != "model")
        .find_map(|content| {
            let parts = array(&content["parts"]).iter();
            parts.rev().find_map(|part| part["text"].as_str())
        });
    let answered = contents.last().and_then(|content| {
        let response = array(&content["parts"])
            .iter()
            .find_map(|part| part.get("functionResponse"))?;
        Some(response["response"].to_string())
    });
    let config = &body["generationConfig"];
    Prompt {
        text: text.unwrap_or_default().to_owned(),
        tool_output: answered,
        schema: config
            .get("responseSchema")
            .or(config.get("responseJsonSchema"))
            .cloned(),
        files: files(body),
    }
}
