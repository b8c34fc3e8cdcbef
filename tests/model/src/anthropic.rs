//! The Messages protocol.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::Desk;
use super::plan::{Call, Plan, Prompt, files, plan};
use super::wire::{Frame, array, pieces, sse, text_of, texts};

pub(crate) async fn answer(desk: &Desk, body: &Value) -> Response {
    let prompt = Prompt {
        text: prompt(body),
        tool_output: tool_output(body),
        schema: body["output_config"]["format"].get("schema").cloned(),
        files: files(body),
    };
    let plan = plan(desk, &prompt);
    let output_tokens = if plan.is_empty() { 0 } else { 12 };
    let (content, pace) = match plan {
        Plan::Fail(status) => {
            let kind = if status.as_u16() == 429 {
                "rate_limit_error"
            } else {
                "api_error"
            };
            let message = format!("fake failure {}", status.as_u16());
            let error = json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_fake"});
            return (status, Json(error)).into_response();
        }
        Plan::Hang => return std::future::pending().await,
        Plan::Calls(calls) => {
            let content = calls.iter().map(|call| tool_use(desk, call)).collect();
            (content, Duration::ZERO)
        }
        plan @ (Plan::Text(_) | Plan::Thought(_) | Plan::Slow) => {
            let (text, pace) = text_of(&plan).unwrap();
            let mut content = vec![json!({"type": "text", "text": text})];
            content.retain(|block| block["text"] != "");
            if let Plan::Thought(_) = plan {
                content.insert(
                    0,
                    json!({"type": "thinking", "thinking": "a fake thought", "signature": "c2ln"}),
                );
            }
            (content, pace)
        }
    };
    if body["stream"] == true {
        stream_of(desk, body, &content, output_tokens, pace)
    } else {
        let mut message = message(desk, body);
        message["stop_reason"] = stop_reason(&content).into();
        message["content"] = content.into();
        message["usage"]["output_tokens"] = output_tokens.into();
        Json(message).into_response()
    }
}

fn tool_use(desk: &Desk, call: &Call) -> Value {
    json!({"type": "tool_use", "id": format!("toolu_fake{}", desk.number()), "name": call.tool, "input": call.input})
}

fn message(desk: &Desk, body: &Value) -> Value {
    json!({
        "id": format!("msg_fake{}", desk.number()), "type": "message", "role": "assistant",
        "model": body["model"], "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 25, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 1},
    })
}

fn stop_reason(content: &[Value]) -> &'static str {
    if content.iter().any(|block| block["type"] == "tool_use") {
        "tool_use"
    } else {
        "end_turn"
    }
}

fn stream_of(
    desk: &Desk,
    body: &Value,
    content: &[Value],
    output_tokens: u64,
    pace: Duration,
) -> Response {
    let mut events = vec![json!({"type": "message_start", "message": message(desk, body)})];
    for (index, block) in content.iter().enumerate() {
        events.extend(block_events(index, block));
    }
    events.push(json!({
        "type": "message_delta", "delta": {"stop_reason": stop_reason(content), "stop_sequence": null},
        "usage": {"output_tokens": output_tokens},
    }));
    events.push(json!({"type": "message_stop"}));
    let frames = events.iter().map(|event| {
        let frame = Frame::typed(event);
        if event["type"] == "content_block_delta" {
            frame.piece()
        } else {
            frame
        }
    });
    sse(frames.collect(), pace)
}

fn block_events(index: usize, block: &Value) -> Vec<Value> {
    let delta =
        |delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let (start, deltas): (Value, Vec<Value>) = match block["type"].as_str().unwrap() {
        "tool_use" => (
            json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
            pieces(&block["input"].to_string())
                .iter()
                .map(|piece| delta(json!({"type": "input_json_delta", "partial_json": piece})))
                .collect(),
        ),
        "thinking" => (
            json!({"type": "thinking", "thinking": "", "signature": ""}),
            vec![
                delta(json!({"type": "thinking_delta", "thinking": block["thinking"]})),
                delta(json!({"type": "signature_delta", "signature": block["signature"]})),
            ],
        ),
        _ => (
            json!({"type": "text", "text": ""}),
            pieces(block["text"].as_str().unwrap())
                .iter()
                .map(|piece| delta(json!({"type": "text_delta", "text": piece})))
                .collect(),
        ),
    };
    let mut events =
        vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
    events.extend(deltas);
    events.push(json!({"type": "content_block_stop", "index": index}));
    events
}

/// The last text of the last user message with text; a `system-reminder` only if the message has nothing else.
fn prompt(body: &Value) -> String {
    array(&body["messages"])
        .iter()
        .rev()
        .filter(|message| message["role"] == "user")
        .find_map(|message| {
            let mut texts = texts(&message["content"]);
            // `claude` says after a picture where it has put it.
            texts.retain(|text| !text.trim().is_empty() && !text.starts_with("[Image: source: "));
            let last = texts
                .iter()
                .rfind(|text| !is_reminder(text))
                .or(texts.last());
            last.cloned()
        })
        .unwrap_or_default()
}

fn is_reminder(text: &str) -> bool {
    text.trim_start().starts_with("<system-reminder>")
}

/// The result of a tool if the last message has one and no new prompt.
fn tool_output(body: &Value) -> Option<String> {
    let last = body["messages"].as_array()?.last()?;
    let blocks = last["content"].as_array()?;
    let result = blocks.iter().find(|block| block["type"] == "tool_result")?;
    let prompted = texts(&last["content"])
        .iter()
        .any(|text| !is_reminder(text));
    (!prompted).then(|| match &result["content"] {
        Value::String(text) => text.clone(),
        content => texts(content).join("\n"),
    })
}
