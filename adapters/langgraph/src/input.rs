//! Builds the body of a run from a dispatch. Pure.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_api::request::{Tool, ToolResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::settings::{Settings, Shape};
use crate::thread::{Session, State, members, named};

/// Metadata key by which the run of a dispatch is found again.
pub(crate) const DISPATCH: &str = "forge_dispatch_id";

/// Options of a dispatch for this adapter, from `metadata.langgraph`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Wishes {
    /// A graph's name or an assistant's id.
    pub(crate) assistant_id: Option<String>,
    /// Answer to the graph's question, used in place of the message; a map from interrupt ids answers several.
    pub(crate) resume: Option<Value>,
    /// Members merged into `configurable`.
    pub(crate) configurable: Map<String, Value>,
    /// Members merged into the graph's input.
    pub(crate) input: Map<String, Value>,
}

/// Starting point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// A new input.
    Input,
    /// The thread's last checkpoint, reached by an earlier attempt.
    Checkpoint,
}

pub(crate) fn body(
    settings: &Settings,
    request: &ExecutionRequest,
    wishes: &Wishes,
    assistant: &str,
    session: &Session,
    before: &State,
    beginning: Beginning,
) -> Value {
    let table = &settings.table;
    let mut config = json!({ "configurable": configurable(settings, request, wishes) });
    if let Some(limit) = table.recursion_limit {
        config["recursion_limit"] = limit.into();
    }
    let mut body = json!({
        "assistant_id": assistant,
        "config": config,
        "metadata": metadata(request),
        "stream_mode": table.stream_modes,
        "stream_resumable": true,
        "stream_subgraphs": table.stream_subgraphs,
        "multitask_strategy": table.busy,
        "if_not_exists": "create",
    });
    match beginning {
        Beginning::Checkpoint => body["input"] = Value::Null,
        Beginning::Input if !before.interrupts().is_empty() => {
            body["command"] = json!({ "resume": answer(request, wishes, before) });
        }
        Beginning::Input => {
            let shape = settings.shape(assistant);
            let mut input = input(shape, request, session);
            if let Some(input) = input.as_object_mut() {
                input.extend(wishes.input.clone());
            }
            body["input"] = input;
        }
    }
    body
}

fn configurable(settings: &Settings, request: &ExecutionRequest, wishes: &Wishes) -> Value {
    let table = &settings.table;
    let mut configurable = table.configurable.clone();
    let mut put = |key: &Option<String>, value: Option<Value>| {
        if let (Some(key), Some(value)) = (key, value) {
            configurable.insert(key.clone(), value);
        }
    };
    put(&table.model_key, request.model.clone().map(Value::from));
    put(&table.schema_key, request.output_schema.clone());
    let tools = Some(&request.tools).filter(|tools| !tools.is_empty());
    put(
        &table.tools_key,
        tools.map(|tools: &Vec<Tool>| json!(tools)),
    );
    configurable.extend(wishes.configurable.clone());
    Value::Object(configurable)
}

fn metadata(request: &ExecutionRequest) -> Value {
    let mut metadata = Map::new();
    let meta = &request.meta;
    for (name, value) in [
        (DISPATCH, Some(dispatch(request))),
        ("forge_task_id", Some(request.task_id.as_str())),
        ("forge_agent_id", Some(request.agent_id.as_str())),
        ("forge_run_id", meta.run_id.as_deref()),
        ("forge_step_id", meta.step_id.as_deref()),
    ] {
        if let Some(value) = value {
            metadata.insert(name.to_owned(), value.into());
        }
    }
    Value::Object(metadata)
}

/// The dispatch id, which is the same for all attempts.
pub(crate) fn dispatch(request: &ExecutionRequest) -> &str {
    let own = request.execution_id.split('/').next();
    let own = own.unwrap_or(&request.execution_id);
    request.meta.dispatch_id.as_deref().unwrap_or(own)
}

