//! Events of the adapter, and readers of the program's message blocks.

use forge_adapter_api::AdapterEvent;
use serde_json::{Map, Value, json};

pub(crate) fn blocks(content: &Value) -> impl Iterator<Item = &Value> {
    content.as_array().into_iter().flatten()
}

/// Output of a tool: its text, or the joined text blocks with other blocks named in brackets.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        content => blocks(content)
            .map(|block| match block["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", block["type"].as_str().unwrap_or("unknown")),
            })
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

pub(crate) fn said(
    kind: &str,
    delta: &str,
    message: Option<&str>,
    parent: Option<&str>,
) -> AdapterEvent {
    let mut data = json!({ "delta": delta });
    if let Some(id) = message {
        data["messageId"] = id.into();
    }
    event(kind, data, parent)
}

/// `messageId` of one block: the program can withdraw the later blocks of a message alone.
pub(crate) fn block_id(message: &str, block: u64) -> String {
    match block {
        0 => message.to_owned(),
        block => format!("{message}/{block}"),
    }
}

pub(crate) fn event(kind: &str, mut data: Value, parent: Option<&str>) -> AdapterEvent {
    if let Some(parent) = parent {
        data["parentToolCallId"] = parent.into();
    }
    AdapterEvent::new(kind).with(data)
}

pub(crate) fn progress(
    kind: &str,
    line: &Value,
    members: &[&str],
    parent: Option<&str>,
) -> AdapterEvent {
    let mut data = Map::from_iter([("kind".to_owned(), json!(kind))]);
    for member in members {
        if let Some(value) = line.get(*member).filter(|value| !value.is_null()) {
            data.insert(camel_case(member), value.clone());
        }
    }
    event("exec.progress", Value::Object(data), parent)
}

fn camel_case(name: &str) -> String {
    let mut upper = false;
    let mut out = String::new();
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}
