//! Builds the platform's chat request from a dispatch.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_openai_client::{Names, Structured, ask};
use serde_json::{Value, json};

use crate::settings::{Surface, Table, Wishes};

/// Body of the request with the whole conversation, which the platform does not store. Options that are not set are left
/// out, since the platform has its own defaults.
pub(crate) fn body(
    request: &ExecutionRequest,
    messages: &[Value],
    names: &Names,
    table: &Table,
    wishes: &Wishes,
) -> Value {
    let mut body = ask(request, None, messages, names, Structured::Off);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let members = body.as_object_mut().expect("a request is an object");
    let mut set = |name: &str, value: Option<Value>| {
        members.extend(value.map(|value| (name.to_owned(), value)));
    };
    let model = request.model.as_deref().unwrap_or(&table.model);
    let (name, value) = routing(model);
    set(name, Some(value));
    set(
        "tradition",
        wishes.tradition.map(|tradition| json!(tradition)),
    );
    let options = &request.options;
    let tokens = options.max_output_tokens.or(table.max_tokens);
    set("max_tokens", tokens.map(Value::from));
    let temperature = options.temperature.or(table.temperature);
    set("temperature", temperature.map(Value::from));
    if wishes.surface == Some(Surface::Grounded) {
        set(
            "rag_publisher",
            wishes.rag_publisher.clone().map(Value::from),
        );
        set("sources_limit", wishes.sources_limit.map(Value::from));
        set(
            "include_citations",
            wishes.include_citations.map(Value::from),
        );
    }
    body
}

/// The member and value that select the model, in one of the platform's three ways.
fn routing(model: &str) -> (&'static str, Value) {
    if model == "auto" {
        return ("auto_routing", true.into());
    }
    match model.strip_prefix("family:") {
        // The list of models has families capitalised; requests need lower case.
        Some(family) => {
            let family = family.trim().to_lowercase().replace(['-', '_'], " ");
            ("model_family", family.into())
        }
        None => ("model", model.into()),
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::{Tool, ToolResult, Turn};
    use forge_adapter_api::result::ToolCall;
    use forge_adapter_openai_client::{UserMessage, said};

    use super::*;
    use crate::settings::Tradition;

    #[test]
    fn a_model_is_chosen_in_one_of_three_ways() {
        for (model, name, value) in [
            ("auto", "auto_routing", json!(true)),
            ("family:anthropic", "model_family", json!("anthropic")),
            ("family:Open-Source", "model_family", json!("open source")),
            ("gloo-openai-gpt-5", "model", json!("gloo-openai-gpt-5")),
        ] {
            assert_eq!(routing(model), (name, value), "{model}");
        }
    }

    #[test]
    fn a_dispatch_becomes_a_request() {
        let mut request = ExecutionRequest::sample("What is hope?");
        request.system_prompt = Some("Answer in one sentence.".to_owned());
        let call = ToolCall {
            tool_call_id: "call_1".to_owned(),
            name: "look".to_owned(),
            input: json!({"at": "Romans 8"}),
        };
        request.tools = vec![Tool {
            name: "look".to_owned(),
            description: Some("Looks a passage up".to_owned()),
            input_schema: json!({"type": "object", "properties": {"at": {"type": "string"}}}),
        }];
        let answer = |output: Value, is_error| ToolResult {
            tool_call_id: call.tool_call_id.clone(),
            name: call.name.clone(),
            output,
            is_error,
        };
        request.turns = vec![
            Turn {
                output: None,
                tool_calls: vec![call.clone()],
                tool_results: vec![answer(json!("no such book"), true)],
            },
            Turn {
                output: Some("I try again.".to_owned()),
                tool_calls: vec![call.clone()],
                tool_results: vec![answer(json!({"text": "…"}), false)],
            },
        ];
        let names = Names::new(&request.tools);
        let table = Table {
            max_tokens: Some(500),
            temperature: Some(0.5),
            ..Table::default()
        };
        let grounded = Wishes {
            surface: Some(Surface::Grounded),
            tradition: Some(Tradition::NotFaithSpecific),
            rag_publisher: Some("GlooGrounded".to_owned()),
            sources_limit: Some(3),
            include_citations: Some(true),
        };
        insta::with_settings!({snapshot_path => "../tests/golden", prepend_module_to_snapshot => false}, {
            let body = |request: &ExecutionRequest, table: &Table, wishes: &Wishes| {
                body(request, &said(request, &UserMessage::plain(&request.message), &[], &names), &names, table, wishes)
            };
            insta::assert_json_snapshot!("full", body(&request, &table, &grounded));
            let direct = Wishes { surface: Some(Surface::Direct), ..grounded };
            let plain = ExecutionRequest::sample("What is hope?");
            insta::assert_json_snapshot!("plain", body(&plain, &Table::default(), &direct));
        });
    }
}
