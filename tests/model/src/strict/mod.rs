//! Refuses requests that the real services refuse: empty content, wrong order of roles, calls without results, results
//! without calls, and unknown fields where a service checks them.

use std::collections::HashSet;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::wire::array;

type Checked = Result<(), String>;

/// The refusal of a request, in the format of its protocol; `None` for a valid one.
pub(crate) fn refusal(path: &str, body: &Value) -> Option<Response> {
    let is_gemini = path.contains("GenerateContent") || path.contains("generateContent");
    let checked = match path {
        path if path.ends_with("/messages") => messages(body),
        path if path.ends_with("/chat/completions") => chat(body),
        path if path.ends_with("/responses") => responses(body),
        _ if is_gemini => gemini(body),
        _ => return None,
    };
    let message = checked.err()?;
    let error = if path.ends_with("/messages") {
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
    } else if is_gemini {
        json!({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})
    } else {
        json!({"error": {"message": message, "type": "invalid_request_error", "code": null, "param": null}})
    };
    Some((StatusCode::BAD_REQUEST, Json(error)).into_response())
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(message()) }
}

fn known(object: &Value, names: &[&str], at: &str) -> Checked {
    let members = object
        .as_object()
        .ok_or_else(|| format!("{at}: an object was expected"))?;
    match members.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err(format!("{at}{name}: Extra inputs are not permitted")),
        None => Ok(()),
    }
}

fn is_blank(text: &Value) -> bool {
    text.as_str().is_none_or(|text| text.trim().is_empty())
}

/// Blocks of a content; a text counts as one.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        content => array(content).to_vec(),
    }
}

fn ids<'a>(parts: &'a [Value], kind: &str, id: &str) -> HashSet<&'a str> {
    let parts = parts.iter().filter(|part| part["type"] == kind);
    parts.filter_map(|part| part[id].as_str()).collect()
}

fn messages(body: &Value) -> Checked {
    const MEMBERS: &[&str] = &[
        "cache_control",
        "container",
        "context_management",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "mcp_servers",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    ];
    known(body, MEMBERS, "")?;
    ensure(body["max_tokens"].is_u64(), || {
        "max_tokens: Field required".to_owned()
    })?;
    // The service merges consecutive messages of one role.
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for (at, message) in array(&body["messages"]).iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let content = blocks(&message["content"]);
        if role == "system" {
            // `claude` sends it between turns, with a header of the service for that.
            continue;
        }
        known(message, &["role", "content"], &format!("messages.{at}."))?;
        let is_role = ["user", "assistant"].contains(&role);
        ensure(is_role, || format!("messages.{at}.role: {role}"))?;
        ensure(!content.is_empty(), || {
            format!("messages.{at}: all messages must have non-empty content")
        })?;
        match turns.last_mut() {
            Some((last, all)) if *last == role => all.extend(content),
            Some(_) | None => turns.push((role, content)),
        }
    }
    let first = turns.first().map(|(role, _)| *role);
    ensure(first == Some("user"), || {
        "messages: first message must use the \"user\" role".to_owned()
    })?;
    let mut called = HashSet::new();
    for (at, (role, content)) in turns.iter().enumerate() {
        for block in content {
            message_block(role, block).map_err(|text| format!("messages.{at}: {text}"))?;
        }
        let last = content.last().map(|block| &block["type"]);
        let ends_with_thought =
            last.is_some_and(|kind| kind.as_str().unwrap_or_default().ends_with("thinking"));
        ensure(*role == "user" || !ends_with_thought, || {
            format!("messages.{at}: the final block in an assistant message cannot be `thinking`")
        })?;
        for id in ids(content, "tool_use", "id") {
            ensure(called.insert(id.to_owned()), || {
                format!("messages.{at}: `tool_use` ids must be unique")
            })?;
        }
        let before = at.checked_sub(1).map_or(&[][..], |at| &turns[at].1);
        let (asked, answered) = (
            ids(before, "tool_use", "id"),
            ids(content, "tool_result", "tool_use_id"),
        );
        ensure(asked == answered, || {
            format!(
                "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after, or the \
                 other way round: {asked:?}, {answered:?}"
            )
        })?;
        let results = content
            .iter()
            .take_while(|block| block["type"] == "tool_result");
        ensure(results.count() >= answered.len(), || {
            format!("messages.{at}: `tool_result` blocks have to come first")
        })?;
    }
    let last = turns.last().map(|(_, content)| content.as_slice());
    let open = ids(last.unwrap_or_default(), "tool_use", "id");
    ensure(open.is_empty(), || {
        format!("`tool_use` ids without results: {open:?}")
    })
}

