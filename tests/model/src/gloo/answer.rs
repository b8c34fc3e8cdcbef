//! Chat answers: the OpenAI format with the platform's additions.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::check::{Asked, Door};
use super::refusal;
use crate::Desk;
use crate::openai::{THOUGHT, prompt, tool_call, usage};
use crate::plan::{Plan, plan};
use crate::wire::{Frame, pieces, sse, text_of};

pub(super) async fn chat(desk: &Desk, door: Door, asked: &Asked) -> Response {
    let prompt = prompt(&asked.body);
    if door == Door::Guarded && prompt.text.contains("BLOCKED") {
        return refusal(StatusCode::FORBIDDEN, "blocked by the guardrails");
    }
    let plan = plan(desk, &prompt);
    match &plan {
        Plan::Fail(status) => refusal(*status, &format!("fake failure {}", status.as_u16())),
        Plan::Hang => std::future::pending().await,
        _ => {
            let id = format!("gloo-fake-{}", desk.number());
            if asked.body["stream"] == true {
                streamed(&id, door, asked, &plan, &prompt.text)
            } else {
                Json(whole(&id, door, asked, &plan)).into_response()
            }
        }
    }
}

/// Adds the members that describe the routing.
fn with_routing(mut answer: Value, asked: &Asked) -> Value {
    let is_auto = asked.mechanism == "auto_routing";
    let family = asked.model.split('-').nth(1).unwrap_or_default();
    for (name, value) in [
        ("provider", "Gloo AI".into()),
        ("model", asked.model.as_str().into()),
        ("model_family", family.into()),
        ("auto_routing", is_auto.into()),
        ("routing_mechanism", asked.mechanism.into()),
        (
            "routing_tier",
            if is_auto {
                "tier_2".into()
            } else {
                "standard".into()
            },
        ),
        (
            "routing_confidence",
            if is_auto { 0.87.into() } else { Value::Null },
        ),
        ("tradition", asked.body["tradition"].clone()),
    ] {
        answer[name] = value;
    }
    answer
}

fn citations(asked: &Asked) -> Value {
    let limit = asked.body["sources_limit"].as_u64().unwrap_or(3);
    (1..=limit)
        .map(|n| json!({"title": format!("Source {n}"), "url": format!("https://example.org/{n}")}))
        .collect()
}

fn sources_returned(asked: &Asked) -> Value {
    asked.body["sources_limit"].as_u64().unwrap_or(3).into()
}

fn whole(id: &str, door: Door, asked: &Asked, plan: &Plan) -> Value {
    let (message, reason) = match plan {
        Plan::Calls(calls) => {
            let calls: Vec<Value> = calls
                .iter()
                .enumerate()
                .map(|(n, call)| tool_call(n, call))
                .collect();
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            (message, "tool_calls")
        }
        plan => {
            let text = text_of(plan).unwrap().0;
            (json!({"role": "assistant", "content": text}), "stop")
        }
    };
    let mut answer = json!({
        "id": id, "object": "chat.completion", "created": 1, "usage": usage(),
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    });
    if door.is_grounded() {
        answer["sources_returned"] = sources_returned(asked);
        if asked.body["include_citations"] == true {
            answer["citations"] = citations(asked);
        }
    }
    with_routing(answer, asked)
}

fn streamed(id: &str, door: Door, asked: &Asked, plan: &Plan, prompt: &str) -> Response {
    let chunk = |choices: Value| {
        let chunk =
            json!({"id": id, "object": "chat.completion.chunk", "created": 1, "choices": choices});
        with_routing(chunk, asked)
    };
    let delta = |delta: Value| {
        Frame::new(&chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": null}]),
        ))
    };
    let mut frames = Vec::new();
    if door.is_grounded() && asked.body["include_citations"] == true {
        frames.push(Frame::new(&json!({"citations": citations(asked)})));
    }
    frames.push(delta(json!({"role": "assistant", "content": ""})));
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
            ("tool_calls", Duration::ZERO)
        }
        plan => {
            let (text, pace) = text_of(plan).unwrap();
            if let Plan::Thought(_) = plan {
                frames.push(delta(json!({"reasoning_content": THOUGHT})));
            }
            let said = pieces(&text);
            frames.extend(
                said.iter()
                    .map(|piece| delta(json!({"content": piece})).piece()),
            );
            ("stop", pace)
        }
    };
    if prompt.contains("GARBLED") {
        frames.push(Frame::text("{\"choices\": [{"));
    }
    if prompt.contains("CUTSHORT") {
        return sse(frames, pace);
    }
    let mut last = chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]));
    if door.is_grounded() {
        last["sources_returned"] = sources_returned(asked);
    }
    frames.push(Frame::new(&last));
    if asked.body["stream_options"]["include_usage"] == true && !plan.is_empty() {
        let mut counted = chunk(json!([]));
        counted["usage"] = usage();
        frames.push(Frame::new(&counted));
    }
    if prompt.contains("WITHDONE") {
        frames.push(Frame::text("[DONE]"));
    }
    sse(frames, pace)
}
