//! The Responses protocol.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::Desk;
use super::openai::failure;
use super::plan::{Call, Plan, Prompt, files, plan};
use super::wire::{Frame, array, pieces, sse, text_of, texts};

pub(crate) async fn answer(desk: &Desk, body: &Value) -> Response {
    let plan = plan(desk, &prompt(body));
    let mut usage = usage();
    if plan.is_empty() {
        usage["output_tokens"] = 0.into();
    }
    let (items, pace) = match plan {
        Plan::Fail(status) => {
            return (status, Json(failure(status))).into_response();
        }
        Plan::Hang => return std::future::pending().await,
        Plan::Calls(calls) => {
            let items = calls
                .iter()
                .enumerate()
                .map(|(n, call)| call_item(n, call))
                .collect();
            (items, Duration::ZERO)
        }
        plan @ (Plan::Text(_) | Plan::Thought(_) | Plan::Slow) => {
            let (text, pace) = text_of(&plan).unwrap();
            let thought = matches!(plan, Plan::Thought(_)).then(|| thought_item(desk));
            let said = (!text.is_empty()).then(|| message_item(&text));
            (thought.into_iter().chain(said).collect::<Vec<_>>(), pace)
        }
    };
    let id = format!("resp_fake{}", desk.number());
    let response = |status: &str, output: Value, usage: Value| {
        json!({
            "id": id, "object": "response", "created_at": 1, "status": status, "model": body["model"],
            "output": output, "usage": usage, "error": null, "incomplete_details": null, "instructions": null,
            "metadata": {}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "temperature": 1, "top_p": 1,
        })
    };
    let completed = response("completed", json!(items), usage);
    if body["stream"] != true {
        return Json(completed).into_response();
    }
    let mut events = vec![
        json!({"type": "response.created", "response": response("in_progress", json!([]), Value::Null)}),
    ];
    for (index, item) in items.iter().enumerate() {
        events.extend(item_events(index, item));
    }
    events.push(json!({"type": "response.completed", "response": completed}));
    let frames = events.into_iter().enumerate().map(|(n, mut event)| {
        event["sequence_number"] = n.into();
        let frame = Frame::typed(&event);
        if event["type"] == "response.output_text.delta" {
            frame.piece()
        } else {
            frame
        }
    });
    sse(frames.collect(), pace)
}

fn call_item(index: usize, call: &Call) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_fake{index}"), "call_id": format!("call_fake{index}"),
        "name": call.tool, "arguments": call.input.to_string(), "status": "completed",
    })
}

fn thought_item(desk: &Desk) -> Value {
    json!({
        "type": "reasoning", "id": format!("rs_fake{}", desk.number()),
        "summary": [{"type": "summary_text", "text": "a fake thought"}],
    })
}

fn message_item(text: &str) -> Value {
    json!({
        "type": "message", "id": "msg_fake", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    })
}

fn item_events(index: usize, item: &Value) -> Vec<Value> {
    let mut begun = item.clone();
    begun["status"] = "in_progress".into();
    let event = |kind: &str, mut more: Value| {
        more["type"] = kind.into();
        more["output_index"] = index.into();
        more["item_id"] = item["id"].clone();
        more
    };
    let mut events = Vec::new();
    if item["type"] == "function_call" {
        begun["arguments"] = "".into();
        let arguments = item["arguments"].as_str().unwrap();
        events.push(event("response.output_item.added", json!({"item": begun})));
        events.extend(pieces(arguments).iter().map(|piece| {
            event(
                "response.function_call_arguments.delta",
                json!({"delta": piece}),
            )
        }));
        events.push(event(
            "response.function_call_arguments.done",
            json!({"arguments": arguments, "name": item["name"]}),
        ));
    } else if item["type"] == "reasoning" {
        begun["summary"] = json!([]);
        let text = &item["summary"][0]["text"];
        events.push(event("response.output_item.added", json!({"item": begun})));
        events.push(event(
            "response.reasoning_summary_text.delta",
            json!({"summary_index": 0, "delta": text}),
        ));
    } else {
        begun["content"] = json!([]);
        let part = &item["content"][0];
        let text = part["text"].as_str().unwrap();
        let empty = json!({"type": "output_text", "text": "", "annotations": []});
        events.push(event("response.output_item.added", json!({"item": begun})));
        events.push(event(
            "response.content_part.added",
            json!({"content_index": 0, "part": empty}),
        ));
        events.extend(pieces(text).iter().map(|piece| {
            event(
                "response.output_text.delta",
                json!({"content_index": 0, "delta": piece, "logprobs": []}),
            )
        }));
        events.push(event(
            "response.output_text.done",
            json!({"content_index": 0, "text": text, "logprobs": []}),
        ));
        events.push(event(
            "response.content_part.done",
            json!({"content_index": 0, "part": part}),
        ));
    }
    events.push(event("response.output_item.done", json!({"item": item})));
    events
}

fn usage() -> Value {
    json!({
        "input_tokens": 31, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 40,
    })
}

fn prompt(body: &Value) -> Prompt {
    let said = |item: &Value| texts(&item["content"]).join("\n");
    let (text, tool_output) = match &body["input"] {
        Value::String(text) => (text.clone(), None),
        items => {
            let items = array(items);
            let user = items.iter().rfind(|item| item["role"] == "user").map(said);
            let last = items
                .last()
                .filter(|item| item["type"] == "function_call_output");
            let output = last.map(|item| texts(&item["output"]).join("\n"));
            (user.unwrap_or_default(), output)
        }
    };
    Prompt {
        text,
        tool_output,
        schema: body["text"]["format"].get("schema").cloned(),
        files: files(body),
    }
}
