//! Anthropic's Messages protocol.

use forge_adapter_api::foreign_json;
use forge_adapter_api::options::{Reasoning, ToolChoice};
use forge_adapter_api::{AdapterError, Result};
use forge_adapter_openai_client::reason;
use serde_json::{Value, json};

use crate::parts::{DataUrl, Part, parts};
use crate::wire::{Ask, Protocol, accepted, calls, delta, finish, native, set, stop, text, usage};

/// Default of `max_tokens`, which the protocol requires; below every model's limit.
const MAX_TOKENS: u64 = 4096;
const MOST_BLOCKS: usize = 1024;

/// Accumulates the blocks of an answer.
#[derive(Default)]
pub(crate) struct Messages {
    blocks: Vec<Value>,
    /// Partial JSON arguments of the current call.
    arguments: String,
    input: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    fresh: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
}

impl Protocol for Messages {
    const NAME: &'static str = "messages";

    fn body(ask: &Ask<'_>) -> Value {
        let mut body = json!({
            "model": ask.model, "max_tokens": ask.options.max_output_tokens.unwrap_or(MAX_TOKENS),
            "messages": messages(ask.messages), "stream": true,
        });
        if let Some(system) = ask.system {
            body["system"] = json!([{"type": "text", "text": system}]);
        }
        if !ask.tools.is_empty() {
            let tools = ask.tools.iter().map(|tool| {
                let mut offered = json!({
                    "name": ask.names.to_model(&tool.name), "input_schema": tool.input_schema,
                });
                if let Some(description) = &tool.description {
                    offered["description"] = description.as_str().into();
                }
                offered
            });
            body["tools"] = tools.collect();
            body["tool_choice"] = match &ask.options.tool_choice {
                None | Some(ToolChoice::Auto) => json!({"type": "auto"}),
                Some(ToolChoice::None) => json!({"type": "none"}),
                Some(ToolChoice::Required) => json!({"type": "any"}),
                Some(ToolChoice::Tool(name)) => json!({"type": "tool", "name": name}),
            };
        }
        if let Some(schema) = ask.schema {
            body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}});
        }
        let options = ask.options;
        let sampling = [
            ("temperature", options.temperature.map(Value::from)),
            ("top_p", options.top_p.map(Value::from)),
            ("stop_sequences", stop(options)),
        ];
        set(&mut body, sampling);
        if let Some(effort) = options.reasoning {
            think(&mut body, ask.model, effort);
        }
        body
    }

    fn event(&mut self, event: &Value) -> Result<Vec<Value>> {
        Ok(match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                let message = &event["message"];
                let mut chunk = self.counted(&message["usage"], None);
                chunk["model"] = message["model"].clone();
                chunk["id"] = message["id"].clone();
                vec![chunk]
            }
            "content_block_start" => self.begin(event)?,
            "content_block_delta" => self.piece(event),
            "content_block_stop" => {
                self.end_call();
                Vec::new()
            }
            "message_delta" => {
                let output = foreign_json::count(&event["usage"]["output_tokens"]);
                let mut chunks = vec![self.counted(&event["usage"], output)];
                chunks.extend(reason(&event["delta"]["stop_reason"]).map(|reason| {
                    finish(match reason {
                        "max_tokens" | "model_context_window_exceeded" => "length",
                        "refusal" => "content_filter",
                        _ => "stop",
                    })
                }));
                chunks
            }
            "error" => vec![json!({"error": event["error"]})],
            _ => Vec::new(),
        })
    }

    /// Thinking blocks are signed and have to be sent back unchanged.
    fn native(self) -> Option<Value> {
        self.blocks
            .iter()
            .any(is_thought)
            .then_some(Value::Array(self.blocks))
    }
}

impl Messages {
    fn begin(&mut self, event: &Value) -> Result<Vec<Value>> {
        if self.blocks.len() >= MOST_BLOCKS {
            let text = format!("the answer has more than {MOST_BLOCKS} blocks");
            return Err(AdapterError::new("upstream_error", text));
        }
        let block = &event["content_block"];
        self.blocks.push(block.clone());
        self.arguments.clear();
        Ok(match block["type"].as_str().unwrap_or_default() {
            "tool_use" => vec![delta(json!({"tool_calls": [{
                "index": event["index"], "id": block["id"], "function": {"name": block["name"]},
            }]}))],
            "text" => vec![delta(json!({"content": block["text"]}))],
            _ => Vec::new(),
        })
    }

