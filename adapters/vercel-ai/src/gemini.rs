//! Google's Gemini protocol, `streamGenerateContent`.

use forge_adapter_api::foreign_json;
use forge_adapter_api::options::{Reasoning, ToolChoice};
use forge_adapter_api::{AdapterError, Result};
use forge_adapter_openai_client::reason;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::parts::{Part, parts};
use crate::wire::{Ask, Protocol, accepted, calls, delta, finish, native, set, stop, text, usage};

const MOST_PARTS: usize = 100_000;

/// Accumulates the parts of an answer.
#[derive(Default)]
pub(crate) struct Gemini {
    parts: Vec<Value>,
    calls: u64,
}

impl Gemini {
    /// Path of the request. Contains the model, which must be a name or names separated by `/`.
    pub(crate) fn path(model: &str) -> Result<String> {
        let is_name = |part: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty() && part != "." && part != ".." && part.chars().all(is_letter)
        };
        if !model.split('/').all(is_name) {
            let text = format!("{model:?} is not a valid model name");
            return Err(AdapterError::new("invalid_request", text));
        }
        let folder = if model.contains('/') { "" } else { "models/" };
        Ok(format!("/{folder}{model}:streamGenerateContent?alt=sse"))
    }
}

/// Thinking by level, or before Gemini 3 by a number of tokens.
fn thinking(model: &str, effort: Reasoning) -> Value {
    let (level, tokens) = match effort {
        Reasoning::Off => ("minimal", 0),
        Reasoning::Low => ("low", 6_554),
        Reasoning::Medium => ("medium", 19_661),
        Reasoning::High => ("high", 24_576),
    };
    match model.contains("gemini-2") {
        true => json!({"thinkingBudget": tokens}),
        false => json!({"thinkingLevel": level}),
    }
}

impl Protocol for Gemini {
    const NAME: &'static str = "gemini";

    fn body(ask: &Ask<'_>) -> Value {
        let mut body = json!({"generationConfig": {}, "contents": contents(ask.messages)});
        if let Some(system) = ask.system {
            body["systemInstruction"] = json!({"parts": [{"text": system}]});
        }
        let options = ask.options;
        let members = [
            ("temperature", options.temperature.map(Value::from)),
            ("topP", options.top_p.map(Value::from)),
            (
                "maxOutputTokens",
                options.max_output_tokens.map(Value::from),
            ),
            ("stopSequences", stop(options)),
            ("seed", options.seed.map(Value::from)),
            (
                "thinkingConfig",
                options.reasoning.map(|effort| thinking(ask.model, effort)),
            ),
        ];
        set(&mut body["generationConfig"], members);
        if !ask.tools.is_empty() {
            let tools = ask.tools.iter().map(|tool| {
                json!({
                    "name": ask.names.to_model(&tool.name),
                    "description": tool.description.as_deref().unwrap_or_default(),
                    "parametersJsonSchema": tool.input_schema,
                })
            });
            let tools: Vec<Value> = tools.collect();
            body["tools"] = json!([{"functionDeclarations": tools}]);
            let mode = match &options.tool_choice {
                None | Some(ToolChoice::Auto) => json!({"mode": "AUTO"}),
                Some(ToolChoice::None) => json!({"mode": "NONE"}),
                Some(ToolChoice::Required) => json!({"mode": "ANY"}),
                Some(ToolChoice::Tool(name)) => {
                    json!({"mode": "ANY", "allowedFunctionNames": [name]})
                }
            };
            body["toolConfig"] = json!({"functionCallingConfig": mode});
        }
        if let Some(schema) = ask.schema {
            body["generationConfig"]["responseMimeType"] = "application/json".into();
            body["generationConfig"]["responseJsonSchema"] = schema.clone();
        }
        body
    }