fn message_block(role: &str, block: &Value) -> Checked {
    let kind = block["type"].as_str().unwrap_or_default();
    let members: &[&str] = match kind {
        "text" => &["type", "text", "cache_control", "citations"],
        "thinking" => &["type", "thinking", "signature"],
        "redacted_thinking" => &["type", "data"],
        "tool_use" => &["type", "id", "name", "input", "cache_control", "caller"],
        "tool_result" => &[
            "type",
            "tool_use_id",
            "content",
            "is_error",
            "cache_control",
        ],
        _ => return Ok(()),
    };
    known(block, members, &format!("{kind}."))?;
    let is_whole = match kind {
        "text" => !is_blank(&block["text"]),
        "thinking" => role == "assistant" && !is_blank(&block["signature"]),
        "tool_use" => role == "assistant" && block["input"].is_object(),
        "tool_result" => role == "user",
        _ => true,
    };
    ensure(is_whole, || {
        format!(
            "{kind}: text content blocks must contain non-whitespace text, or a member is missing"
        )
    })
}

/// Also checks the messages of the Gloo fake.
pub(crate) fn chat(body: &Value) -> Checked {
    let all = array(&body["messages"]);
    ensure(!all.is_empty(), || {
        "[] is too short - 'messages'".to_owned()
    })?;
    let mut open: HashSet<&str> = HashSet::new();
    for (at, message) in all.iter().enumerate() {
        let members: &[&str] = match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" | "user" => &["role", "content", "name"],
            "assistant" => &[
                "role",
                "content",
                "name",
                "refusal",
                "audio",
                "function_call",
                "tool_calls",
                "reasoning",
                "reasoning_content",
                "reasoning_details",
            ],
            "tool" => &["role", "content", "tool_call_id", "name"],
            role => {
                return Err(format!(
                    "'{role}' is not one of the roles - 'messages.{at}.role'"
                ));
            }
        };
        known(message, members, &format!("messages.{at}."))?;
        let calls = message.get("tool_calls");
        let is_said = !array(&message["content"]).is_empty() || !is_blank(&message["content"]);
        match message["role"].as_str().unwrap_or_default() {
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                ensure(open.remove(id), || {
                    format!(
                        "messages.{at}: messages with role 'tool' must be a response to a preceding message with \
                         'tool_calls'"
                    )
                })?;
                continue;
            }
            "assistant" if calls.is_some_and(|calls| !calls.is_null()) => {
                ensure(!array(&message["tool_calls"]).is_empty(), || {
                    format!("[] is too short - 'messages.{at}.tool_calls'")
                })?;
            }
            _ => ensure(is_said, || {
                format!("Invalid value for 'content' - 'messages.{at}'")
            })?,
        }
        ensure(open.is_empty(), || dangling(&open))?;
        let calls = array(&message["tool_calls"]).iter();
        open.extend(calls.filter_map(|call| call["id"].as_str()));
    }
    ensure(open.is_empty(), || dangling(&open))?;
    ensure(
        body["stream"] == true || body["stream_options"].is_null(),
        || "the 'stream_options' parameter is only allowed when 'stream' is enabled".to_owned(),
    )
}

