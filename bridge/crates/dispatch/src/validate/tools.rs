//! Reads the tool formats of callers into one: `{name, description?, inputSchema}`.

use std::collections::HashSet;

use forge_adapter_api::request::{Tool, ToolResult};
use serde_json::{Value, json};

use super::fields::{Fields, Name, describe};
use super::spelling;
use forge_external::EntryName;

const INPUT_SCHEMA: Name = Name {
    camel: "inputSchema",
    others: &["parameters"],
};

const RESULTS: &str = "toolResults";

/// Beginning of a tool that is an entry of an external service.
const EXTERNAL: &str = "external:";

/// Finds an entry of an external service by the name that a caller wrote.
pub type Entries<'a> = &'a dyn Fn(&str) -> Result<EntryName, String>;

/// Reads the tools of a dispatch, and the entries of external services among them; complains about duplicate names.
pub(super) fn read(dispatch: &Fields<'_>, entries: Entries<'_>) -> (Vec<Tool>, Vec<String>) {
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    let mut external = Vec::new();
    for (path, element) in dispatch.list("tools") {
        if let Some(name) = element
            .as_str()
            .and_then(|text| text.strip_prefix(EXTERNAL))
        {
            match entries(name) {
                Ok(entry) if names.insert(entry.tool_name()) => external.push(entry.to_string()),
                Ok(entry) => {
                    let message = format!("another tool is already called {:?}", entry.tool_name());
                    dispatch.complaints().add(path, message);
                }
                Err(message) => dispatch.complaints().add(path, message),
            }
            continue;
        }
        let Some(tool) = read_one(dispatch, &path, element) else {
            continue;
        };
        if names.insert(tool.name.clone()) {
            tools.push(tool);
        } else {
            let message = format!("another tool is already called {:?}", tool.name);
            dispatch.complaints().add(format!("{path}.name"), message);
        }
    }
    (tools, external)
}

/// Reads the results of tool calls that an earlier dispatch of the session returned.
pub(super) fn read_results(dispatch: &Fields<'_>) -> Vec<ToolResult> {
    let mut ids = HashSet::new();
    let mut results = Vec::new();
    for (path, element) in dispatch.list(RESULTS) {
        let Some(result) = read_result(dispatch, &path, element) else {
            continue;
        };
        if ids.insert(result.tool_call_id.clone()) {
            results.push(result);
        } else {
            let message = format!("call {:?} is answered twice", result.tool_call_id);
            let field = format!("{path}.toolCallId");
            dispatch.complaints().add(field, message);
        }
    }
    if !results.is_empty() && dispatch.value("sessionId").is_none() {
        let message = "needs the sessionId of the run that made the calls";
        dispatch.complain(RESULTS, message);
    }
    results
}

fn read_result(dispatch: &Fields<'_>, path: &str, element: &Value) -> Option<ToolResult> {
    let fields = Fields::read(element, path, dispatch.complaints())?;
    spelling::warn(&fields, spelling::TOOL_RESULT);
    let tool_call_id = fields.required_id("toolCallId");
    let name = fields.required_id("name");
    let output = fields.required("output").cloned();
    let is_error = match fields.value("isError") {
        None => false,
        Some(_) => fields.boolean("isError")?,
    };
    Some(ToolResult {
        tool_call_id: tool_call_id?,
        name: name?,
        output: output?,
        is_error,
    })
}

