//! Choice of the answer, independent of the protocol.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Desk;

pub(crate) enum Plan {
    Text(String),
    /// Text after a thought.
    Thought(String),
    Slow,
    Hang,
    Calls(Vec<Call>),
    Fail(StatusCode),
}

impl Plan {
    /// True for an answer with neither text nor thought.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) input: Value,
}

/// The relevant parts of a request, independent of the protocol.
pub(crate) struct Prompt {
    pub(crate) text: String,
    /// Result of the tool call in the last message, if any.
    pub(crate) tool_output: Option<String>,
    /// JSON schema of the answer.
    pub(crate) schema: Option<Value>,
    /// Media types of the files in the request.
    pub(crate) files: Vec<String>,
}

pub(crate) fn plan(desk: &Desk, prompt: &Prompt) -> Plan {
    if let Some(output) = &prompt.tool_output {
        return Plan::Text(format!("tool said: {}", head(output, 200)));
    }
    if prompt.text.contains("MEDIATYPES") {
        return Plan::Text(prompt.files.join(" "));
    }
    let schema = &prompt.schema;
    let prompt = prompt.text.as_str();
    if let Some(status) = status_behind(prompt, "FAILONCE")
        && desk.is_first(prompt)
    {
        return Plan::Fail(status);
    }
    if let Some(status) = status_behind(prompt, "FAIL") {
        return Plan::Fail(status);
    }
    let calls = calls(prompt);
    if !calls.is_empty() {
        return Plan::Calls(calls);
    }
    if let Some(schema) = schema {
        return Plan::Text(sample(schema).to_string());
    }
    if prompt.contains("EMPTY") {
        return Plan::Text(String::new());
    }
    if prompt.contains("BLANK") {
        return Plan::Text("\n ".to_owned());
    }
    if prompt.contains("THINKONLY") {
        return Plan::Thought(String::new());
    }
    if prompt.contains("HANG") {
        return Plan::Hang;
    }
    if prompt.contains("SLOW") {
        return Plan::Slow;
    }
    let text = format!("pong: {}", tail(prompt.trim(), 60));
    if prompt.contains("THINK") {
        Plan::Thought(text)
    } else {
        Plan::Text(text)
    }
}

/// Media types of the files in a request of any protocol.
pub(crate) fn files(request: &Value) -> Vec<String> {
    match request {
        Value::Array(items) => items.iter().flat_map(files).collect(),
        Value::Object(members) => {
            let own = members.get("media_type").or(members.get("mimeType"));
            let own = own.and_then(Value::as_str).map(str::to_owned);
            own.into_iter()
                .chain(members.values().flat_map(files))
                .collect()
        }
        Value::String(text) => {
            let url = text.strip_prefix("data:");
            let parts = url.and_then(|url| url.split_once(";base64,"));
            Vec::from_iter(parts.map(|(media_type, _)| media_type.to_owned()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

fn status_behind(prompt: &str, marker: &str) -> Option<StatusCode> {
    let rest = &prompt[prompt.find(marker)? + marker.len()..];
    rest.get(..3)?.parse().ok()
}

fn calls(prompt: &str) -> Vec<Call> {
    prompt
        .match_indices("CALL ")
        .filter_map(|(at, marker)| {
            let (tool, rest) = prompt[at + marker.len()..].split_once(' ')?;
            let input = serde_json::Deserializer::from_str(rest)
                .into_iter()
                .next()?
                .ok()?;
            Some(Call {
                tool: tool.to_owned(),
                input,
            })
        })
        .collect()
}

/// A value that matches a schema; references are not followed.
fn sample(schema: &Value) -> Value {
    if let Some(value) = schema.get("const").or(schema["enum"].get(0)) {
        return value.clone();
    }
    if let Some(one) = schema["anyOf"].get(0).or(schema["oneOf"].get(0)) {
        return sample(one);
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind.unwrap_or_default().to_lowercase().as_str() {
        "object" => {
            let members = schema["properties"].as_object().into_iter().flatten();
            members
                .map(|(name, schema)| (name.clone(), sample(schema)))
                .collect()
        }
        "array" => json!([sample(&schema["items"])]),
        "integer" => json!(42),
        "number" => json!(4.5),
        "boolean" => json!(true),
        "null" => Value::Null,
        _ => json!("sample"),
    }
}

fn head(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

fn tail(text: &str, chars: usize) -> String {
    let skipped = text.chars().count().saturating_sub(chars);
    text.chars().skip(skipped).collect()
}
