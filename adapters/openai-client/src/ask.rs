//! Request bodies: messages, tools and the request for structured output.

use forge_adapter_api::options::{Reasoning, ToolChoice};
use forge_adapter_api::request::{Tool, ToolResult, Turn};
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{ExecutionRequest, ModelOptions};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::attachments::UserMessage;
use crate::names::Names;

/// Answer to calls without a result, because the protocol requires an answer to each call.
const NOT_MADE: &str = "This call was not made.";

/// Method of requesting output that follows a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structured {
    /// `response_format` with type `json_schema`.
    #[default]
    JsonSchema,
    /// `response_format` with type `json_object`, and the schema in the instructions.
    JsonObject,
    /// No request; the bridge validates the text.
    Off,
}

/// The messages to append to `history` in this round. `history` contains no system message; if the session
/// was stored it contains the earlier rounds of this attempt, otherwise all rounds are sent again.
pub fn said(
    request: &ExecutionRequest,
    user: &UserMessage,
    history: &[Value],
    names: &Names,
) -> Vec<Value> {
    if request.turns.is_empty() {
        let mut messages = tool_answers(history, &request.tool_results);
        messages.push(user.message());
        return messages;
    }
    let unanswered = history
        .last()
        .is_some_and(|last| !calls_of(last).is_empty());
    if unanswered {
        return tool_answers(history, &request.tool_results);
    }
    let turns = request.turns.iter().flat_map(|turn| of_turn(turn, names));
    std::iter::once(user.message()).chain(turns).collect()
}

fn of_turn(turn: &Turn, names: &Names) -> Vec<Value> {
    let asked = assistant(
        turn.output.as_deref().unwrap_or_default(),
        &turn.tool_calls,
        names,
    );
    let answers = tool_answers(std::slice::from_ref(&asked), &turn.tool_results);
    std::iter::once(asked).chain(answers).collect()
}