fn dangling(open: &HashSet<&str>) -> String {
    format!("tool_call_ids did not have response messages: {open:?}")
}

fn responses(body: &Value) -> Checked {
    const MEMBERS: &[&str] = &[
        "background",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ];
    known(body, MEMBERS, "Unknown parameter: ")?;
    let items = array(&body["input"]);
    let mut open: HashSet<&str> = HashSet::new();
    for (at, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or("message") {
            "function_call" => {
                ensure(item["arguments"].is_string(), || {
                    format!("input[{at}].arguments: a string was expected")
                })?;
                open.insert(id);
            }
            "function_call_output" => ensure(open.remove(id), || {
                format!("No tool call found for function call output with call_id {id}.")
            })?,
            "reasoning" => {
                let next = items.get(at + 1);
                let is_followed = next.is_some_and(|next| {
                    next["type"] == "reasoning"
                        || next["type"] == "function_call"
                        || next["role"] == "assistant"
                });
                ensure(is_followed, || {
                    format!(
                        "Item {} of type 'reasoning' was provided without its required following item.",
                        item["id"]
                    )
                })?;
            }
            "message" => {
                let parts = blocks(&item["content"]);
                let is_said = !parts.is_empty()
                    && parts
                        .iter()
                        .all(|part| part["text"].is_null() || !is_blank(&part["text"]));
                ensure(is_said, || format!("input[{at}].content: empty"))?;
                let is_answer = item["role"] == "assistant";
                ensure(is_answer || open.is_empty(), || {
                    format!("No tool output found for function call {open:?}.")
                })?;
            }
            _ => {}
        }
    }
    ensure(open.is_empty(), || {
        format!("No tool output found for function call {open:?}.")
    })
}

fn gemini(body: &Value) -> Checked {
    const MEMBERS: &[&str] = &[
        "cachedContent",
        "contents",
        "generationConfig",
        "labels",
        "model",
        "safetySettings",
        "systemInstruction",
        "toolConfig",
        "tools",
    ];
    const PARTS: &[&str] = &[
        "codeExecutionResult",
        "executableCode",
        "fileData",
        "functionCall",
        "functionResponse",
        "inlineData",
        "partMetadata",
        "text",
        "thought",
        "thoughtSignature",
        "videoMetadata",
    ];
    known(body, MEMBERS, "Unknown name ")?;
    let contents = array(&body["contents"]);
    let first = contents.first().map(|content| &content["role"]);
    ensure(first.is_some_and(|role| role != "model"), || {
        "contents: the first turn is not the user's".to_owned()
    })?;
    let count = |content: &Value, member: &str| {
        let parts = array(&content["parts"]).iter();
        parts.filter(|part| part.get(member).is_some()).count()
    };
    let mut open = 0;
    for (at, content) in contents.iter().enumerate() {
        known(content, &["role", "parts"], &format!("contents[{at}]."))?;
        let parts = array(&content["parts"]);
        ensure(!parts.is_empty(), || {
            format!(
                "* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty."
            )
        })?;
        for part in parts {
            known(part, PARTS, &format!("contents[{at}].parts: Unknown name "))?;
            let is_blank = part.get("text").is_some_and(is_blank);
            ensure(!is_blank || part.get("thoughtSignature").is_some(), || {
                format!("contents[{at}].parts: it must have a text parameter")
            })?;
        }
        let is_thought = |part: &Value| part["thought"] == true;
        ensure(!parts.iter().all(is_thought), || {
            format!("contents[{at}].parts: nothing but thoughts")
        })?;
        ensure(count(content, "functionResponse") == open, || {
            format!(
                "contents[{at}]: the number of function response parts is not equal to the number of function call \
                 parts of the function call turn"
            )
        })?;
        open = count(content, "functionCall");
    }
    ensure(open == 0, || {
        "contents: a function call turn has no function response turn".to_owned()
    })
}

#[cfg(test)]
mod tests;
