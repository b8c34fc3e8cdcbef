//! The Chat Completions protocol.

use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::Desk;
use super::plan::{Call, Plan, Prompt, files, plan};
use super::wire::{Frame, array, pieces, sse, text_of, texts};

/// Begin of the notes of OpenClaw, which are messages of the user too.
const NOTE: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";

pub(crate) const THOUGHT: &str = "a fake thought";

pub(crate) async fn answer(desk: &Desk, body: &Value) -> Response {
    let prompt = prompt(body);
    let plan = plan(desk, &prompt);
    match &plan {
        Plan::Fail(status) => {
            let mut failure = (*status, Json(failure(*status))).into_response();
            if prompt.text.contains("SOON") {
                let soon = HeaderValue::from_static("10");
                failure.headers_mut().insert("retry-after-ms", soon);
            }
            if prompt.text.contains("USEDUP") {
                let used_up = json!({"error": {"message": "daily limit reached", "type": "rate_limit_error"}});
                failure = (*status, Json(used_up)).into_response();
            }
            failure
        }
        Plan::Hang => std::future::pending().await,
        Plan::Text(_) | Plan::Thought(_) | Plan::Slow | Plan::Calls(_) => {
            // A model `creator/model` is answered like a gateway, whose ids can be used to request the cost.
            let is_gateway = body["model"]
                .as_str()
                .is_some_and(|model| model.contains('/'));
            let kind = if is_gateway { "gen_" } else { "chatcmpl-" };
            let id = format!("{kind}fake{}", desk.number());
            if body["stream"] == true {
                streamed(&id, body, &plan)
            } else {
                whole(&id, body, &plan)
            }
        }
    }
}

pub(crate) fn failure(status: StatusCode) -> Value {
    let message = format!("fake failure {}", status.as_u16());
    // Clients decide on a retry by the type, not by the status.
    let kind = match status.as_u16() {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    json!({"error": {"message": message, "type": kind, "code": null, "param": null}})
}

fn whole(id: &str, body: &Value, plan: &Plan) -> Response {
    let (message, reason) = match plan {
        Plan::Calls(calls) => {
            let calls: Vec<Value> = calls
                .iter()
                .enumerate()
                .map(|(n, call)| tool_call(n, call))
                .collect();
            (
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
                "tool_calls",
            )
        }
        plan => {
            let mut message = json!({"role": "assistant", "content": text_of(plan).unwrap().0});
            if let Plan::Thought(_) = plan {
                message["reasoning_content"] = THOUGHT.into();
            }
            (message, end_of(body))
        }
    };
    Json(json!({
        "id": id, "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage(),
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }))
    .into_response()
}

fn streamed(id: &str, body: &Value, plan: &Plan) -> Response {
    let chunk = |choices: Value, usage: Value| {
        Frame::new(&json!({
            "id": id, "object": "chat.completion.chunk", "created": 1, "model": body["model"],
            "choices": choices, "usage": usage,
        }))
    };
    let delta = |delta: Value| {
        chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            Value::Null,
        )
    };
    let mut frames = vec![delta(json!({"role": "assistant", "content": ""}))];
    let (reason, pace) = match plan {
        Plan::Calls(calls) => {
            for (n, call) in calls.iter().enumerate() {
                let mut begun = tool_call(n, call);
                begun["function"]["arguments"] = "".into();
                frames.push(delta(json!({"tool_calls": [begun]})));
                frames.extend(pieces(&call.input.to_string()).iter().map(|piece| {
                    delta(json!({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}))
                }));
            }
            ("tool_calls", std::time::Duration::ZERO)
        }
        plan => {
            let (text, pace) = text_of(plan).unwrap();
            if let Plan::Thought(_) = plan {
                frames.push(delta(json!({"reasoning_content": THOUGHT})));
            }
            frames.extend(
                pieces(&text)
                    .iter()
                    .map(|piece| delta(json!({"content": piece})).piece()),
            );
            (end_of(body), pace)
        }
    };
    frames.push(chunk(
        json!([{"index": 0, "delta": {}, "finish_reason": reason}]),
        Value::Null,
    ));
    if body["stream_options"]["include_usage"] == true && !plan.is_empty() {
        frames.push(chunk(json!([]), usage()));
    }
    frames.push(Frame::text("[DONE]"));
    sse(frames, pace)
}

/// Reason for the end of a text: `LENGTHEND` and `FILTEREND` in the prompt are an answer cut off.
fn end_of(body: &Value) -> &'static str {
    let text = prompt(body).text;
    match (text.contains("LENGTHEND"), text.contains("FILTEREND")) {
        (true, _) => "length",
        (false, true) => "content_filter",
        (false, false) => "stop",
    }
}

pub(crate) fn tool_call(index: usize, call: &Call) -> Value {
    json!({
        "index": index, "id": format!("call_fake{index}"), "type": "function",
        "function": {"name": call.tool, "arguments": call.input.to_string()},
    })
}

/// Usage of every answer: 31 input tokens, 5 of them cached; 9 output tokens, 2 of them reasoning.
pub(crate) fn usage() -> Value {
    json!({
        "prompt_tokens": 31, "completion_tokens": 9, "total_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2},
    })
}

/// The prompt: the last message of the user that is no note of a program, and what a tool said after the last answer.
/// Of a prompt with `THEN`, each answer to it takes the next part.
pub(crate) fn prompt(body: &Value) -> Prompt {
    let is_note = |message: &&Value| texts(&message["content"]).join("").starts_with(NOTE);
    let messages = array(&body["messages"]).iter();
    let messages: Vec<&Value> = messages.filter(|message| !is_note(message)).collect();
    let answered = messages
        .iter()
        .rposition(|message| message["role"] == "assistant");
    let mut fresh = messages[answered.map_or(0, |at| at + 1)..].iter();
    let last = fresh.rfind(|message| message["role"] == "user" || message["role"] == "tool");
    let said = |message: &Value| texts(&message["content"]).join("\n");
    let user = messages
        .iter()
        .rposition(|message| message["role"] == "user");
    let text = user.map(|at| said(messages[at])).unwrap_or_default();
    let behind = messages.iter().skip(user.unwrap_or_default());
    let answers = behind
        .filter(|message| message["role"] == "assistant")
        .count();
    let next = text
        .split("THEN ")
        .nth(answers)
        .filter(|part| *part != text);
    Prompt {
        text: next.unwrap_or(&text).to_owned(),
        tool_output: last
            .filter(|message| message["role"] == "tool" && next.is_none())
            .map(|message| said(message)),
        schema: body["response_format"]["json_schema"]
            .get("schema")
            .cloned(),
        files: files(body),
    }
}
