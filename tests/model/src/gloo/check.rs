//! Strict validation of requests: accepts only what the platform documents.

use axum::http::HeaderMap;
use serde_json::{Map, Value};

use super::ROUTED_MODEL;
use crate::wire::array;

/// Endpoints of chats, in two generations of paths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Older,
    OlderGrounded,
    Guarded,
    Grounded,
    Direct,
}

impl Door {
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/ai/v2/chat/completions" => Some(Self::Older),
            "/ai/v2/chat/completions/grounded" => Some(Self::OlderGrounded),
            "/ai/v2/guarded/chat/completions" => Some(Self::Guarded),
            "/ai/v2/grounded/chat/completions" => Some(Self::Grounded),
            "/ai/v2/direct/chat/completions" => Some(Self::Direct),
            _ => None,
        }
    }

    pub(super) fn is_grounded(self) -> bool {
        matches!(self, Self::OlderGrounded | Self::Grounded)
    }
}

#[derive(Clone, Copy)]
pub(super) enum Family {
    OpenAi,
    Anthropic,
    Google,
    OpenSource,
}

impl Family {
    fn of(name: &str) -> Option<Self> {
        match name {
            "openai" => Some(Self::OpenAi),
            "anthropic" => Some(Self::Anthropic),
            "google" => Some(Self::Google),
            "open source" => Some(Self::OpenSource),
            _ => None,
        }
    }

    /// Name in the list of models.
    pub(super) fn shown(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAI",
            Self::Anthropic => "Anthropic",
            Self::Google => "Google",
            Self::OpenSource => "Open Source",
        }
    }

    fn model(self) -> &'static str {
        match self {
            Self::OpenAi => "gloo-openai-gpt-5-mini",
            Self::Anthropic => ROUTED_MODEL,
            Self::Google => "gloo-google-gemini-2.5-pro",
            Self::OpenSource => "gloo-deepseek-r1",
        }
    }
}

/// A valid request.
pub(super) struct Asked {
    pub(super) body: Value,
    pub(super) model: String,
    pub(super) mechanism: &'static str,
}

const FIELDS: [&str; 11] = [
    "auto_routing",
    "max_tokens",
    "messages",
    "model",
    "model_family",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "tradition",
];
const GROUNDED_FIELDS: [&str; 4] = [
    "include_citations",
    "parallel_tool_calls",
    "rag_publisher",
    "sources_limit",
];
const TRADITIONS: [&str; 4] = ["evangelical", "catholic", "mainline", "not_faith_specific"];
const WITHOUT_TOOLS: [&str; 3] = ["deepseek-r1", "llama-4-maverick", "llama-3.1-8b"];

pub(super) fn chat(door: Door, headers: &HeaderMap, body: &[u8]) -> Result<Asked, String> {
    let content_types: Vec<_> = headers.get_all("content-type").iter().collect();
    if content_types != ["application/json"] {
        return Err(format!("content-type: {content_types:?}"));
    }
    let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let members = body.as_object().ok_or("an object was expected")?;
    for name in members.keys().map(String::as_str) {
        let is_known =
            FIELDS.contains(&name) || door.is_grounded() && GROUNDED_FIELDS.contains(&name);
        ensure(is_known, || format!("unknown field {name}"))?;
    }
    let (model, mechanism) = routing(members)?;
    messages(&members["messages"])?;
    crate::strict::chat(&body)?;
    tools(members, &model)?;
    options(&body)?;
    Ok(Asked {
        model,
        mechanism,
        body,
    })
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// Requires exactly one of the three ways to select a model.
fn routing(members: &Map<String, Value>) -> Result<(String, &'static str), String> {
    let way = |name| members.get(name);
    match (way("auto_routing"), way("model"), way("model_family")) {
        (Some(Value::Bool(true)), None, None) => Ok((ROUTED_MODEL.to_owned(), "auto_routing")),
        (None, Some(Value::String(model)), None) if model.starts_with("gloo-") => {
            Ok((model.clone(), "direct_model_selection"))
        }
        (None, None, Some(Value::String(family))) => {
            let family = Family::of(family).ok_or(format!("unknown model_family {family:?}"))?;
            Ok((family.model().to_owned(), "model_family"))
        }
        _ => Err("exactly one of auto_routing, model and model_family is needed".to_owned()),
    }
}

fn messages(messages: &Value) -> Result<(), String> {
    let messages = array(messages);
    ensure(!messages.is_empty(), || "messages: empty".to_owned())?;
    for message in messages {
        let allowed: &[&str] = match message["role"].as_str() {
            Some("system" | "user") => &["content", "role"],
            Some("assistant") => &["content", "role", "tool_calls"],
            Some("tool") => &["content", "role", "tool_call_id"],
            Some(_) | None => return Err(format!("messages: role {}", message["role"])),
        };
        let members = message
            .as_object()
            .ok_or("messages: an object was expected")?;
        for name in members.keys() {
            ensure(allowed.contains(&name.as_str()), || {
                format!("messages: unknown field {name}")
            })?;
        }
        let has_calls = !array(&message["tool_calls"]).is_empty();
        let says = message["content"].is_string() || has_calls && message["content"].is_null();
        ensure(says, || "messages: content".to_owned())?;
        let is_answer = message["role"] == "tool";
        ensure(!is_answer || message["tool_call_id"].is_string(), || {
            "messages: tool_call_id".to_owned()
        })?;
    }
    Ok(())
}

fn tools(members: &Map<String, Value>, model: &str) -> Result<(), String> {
    let Some(tools) = members.get("tools") else {
        return Ok(());
    };
    for tool in array(tools) {
        let function = tool["function"].as_object().ok_or("tools: function")?;
        let is_known =
            |name: &String| ["description", "name", "parameters"].contains(&name.as_str());
        let is_good = tool["type"] == "function"
            && tool.as_object().is_some_and(|tool| tool.len() == 2)
            && function.keys().all(is_known)
            && function.get("name").is_some_and(Value::is_string);
        ensure(is_good, || format!("tools: {tool}"))?;
    }
    ensure(
        !WITHOUT_TOOLS.iter().any(|name| model.ends_with(name)),
        || format!("{model} does not support function calling"),
    )
}

fn options(body: &Value) -> Result<(), String> {
    let one_of = |name: &str, allowed: &[&str]| {
        let value = &body[name];
        ensure(
            value.is_null() || allowed.iter().any(|known| value == known),
            || format!("{name}: {value}"),
        )
    };
    one_of("tradition", &TRADITIONS)?;
    one_of("tool_choice", &["none", "auto", "required"])?;
    let within = |name: &str, least: f64, most: f64| {
        let value = &body[name];
        let is_within = value
            .as_f64()
            .is_some_and(|number| (least..=most).contains(&number));
        ensure(value.is_null() || is_within, || format!("{name}: {value}"))
    };
    within("temperature", 0.0, 2.0)?;
    within("sources_limit", 1.0, 10.0)?;
    within("max_tokens", 1.0, 1e6)?;
    for name in ["stream", "include_citations", "parallel_tool_calls"] {
        let value = &body[name];
        ensure(value.is_null() || value.is_boolean(), || {
            format!("{name}: {value}")
        })?;
    }
    let options = &body["stream_options"];
    let only_usage = options
        .as_object()
        .is_some_and(|options| options.keys().all(|name| name == "include_usage"));
    ensure(
        options.is_null() || only_usage && body["stream"] == true,
        || format!("stream_options: {options}"),
    )
}
