//! OpenAI's Responses protocol.

use forge_adapter_api::foreign_json;
use std::collections::BTreeSet;

use forge_adapter_api::options::{Reasoning, ToolChoice};
use forge_adapter_api::{AdapterError, Result};
use serde_json::{Value, json};

use crate::parts::{Part, parts};
use crate::wire::{
    Ask, Protocol, accepted, calls, delta, finish, native, set, system_role, text, usage,
};

const MOST_ITEMS: usize = 1024;

/// Accumulates the finished items of an answer.
#[derive(Default)]
pub(crate) struct Responses {
    items: Vec<Value>,
    /// Indexes of the items whose content came in pieces.
    in_pieces: BTreeSet<u64>,
}

impl Protocol for Responses {
    const NAME: &'static str = "responses";

    fn body(ask: &Ask<'_>) -> Value {
        let system = ask
            .system
            .map(|text| json!({"role": system_role(ask.model), "content": text}));
        let said = ask.messages.iter().flat_map(items);
        let input: Vec<Value> = system.into_iter().chain(said).collect();
        let mut body = json!({"model": ask.model, "input": input, "stream": true});
        let options = ask.options;
        let effort = options.reasoning.map(|effort| match effort {
            Reasoning::Off => json!({"effort": "none"}),
            effort => json!({"effort": effort.name(), "summary": "detailed"}),
        });
        let members = [
            ("temperature", options.temperature.map(Value::from)),
            ("top_p", options.top_p.map(Value::from)),
            (
                "max_output_tokens",
                options.max_output_tokens.map(Value::from),
            ),
            ("reasoning", effort),
        ];
        set(&mut body, members);
        if !ask.tools.is_empty() {
            let tools = ask.tools.iter().map(|tool| {
                let mut offered = json!({
                    "type": "function", "name": ask.names.to_model(&tool.name),
                    "parameters": tool.input_schema, "strict": false,
                });
                if let Some(description) = &tool.description {
                    offered["description"] = description.as_str().into();
                }
                offered
            });
            body["tools"] = tools.collect();
            body["tool_choice"] = match &options.tool_choice {
                None | Some(ToolChoice::Auto) => json!("auto"),
                Some(ToolChoice::None) => json!("none"),
                Some(ToolChoice::Required) => json!("required"),
                Some(ToolChoice::Tool(name)) => json!({"type": "function", "name": name}),
            };
        }
        if let Some(schema) = ask.schema {
            body["text"] = json!({"format": {
                "type": "json_schema", "strict": true, "name": "response", "schema": schema,
            }});
        }
        body
    }

    fn event(&mut self, event: &Value) -> Result<Vec<Value>> {
        let response = &event["response"];
        let is_piece = event.get("delta").is_some();
        if let Some(index) = event["output_index"].as_u64().filter(|_| is_piece) {
            self.in_pieces.insert(index);
        }
        Ok(match event["type"].as_str().unwrap_or_default() {
            "response.created" => vec![json!({"model": response["model"], "id": response["id"]})],
            "response.output_text.delta" => vec![delta(json!({"content": event["delta"]}))],
            "response.refusal.delta" => vec![delta(json!({"refusal": event["delta"]}))],
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                vec![delta(json!({"reasoning_content": event["delta"]}))]
            }
            "response.output_item.added" if event["item"]["type"] == "function_call" => {
                let item = &event["item"];
                vec![delta(json!({"tool_calls": [{
                    "index": event["output_index"], "id": item["call_id"],
                    "function": {"name": item["name"]},
                }]}))]
            }
            "response.function_call_arguments.delta" => vec![delta(json!({"tool_calls": [{
                "index": event["output_index"], "function": {"arguments": event["delta"]},
            }]}))],
            "response.output_item.done" => {
                if self.items.len() >= MOST_ITEMS {
                    let text = format!("the answer has more than {MOST_ITEMS} items");
                    return Err(AdapterError::new("upstream_error", text));
                }
                let whole = match event["output_index"].as_u64() {
                    Some(index) if !self.in_pieces.contains(&index) => whole(index, &event["item"]),
                    Some(_) | None => Vec::new(),
                };
                self.items.push(event["item"].clone());
                whole
            }
            "response.completed" => self.end(response, "stop"),
            "response.incomplete" => {
                let reason = match response["incomplete_details"]["reason"].as_str() {
                    Some("content_filter") => "content_filter",
                    Some(_) | None => "length",
                };
                self.end(response, reason)
            }
            "response.failed" => {
                let error = match &response["error"] {
                    Value::Null => {
                        json!({"message": "the server reported a failure without a reason"})
                    }
                    error => error.clone(),
                };
                vec![counted(&response["usage"]), json!({ "error": error })]
            }
            "error" => vec![json!({"error": event.get("error").unwrap_or(event)})],
            _ => Vec::new(),
        })
    }

    /// Reasoning items have to be sent back with the calls that followed them.
    fn native(self) -> Option<Value> {
        let has_thoughts = self.items.iter().any(|item| item["type"] == "reasoning");
        has_thoughts.then_some(Value::Array(self.items))
    }
}

