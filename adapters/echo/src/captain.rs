//! Model `run` as the Captain of a run: a plan in the message becomes calls of the tools that record it. Keeps nothing
//! between its turns.

use forge_adapter_api::request::ToolResult;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{AdapterEvent, Events, ExecutionRequest, ExecutionResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::run::text_of;

const CREATE_SPEC: &str = "create_spec";
const CREATE_TASK: &str = "create_task";
/// Largest repeated text.
const MOST_BYTES: usize = 16 << 20;
/// Offered to the Captain only.
const SET_DAG: &str = "set_dag";
const ADD_TO_DAG: &str = "add_to_dag";

/// A plan as a user writes it. Members of tasks are passed on as they are, so that faults reach who checks them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    #[serde(default)]
    specs: Map<String, Value>,
    tasks: Vec<Value>,
}

/// True if the execution is the Captain's.
pub(crate) fn is_captain(request: &ExecutionRequest) -> bool {
    request.tools.iter().any(|tool| tool.name == SET_DAG)
}

/// One turn of the interview.
pub(crate) async fn turn(
    request: &ExecutionRequest,
    session_id: String,
    events: &Events,
) -> ExecutionResult {
    let plan = serde_json::from_str::<Value>(&request.message)
        .and_then(|message| serde_json::from_value::<Plan>(repeated(message)));
    let change = change(&request.message);
    let (text, tool_calls) = match (request.tool_results.as_slice(), plan) {
        ([], Ok(plan)) => (String::new(), calls(&plan)),
        ([], Err(_)) if change.is_some() => (String::new(), change.into_iter().collect()),
        ([], Err(_)) => ("What should I build?".to_owned(), Vec::new()),
        (results, _) => (verdict(results), Vec::new()),
    };
    if !text.is_empty() {
        events.send(AdapterEvent::text(text.as_str())).await;
    }
    ExecutionResult {
        session_id: Some(session_id),
        tool_calls,
        ..ExecutionResult::ok(text)
    }
}

/// Answer to a change request, which is a line of the message: the addition that it proposes.
fn change(message: &str) -> Option<ToolCall> {
    let mut lines = message
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let request = lines.find(|request| request["crId"].is_string())?;
    let proposed = request["overlay"].as_object()?;
    Some(ToolCall {
        tool_call_id: "call-1".to_owned(),
        name: ADD_TO_DAG.to_owned(),
        input: proposed.clone().into(),
    })
}

/// The message with each `{"repeat": text, "times": n}` as that text n times, for documents above the limit of messages.
fn repeated(message: Value) -> Value {
    match message {
        Value::Object(members) => match (members.get("repeat"), members.get("times")) {
            (Some(Value::String(text)), Some(times)) if members.len() == 2 => {
                let times = times.as_u64().and_then(|times| usize::try_from(times).ok());
                let most = MOST_BYTES / text.len().max(1);
                text.repeat(times.unwrap_or(0).min(most)).into()
            }
            (_, _) => {
                let members = members.into_iter();
                let members = members.map(|(name, value)| (name, repeated(value)));
                Value::Object(members.collect())
            }
        },
        Value::Array(values) => values.into_iter().map(repeated).collect(),
        other => other,
    }
}

/// The errors of the calls, or the size of the plan.
fn verdict(results: &[ToolResult]) -> String {
    let faults = results.iter().filter(|result| result.is_error);
    let faults: Vec<String> = faults.map(text_of).collect();
    if !faults.is_empty() {
        return faults.join("\n");
    }
    if results.iter().any(|result| result.name == ADD_TO_DAG) {
        return "The plan is changed.".to_owned();
    }
    let tasks = results.iter().filter(|result| result.name == CREATE_TASK);
    match tasks.count() {
        1 => "The plan has 1 task.".to_owned(),
        count => format!("The plan has {count} tasks."),
    }
}

fn calls(plan: &Plan) -> Vec<ToolCall> {
    let specs = plan.specs.iter().map(|(name, content)| {
        let input = json!({"name": name, "content": content});
        (CREATE_SPEC, input)
    });
    let tasks = plan.tasks.iter().map(|task| (CREATE_TASK, task.clone()));
    let nodes: Vec<Value> = plan.tasks.iter().map(node).collect();
    let dag = std::iter::once((SET_DAG, json!({ "nodes": nodes })));
    let numbered = specs.chain(tasks).chain(dag).zip(1..);
    numbered
        .map(|((name, input), number)| ToolCall {
            tool_call_id: format!("call-{number}"),
            name: name.to_owned(),
            input,
        })
        .collect()
}

/// The node of a task, whose `type` is 1, 2, 3 or `"refinery"`; default: 1.
fn node(task: &Value) -> Value {
    let agent_type = task.get("type").cloned().unwrap_or(json!(1));
    json!({
        "id": task["id"],
        "type": if agent_type == "refinery" { "refinery" } else { "task" },
        "agentType": agent_type,
        "dependencies": task.get("dependencies").cloned().unwrap_or(json!([])),
    })
}