fn read_one(dispatch: &Fields<'_>, path: &str, element: &Value) -> Option<Tool> {
    let complaints = dispatch.complaints();
    match element {
        Value::Object(_) => {}
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let message = format!(
                "must be a tool object or a string external:service.entry, not {}",
                describe(element)
            );
            complaints.add(path, message);
            return None;
        }
    }
    let outer = Fields::read(element, path, complaints)?;
    let wrapped = outer.value("function").is_some();
    // OpenAI's format; a function without `parameters` takes none.
    let fields = if wrapped {
        outer.object("function")?
    } else {
        outer
    };
    spelling::warn(&fields, spelling::TOOL);
    let name = fields.required_id("name");
    let description = fields.text("description").map(str::to_owned);
    let input_schema = match fields.value(INPUT_SCHEMA) {
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        Some(other) => {
            let message = format!("must be a JSON Schema object, not {}", describe(other));
            fields.complain(INPUT_SCHEMA, message);
            None
        }
        None if wrapped => Some(json!({"type": "object", "properties": {}})),
        None => {
            fields.complain(INPUT_SCHEMA, "is required: a JSON Schema of the arguments");
            None
        }
    };
    Some(Tool {
        name: name?,
        description,
        input_schema: input_schema?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fields::Complaints;
    use forge_external::manifest::EntryKind;

    use super::*;

    fn read_tools(tools: &Value) -> (Vec<Tool>, Vec<String>) {
        let complaints = Complaints::default();
        let body = json!({"tools": tools});
        let entries = |name: &str| match name.split_once('.') {
            Some((service, entry)) if service != "gone" => Ok(EntryName {
                kind: EntryKind::Query,
                service: service.to_owned(),
                entry: entry.to_owned(),
            }),
            Some(_) | None => Err("no external service has it".to_owned()),
        };
        let (found, external) = read(&Fields::read(&body, "", &complaints).unwrap(), &entries);
        assert!(external.iter().all(|name| name.starts_with("query:")));
        let fields = complaints.into_vec().into_iter().map(|e| e.field).collect();
        (found, fields)
    }

    #[test]
    fn every_shape_becomes_the_first() {
        let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
        let wanted = Tool {
            name: "search".into(),
            description: Some("Finds.".into()),
            input_schema: schema.clone(),
        };
        for shape in [
            json!({"name": "search", "description": "Finds.", "inputSchema": schema}),
            json!({"name": "search", "description": "Finds.", "input_schema": schema}),
            json!({"name": "search", "description": "Finds.", "parameters": schema}),
            json!({"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": schema}}),
            json!({"type": "function", "name": "search", "description": "Finds.", "parameters": schema, "strict": true}),
            json!({"name": "search", "title": "Search", "description": "Finds.", "inputSchema": schema, "annotations": {"readOnlyHint": true}}),
        ] {
            let (tools, complaints) = read_tools(&json!([shape]));
            assert_eq!(
                tools.as_slice(),
                std::slice::from_ref(&wanted),
                "{complaints:?}"
            );
        }
    }

    #[test]
    fn a_function_without_parameters_takes_none() {
        let (tools, _) = read_tools(&json!([{"type": "function", "function": {"name": "now"}}]));
        assert_eq!(tools[0].input_schema["type"], "object");
    }

    #[test]
    fn complaints_say_which_tool() {
        let good = json!({"name": "a", "inputSchema": {}});
        for (tools, field) in [
            (json!({}), "tools"),
            (json!([5]), "tools[0]"),
            (json!([good, {"name": "b"}]), "tools[1].inputSchema"),
            (
                json!([good, {"name": "b", "inputSchema": true}]),
                "tools[1].inputSchema",
            ),
            (json!([{"inputSchema": {}}]), "tools[0].name"),
            (json!([{"name": "", "inputSchema": {}}]), "tools[0].name"),
            (json!([good, good]), "tools[1].name"),
            (
                json!([{"name": "b", "inputSchema": {}, "parameters": {"type": "object"}}]),
                "tools[0].inputSchema",
            ),
            (
                json!([{"type": "function", "function": 5}]),
                "tools[0].function",
            ),
            (
                json!([{"type": "function", "function": {}}]),
                "tools[0].function.name",
            ),
            (json!(["external:gone.entry"]), "tools[0]"),
            (
                json!(["external:svc.entry", "external:svc.entry"]),
                "tools[1]",
            ),
            (
                json!(["external:svc.entry", {"name": "forge_query_svc_entry", "inputSchema": {}}]),
                "tools[1].name",
            ),
            (json!(["external:svc"]), "tools[0]"),
            (json!(["search"]), "tools[0]"),
        ] {
            let (_, complaints) = read_tools(&tools);
            assert_eq!(complaints, [field], "{tools}");
        }
    }

    #[test]
    fn results_answer_each_call_once_and_belong_to_a_session() {
        let read = |results: Value, session: Value| {
            let complaints = Complaints::default();
            let body = json!({"toolResults": results, "sessionId": session});
            let found = read_results(&Fields::read(&body, "", &complaints).unwrap());
            let fields = complaints.into_vec().into_iter().map(|e| e.field).collect();
            (found, fields)
        };
        let good = json!({"toolCallId": "c1", "name": "search", "output": {"hits": 2}});
        let (found, complaints): (_, Vec<String>) = read(json!([good]), json!("s"));
        assert_eq!(found[0].output, json!({"hits": 2}), "{complaints:?}");
        assert!(!found[0].is_error);
        for (results, session, field) in [
            (json!([good]), json!(null), "toolResults"),
            (json!([good, good]), json!("s"), "toolResults[1].toolCallId"),
            (json!("x"), json!("s"), "toolResults"),
            (
                json!([{"name": "a", "output": "x"}]),
                json!("s"),
                "toolResults[0].toolCallId",
            ),
            (
                json!([{"toolCallId": "a", "output": "x"}]),
                json!("s"),
                "toolResults[0].name",
            ),
            (
                json!([{"toolCallId": "a", "name": "b"}]),
                json!("s"),
                "toolResults[0].output",
            ),
            (
                json!([{"toolCallId": "a", "name": "b", "output": "", "isError": 1}]),
                json!("s"),
                "toolResults[0].isError",
            ),
        ] {
            let (_, complaints): (_, Vec<String>) = read(results, session);
            assert_eq!(complaints, [field]);
        }
    }
}