    fn piece(&mut self, event: &Value) -> Vec<Value> {
        let Some(block) = self.blocks.last_mut() else {
            return Vec::new();
        };
        let piece = &event["delta"];
        let mut append = |member: &str| {
            let said = block[member].as_str().unwrap_or_default();
            let text = format!("{said}{}", piece[member].as_str().unwrap_or_default());
            if block.is_object() {
                block[member] = text.into();
            }
        };
        match piece["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                append("text");
                vec![delta(json!({"content": piece["text"]}))]
            }
            "thinking_delta" => {
                append("thinking");
                vec![delta(json!({"reasoning_content": piece["thinking"]}))]
            }
            "signature_delta" => {
                if block.is_object() {
                    block["signature"] = piece["signature"].clone();
                }
                Vec::new()
            }
            "input_json_delta" => {
                let json = piece["partial_json"].as_str().unwrap_or_default();
                self.arguments.push_str(json);
                vec![delta(json!({"tool_calls": [{
                    "index": event["index"], "function": {"arguments": json},
                }]}))]
            }
            _ => Vec::new(),
        }
    }

    /// Completes a call. Invalid JSON is ignored here; `Completion` reports it.
    fn end_call(&mut self) {
        if let (Some(block), Ok(input)) = (
            self.blocks.last_mut(),
            foreign_json::from_str::<Value>(&self.arguments),
        ) && block["type"] == "tool_use"
        {
            block["input"] = input;
        }
        self.arguments.clear();
    }

    /// Updates the input counts and returns a usage chunk. Servers send the totals at the start, some again at the end.
    fn counted(&mut self, told: &Value, output: Option<u64>) -> Value {
        let count = |name: &str, known: Option<u64>| foreign_json::count(&told[name]).or(known);
        self.input = Counts {
            fresh: count("input_tokens", self.input.fresh),
            read: count("cache_read_input_tokens", self.input.read),
            written: count("cache_creation_input_tokens", self.input.written),
        };
        let Counts {
            fresh,
            read,
            written,
        } = self.input;
        let input = fresh.map(|fresh| {
            fresh
                .saturating_add(read.unwrap_or(0))
                .saturating_add(written.unwrap_or(0))
        });
        usage(input, output, read, written, None)
    }
}

/// Requests thinking: by effort, or for models before Claude 4.6 by a number of tokens on top of the answer's.
fn think(body: &mut Value, model: &str, effort: Reasoning) {
    let has = |names: &[&str]| names.iter().any(|name| model.contains(name));
    let by_tokens =
        has(&["claude-3", "sonnet-4", "opus-4", "haiku-4"]) && !has(&["4-6", "4-7", "4-8"]);
    let tokens = match effort {
        Reasoning::Off => {
            body["thinking"] = json!({"type": "disabled"});
            return;
        }
        Reasoning::Low => 4096,
        Reasoning::Medium => 12_288,
        Reasoning::High => 24_576,
    };
    if by_tokens {
        body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
        body["max_tokens"] = (body["max_tokens"].as_u64().unwrap_or(MAX_TOKENS) + tokens).into();
    } else {
        body["thinking"] = json!({"type": "adaptive", "display": "summarized"});
        body["output_config"]["effort"] = effort.name().into();
    }
}

/// Merges consecutive messages of one role, since turns have to alternate in this protocol.
fn messages(history: &[Value]) -> Value {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in history {
        let (role, blocks) = match message["role"].as_str().unwrap_or_default() {
            "assistant" => ("assistant", said(message)),
            "tool" => (
                "user",
                vec![json!({
                    "type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"],
                })],
            ),
            _ => ("user", parts(message).iter().map(block).collect()),
        };
        match turns.last_mut() {
            Some((last, all)) if *last == role => all.extend(blocks),
            Some(_) | None => turns.push((role, blocks)),
        }
    }
    let turns = turns.into_iter();
    turns
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect()
}

fn block(part: &Part<'_>) -> Value {
    let source = |content: &DataUrl<'_>| json!({"type": "base64", "media_type": content.media_type, "data": content.base64});
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(content) => json!({"type": "image", "source": source(content)}),
        Part::File { name, content } => {
            json!({"type": "document", "title": name, "source": source(content)})
        }
    }
}

fn is_thought(block: &Value) -> bool {
    let kind = block["type"].as_str().unwrap_or_default();
    kind.ends_with("thinking")
}

fn said(message: &Value) -> Vec<Value> {
    if let Some(Value::Array(blocks)) = native(message, Messages::NAME) {
        return accepted(blocks, is_thought);
    }
    let text = text(message);
    let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
    let calls = calls(message).map(
        |(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input}),
    );
    text.into_iter().chain(calls).collect()
}