    fn event(&mut self, event: &Value) -> Result<Vec<Value>> {
        if let Some(error) = event.get("error") {
            return Ok(vec![json!({ "error": error })]);
        }
        let mut chunks = vec![json!({"model": event["modelVersion"], "id": event["responseId"]})];
        let candidate = &event["candidates"][0];
        for part in candidate["content"]["parts"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if self.parts.len() >= MOST_PARTS {
                let text = format!("the answer has more than {MOST_PARTS} parts");
                return Err(AdapterError::new("upstream_error", text));
            }
            chunks.extend(self.part(part));
        }
        if event["usageMetadata"].is_object() {
            chunks.push(counted(&event["usageMetadata"]));
        }
        if event["promptFeedback"]["blockReason"].is_string() {
            chunks.push(finish("content_filter"));
        }
        if let Some(reason) = reason(&candidate["finishReason"]) {
            chunks.push(finish(match reason {
                "STOP" => "stop",
                "MAX_TOKENS" => "length",
                "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
                | "LANGUAGE" | "IMAGE_SAFETY" => "content_filter",
                _ => "error",
            }));
        }
        Ok(chunks)
    }

    /// Thought signatures belong to their parts and have to be sent back with them.
    fn native(self) -> Option<Value> {
        let is_signed = |part: &Value| part.get("thoughtSignature").is_some();
        self.parts
            .iter()
            .any(is_signed)
            .then_some(Value::Array(self.parts))
    }
}

impl Gemini {
    fn part(&mut self, part: &Value) -> Option<Value> {
        let mut kept = part.clone();
        let chunk = if let Some(call) = part.get("functionCall") {
            // Most models send calls without an id, but results need one to refer to.
            let id = match call["id"].as_str() {
                Some(id) => id.to_owned(),
                None => format!("call_{}", Uuid::now_v7().simple()),
            };
            if call.is_object() {
                kept["functionCall"]["id"] = id.as_str().into();
            }
            let index = self.calls;
            self.calls += 1;
            let arguments = call.get("args").map_or_else(String::new, Value::to_string);
            Some(delta(json!({"tool_calls": [{
                "index": index, "id": id, "function": {"name": call["name"], "arguments": arguments},
            }]})))
        } else {
            part["text"].as_str().map(|text| {
                delta(match part["thought"] == true {
                    true => json!({ "reasoning_content": text }),
                    false => json!({ "content": text }),
                })
            })
        };
        self.parts.push(kept);
        chunk
    }
}

fn counted(told: &Value) -> Value {
    let count = |name: &str| foreign_json::count(&told[name]);
    let thought = count("thoughtsTokenCount");
    let plus = |number: Option<u64>, more: Option<u64>| {
        number.map(|number| number.saturating_add(more.unwrap_or(0)))
    };
    usage(
        plus(count("promptTokenCount"), count("toolUsePromptTokenCount")),
        plus(count("candidatesTokenCount"), thought),
        count("cachedContentTokenCount"),
        None,
        thought,
    )
}

fn contents(history: &[Value]) -> Value {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for message in history {
        let (role, parts) = match message["role"].as_str().unwrap_or_default() {
            "assistant" => {
                names.extend(calls(message).map(|(id, name, _)| (id, name)));
                ("model", said(message))
            }
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let named = names.iter().rfind(|(known, _)| *known == id);
                let name = named.map_or("", |(_, name)| *name);
                let response = json!({"name": name, "content": message["content"]});
                (
                    "user",
                    vec![
                        json!({"functionResponse": {"id": id, "name": name, "response": response}}),
                    ],
                )
            }
            _ => ("user", parts(message).iter().map(part).collect()),
        };
        match turns.last_mut() {
            Some((last, all)) if *last == role && is_answer(all) == is_answer(&parts) => {
                all.extend(parts);
            }
            Some(_) | None => turns.push((role, parts)),
        }
    }
    let turns = turns.into_iter();
    turns
        .map(|(role, parts)| json!({"role": role, "parts": parts}))
        .collect()
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({ "text": text }),
        Part::Image(content) | Part::File { content, .. } => {
            json!({"inlineData": {"mimeType": content.media_type, "data": content.base64}})
        }
    }
}

fn is_answer(parts: &[Value]) -> bool {
    parts
        .first()
        .is_some_and(|part| part.get("functionResponse").is_some())
}

fn said(message: &Value) -> Vec<Value> {
    if let Some(Value::Array(parts)) = native(message, Gemini::NAME) {
        return accepted(parts, |part| part["thought"] == true);
    }
    let text = text(message);
    let text = (!text.is_empty()).then(|| json!({ "text": text }));
    let calls = calls(message)
        .map(|(id, name, input)| json!({"functionCall": {"id": id, "name": name, "args": input}}));
    text.into_iter().chain(calls).collect()
}