impl Responses {
    /// Ends the answer. Some servers send its content in the last event alone.
    fn end(&mut self, response: &Value, reason: &str) -> Vec<Value> {
        let mut chunks = Vec::new();
        if self.items.is_empty() && self.in_pieces.is_empty() {
            let items = response["output"].as_array().into_iter().flatten();
            for (index, item) in (0..).zip(items.take(MOST_ITEMS)) {
                chunks.extend(whole(index, item));
                self.items.push(item.clone());
            }
        }
        chunks.extend([counted(&response["usage"]), finish(reason)]);
        chunks
    }
}

/// Chunks of an item that did not come in pieces.
fn whole(index: u64, item: &Value) -> Vec<Value> {
    let texts = |member: &str, wanted: &str| -> String {
        let parts = item[member].as_array().into_iter().flatten();
        parts.filter_map(|part| part[wanted].as_str()).collect()
    };
    match item["type"].as_str().unwrap_or_default() {
        "message" => vec![delta(json!({
            "content": texts("content", "text"), "refusal": texts("content", "refusal"),
        }))],
        "reasoning" => vec![delta(json!({
            "reasoning_content": texts("summary", "text") + &texts("content", "text"),
        }))],
        "function_call" => vec![delta(json!({"tool_calls": [{
            "index": index, "id": item["call_id"],
            "function": {"name": item["name"], "arguments": item["arguments"]},
        }]}))],
        _ => Vec::new(),
    }
}

fn counted(told: &Value) -> Value {
    if !told.is_object() {
        return json!({});
    }
    let count = |path: &str| told.pointer(path).and_then(foreign_json::count);
    usage(
        count("/input_tokens"),
        count("/output_tokens"),
        count("/input_tokens_details/cached_tokens"),
        None,
        count("/output_tokens_details/reasoning_tokens"),
    )
}

fn items(message: &Value) -> Vec<Value> {
    if let Some(Value::Array(items)) = native(message, Responses::NAME) {
        return accepted(items, |item| item["type"] == "reasoning");
    }
    match message["role"].as_str().unwrap_or_default() {
        "assistant" => {
            let text = text(message);
            let text = (!text.is_empty()).then(|| json!({"role": "assistant", "content": text}));
            let calls = calls(message).map(|(id, name, input)| {
                json!({"type": "function_call", "call_id": id, "name": name, "arguments": input.to_string()})
            });
            text.into_iter().chain(calls).collect()
        }
        "tool" => vec![json!({
            "type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"],
        })],
        _ => {
            let content: Value = parts(message).iter().map(input).collect();
            vec![json!({"role": "user", "content": content})]
        }
    }
}

fn input(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({"type": "input_text", "text": text}),
        Part::Image(content) => json!({"type": "input_image", "image_url": content.whole}),
        Part::File { name, content } => {
            json!({"type": "input_file", "filename": name, "file_data": content.whole})
        }
    }
}