/// The answer to the graph's pending questions.
fn answer(request: &ExecutionRequest, wishes: &Wishes, before: &State) -> Value {
    if let Some(resume) = &wishes.resume {
        return resume.clone();
    }
    let message = Value::from(request.message.as_str());
    match before.interrupts().as_slice() {
        [_] => message,
        // With several questions, each answer needs the interrupt's id.
        several => several
            .iter()
            .filter_map(|asked| Some((asked["id"].as_str()?.to_owned(), message.clone())))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn input(shape: &Shape, request: &ExecutionRequest, session: &Session) -> Value {
    let mut input = shape.input.clone();
    fill(&mut input, &|name| match name {
        "$messages" => Some(messages(request, session)),
        "$message" => Some(request.message.as_str().into()),
        "$system" => Some(request.system_prompt.as_deref().into()),
        "$metadata" => Some(request.metadata.as_ref().map(members).into()),
        _ => None,
    });
    input
}

/// Messages with stable ids, which the server replaces rather than duplicates: one system prompt per session, one
/// message per dispatch across attempts.
fn messages(request: &ExecutionRequest, session: &Session) -> Value {
    let mut messages = Vec::new();
    if let Some(system) = &request.system_prompt {
        let id = named(&format!("{}/system", session.thread)).to_string();
        messages.push(json!({"role": "system", "content": system, "id": id}));
    }
    messages.extend(request.tool_results.iter().map(tool_result));
    // Later rounds of the same attempt have the message in the thread already.
    if request.turns.is_empty() {
        let id = message_id(request, session);
        messages.push(json!({"role": "user", "content": request.message, "id": id}));
    }
    messages.into()
}

/// The stable id of the dispatch's message in its thread.
pub(crate) fn message_id(request: &ExecutionRequest, session: &Session) -> String {
    named(&format!("{}/{}", session.thread, dispatch(request))).to_string()
}

fn tool_result(result: &ToolResult) -> Value {
    let content = match &result.output {
        Value::String(text) => text.clone(),
        output => output.to_string(),
    };
    json!({
        "role": "tool", "content": content, "tool_call_id": result.tool_call_id, "name": result.name,
        "status": if result.is_error { "error" } else { "success" },
    })
}

/// Replaces strings for which `replacement` returns a value, recursively.
fn fill(value: &mut Value, replacement: &impl Fn(&str) -> Option<Value>) {
    match value {
        Value::String(text) => {
            if let Some(found) = replacement(text) {
                *value = found;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, replacement)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| fill(member, replacement)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::Config;

    use super::*;

    fn settings(config: Value) -> Settings {
        Settings::read(&Config::try_from(config).unwrap()).unwrap()
    }

    fn request(session: &str) -> ExecutionRequest {
        ExecutionRequest {
            session_id: Some(session.to_owned()),
            system_prompt: Some("be kind".to_owned()),
            model: Some("m-1".to_owned()),
            ..ExecutionRequest::sample("hello")
        }
    }

    fn made(settings: &Settings, request: &ExecutionRequest, before: Value) -> Value {
        let wishes = request
            .metadata
            .as_ref()
            .map(|all| all["langgraph"].clone());
        let wishes = wishes.map(|wishes| serde_json::from_value(wishes).unwrap());
        body(
            settings,
            request,
            &wishes.unwrap_or_default(),
            "agent",
            &Session::of(request),
            &State::new(Some(before)),
            Beginning::Input,
        )
    }

    #[test]
    fn a_dispatch_becomes_a_run() {
        let settings = settings(json!({
            "configurable": {"colour": "blue"}, "model_key": "model", "recursion_limit": 9,
        }));
        insta::assert_json_snapshot!(made(&settings, &request("chat"), json!({})), @r#"
        {
          "assistant_id": "agent",
          "config": {
            "configurable": {
              "colour": "blue",
              "model": "m-1"
            },
            "recursion_limit": 9
          },
          "if_not_exists": "create",
          "input": {
            "messages": [
              {
                "content": "be kind",
                "id": "f22f1c77-ff00-5f85-89e1-e88dd4b01e90",
                "role": "system"
              },
              {
                "content": "hello",
                "id": "6bcb5854-ccf2-5edd-aa85-3282d76bfb6f",
                "role": "user"
              }
            ]
          },
          "metadata": {
            "forge_agent_id": "agent-sample",
            "forge_dispatch_id": "dsp_sample",
            "forge_task_id": "task-sample"
          },
          "multitask_strategy": "reject",
          "stream_mode": [
            "messages-tuple",
            "updates",
            "custom"
          ],
          "stream_resumable": true,
          "stream_subgraphs": false
        }
        "#);
    }

    #[test]
    fn an_input_of_another_shape_is_filled() {
        let settings = settings(json!({"shape": {
            "input": {"q": ["$message", 1, "$unknown"], "rules": "$system", "about": "$metadata"},
        }}));
        let request = ExecutionRequest {
            metadata: Some(json!({"langgraph": {"input": {"more": 2}}})),
            ..request("chat")
        };
        assert_eq!(
            made(&settings, &request, json!({}))["input"],
            json!({
                "q": ["hello", 1, "$unknown"], "rules": "be kind",
                "about": {"langgraph": {"input": {"more": 2}}}, "more": 2,
            })
        );
    }

    #[test]
    fn a_question_is_answered_and_nothing_else_is_said() {
        let settings = settings(json!({}));
        let asked = |ids: &[&str]| {
            let tasks: Vec<Value> = ids
                .iter()
                .map(|id| json!({"interrupts": [{"id": id, "value": "?"}]}))
                .collect();
            json!({ "tasks": tasks })
        };
        let with = ExecutionRequest {
            metadata: Some(json!({"langgraph": {"resume": {"approved": true}}})),
            ..request("chat")
        };
        let cases = [
            (request("chat"), asked(&["1"]), json!("hello")),
            (
                request("chat"),
                asked(&["1", "2"]),
                json!({"1": "hello", "2": "hello"}),
            ),
            (with, asked(&["1"]), json!({"approved": true})),
        ];
        for (request, before, resume) in cases {
            let body = made(&settings, &request, before);
            assert_eq!(body["command"], json!({ "resume": resume }));
            assert!(body.get("input").is_none(), "{body}");
        }
    }

    #[test]
    fn results_of_the_callers_tools_come_before_the_message_or_alone() {
        let result = ToolResult {
            tool_call_id: "c1".to_owned(),
            name: "find".to_owned(),
            output: json!({"id": 7}),
            is_error: false,
        };
        let mut request = ExecutionRequest {
            tool_results: vec![result],
            system_prompt: None,
            ..request("chat")
        };
        let roles = |request: &ExecutionRequest| {
            let body = made(&settings(json!({})), request, json!({}));
            let messages = body["input"]["messages"].as_array().unwrap().clone();
            let roles = messages.iter().map(|message| message["role"].clone());
            roles.collect::<Vec<_>>()
        };
        assert_eq!(roles(&request), ["tool", "user"]);
        request.turns = vec![forge_adapter_api::request::Turn::default()];
        assert_eq!(roles(&request), ["tool"]);
    }
}