/// An assistant message for the history.
pub fn assistant(text: &str, calls: &[ToolCall], names: &Names) -> Value {
    let content = match text {
        "" if !calls.is_empty() => Value::Null,
        text => text.into(),
    };
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            json!({
                "id": call.tool_call_id, "type": "function",
                "function": {"name": names.to_model(&call.name), "arguments": call.input.to_string()},
            })
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

/// An answer to each call of the last message; results of other calls are left out.
pub fn tool_answers(history: &[Value], results: &[ToolResult]) -> Vec<Value> {
    let calls = history.last().map(calls_of).unwrap_or_default();
    let answer = |call: &Value| {
        let id = &call["id"];
        let result = results
            .iter()
            .find(|result| id == result.tool_call_id.as_str());
        let content = result.map_or_else(|| NOT_MADE.to_owned(), text_of);
        json!({"role": "tool", "tool_call_id": id, "content": content})
    };
    calls.iter().map(answer).collect()
}

fn calls_of(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

fn text_of(result: &ToolResult) -> String {
    let text = match &result.output {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match result.is_error {
        true => format!("The tool failed: {text}"),
        false => text,
    }
}

/// The tools in the format of the protocol; empty if there are none.
pub fn offered(tools: &[Tool], names: &Names) -> Vec<Value> {
    let tools = tools.iter().map(|tool| {
        let mut function =
            json!({"name": names.to_model(&tool.name), "parameters": tool.input_schema});
        if let Some(description) = &tool.description {
            function["description"] = description.as_str().into();
        }
        json!({"type": "function", "function": function})
    });
    tools.collect()
}

/// The options as members of a Chat Completions request; `tokens` is the name of the limit.
pub fn options_of(options: &ModelOptions, names: &Names, tokens: &str) -> Map<String, Value> {
    let tool_choice = options.tool_choice.as_ref().map(|choice| match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => {
            json!({"type": "function", "function": {"name": names.to_model(name)}})
        }
    });
    let reasoning = options.reasoning.map(|effort| match effort {
        Reasoning::Off => json!("none"),
        effort => json!(effort.name()),
    });
    let members = [
        ("temperature", options.temperature.map(Value::from)),
        ("top_p", options.top_p.map(Value::from)),
        (tokens, options.max_output_tokens.map(Value::from)),
        ("reasoning_effort", reasoning),
        ("tool_choice", tool_choice),
        (
            "stop",
            (!options.stop.is_empty()).then(|| json!(options.stop)),
        ),
        ("seed", options.seed.map(Value::from)),
    ];
    let set = members.into_iter();
    set.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// The `response_format`, and a text to add to the instructions.
pub fn format_for(schema: &Value, how: Structured) -> (Option<Value>, Option<String>) {
    match how {
        Structured::JsonSchema => {
            let named = json!({"name": "answer", "schema": schema});
            (
                Some(json!({"type": "json_schema", "json_schema": named})),
                None,
            )
        }
        Structured::JsonObject => {
            let text = format!("Answer with JSON only, following this JSON schema:\n{schema}");
            (Some(json!({"type": "json_object"})), Some(text))
        }
        Structured::Off => (None, None),
    }
}

/// Builds the whole body. `messages` contains no system message; that comes from the request.
pub fn ask(
    request: &ExecutionRequest,
    model: Option<&str>,
    messages: &[Value],
    names: &Names,
    how: Structured,
) -> Value {
    let format = request
        .output_schema
        .as_ref()
        .map(|schema| format_for(schema, how));
    let (format, hint) = format.unwrap_or_default();
    let system: Vec<String> = request
        .system_prompt
        .clone()
        .into_iter()
        .chain(hint)
        .collect();
    let system =
        (!system.is_empty()).then(|| json!({"role": "system", "content": system.join("\n\n")}));
    let all: Vec<&Value> = system.iter().chain(messages).collect();
    let mut body = json!({"messages": all});
    if let Some(model) = model {
        body["model"] = model.into();
    }
    let tools = offered(&request.tools, names);
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    if let Some(format) = format {
        body["response_format"] = format;
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall {
            tool_call_id: id.to_owned(),
            name: "crm.find".to_owned(),
            input: json!({"who": "bob"}),
        }
    }

    fn result(id: &str, output: Value, is_error: bool) -> ToolResult {
        ToolResult {
            tool_call_id: id.to_owned(),
            name: "crm.find".to_owned(),
            output,
            is_error,
        }
    }

    #[test]
    fn every_call_is_answered_once_whatever_the_caller_brings() {
        let names = Names::default();
        let history = [assistant("", &[call("a"), call("b"), call("c")], &names)];
        let results = [
            result("b", json!({"id": 7}), false),
            result("a", json!("gone"), true),
            result("x", json!("not asked"), false),
        ];
        let answers = tool_answers(&history, &results);
        let texts: Vec<_> = answers
            .iter()
            .map(|answer| answer["content"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["The tool failed: gone", "{\"id\":7}", NOT_MADE]);
    }

    #[test]
    fn a_further_round_says_results_where_the_session_is_kept_and_else_everything() {
        let names = Names::default();
        let mut request = ExecutionRequest::sample("find bob");
        let user = UserMessage::plain(&request.message);
        request.tool_results = vec![result("a", json!("7"), false)];
        request.turns = vec![Turn {
            output: None,
            tool_calls: vec![call("a")],
            tool_results: request.tool_results.clone(),
        }];
        let roles = |messages: &[Value]| {
            let roles = messages
                .iter()
                .map(|message| message["role"].as_str().unwrap());
            roles.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            roles(&said(&request, &user, &[], &names)),
            "user assistant tool"
        );
        let kept = [json!({"role": "user"}), assistant("", &[call("a")], &names)];
        assert_eq!(roles(&said(&request, &user, &kept, &names)), "tool");
        request.turns.clear();
        assert_eq!(roles(&said(&request, &user, &kept, &names)), "tool user");
        request.tool_results.clear();
        assert_eq!(roles(&said(&request, &user, &[], &names)), "user");
    }

    #[test]
    fn a_whole_body_has_what_the_request_has() {
        let mut request = ExecutionRequest::sample("find bob");
        let user = UserMessage::plain(&request.message);
        request.system_prompt = Some("Be brief.".to_owned());
        request.output_schema = Some(json!({"type": "object"}));
        request.tools = vec![Tool {
            name: "crm.find".to_owned(),
            description: Some("finds".to_owned()),
            input_schema: json!({"type": "object"}),
        }];
        let names = Names::new(&request.tools);
        let messages = said(&request, &user, &[], &names);
        let body = ask(
            &request,
            Some("m"),
            &messages,
            &names,
            Structured::JsonSchema,
        );
        let wanted = json!({
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "find bob"}],
            "tools": [{"type": "function", "function": {
                "name": "crm_find", "description": "finds", "parameters": {"type": "object"}}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
        });
        assert_eq!(body, wanted);
        let body = ask(&request, None, &messages, &names, Structured::JsonObject);
        assert_eq!(body["response_format"], json!({"type": "json_object"}));
        let system = body["messages"][0]["content"].as_str().unwrap();
        assert!(
            system.starts_with("Be brief.\n\nAnswer with JSON"),
            "{system}"
        );
    }
}
