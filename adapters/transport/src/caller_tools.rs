//! The caller's tools, offered to an agent program as an MCP server of the adapter. A call is recorded, not
//! run: the model receives the text that its result comes with the next message.

use std::collections::BTreeMap;

use forge_adapter_api::request::{Tool, ToolResult};
use forge_adapter_api::result::ToolCall;
use serde_json::{Value, json};

/// Name of the server; the model sees `mcp__forge__<tool>`, `mcp_forge_<tool>` or `forge_<tool>`.
pub const SERVER: &str = "forge";
/// Maximum number of calls in a run; further calls are answered with an error.
const MOST_CALLS: usize = 100;

const HANDED_OVER: &str = "The call was handed to the caller. Its result comes with the next message: end your \
     turn when you have made every call that you need.";

/// Tools of a dispatch, and the recorded calls of them.
#[derive(Debug)]
pub struct CallerTools {
    /// Prefix of generated call ids, for programs that send none.
    prefix: String,
    /// Tools by the name that the model sees, without the server's prefix.
    offered: BTreeMap<String, Tool>,
    called: Vec<ToolCall>,
}

impl CallerTools {
    /// Registers the tools of this execution.
    pub fn new(execution: &str, tools: &[Tool]) -> Self {
        let mut offered = BTreeMap::new();
        for tool in tools {
            let mut name = model_name(&tool.name);
            while offered.contains_key(&name) {
                name.push('_');
            }
            offered.insert(name, tool.clone());
        }
        Self {
            prefix: format!("call_{}", model_name(execution)),
            offered,
            called: Vec::new(),
        }
    }

    /// True if there are no tools to offer.
    pub fn is_empty(&self) -> bool {
        self.offered.is_empty()
    }

    /// True if `name`, as used by the model, is one of these tools.
    pub fn is_offered(&self, name: &str) -> bool {
        let name = name
            .strip_prefix("mcp__")
            .or_else(|| name.strip_prefix("mcp_"))
            .unwrap_or(name);
        let of_server = name.strip_prefix(SERVER).unwrap_or_default();
        ["__", "_", "."].iter().any(|between| {
            let tool = of_server.strip_prefix(between);
            tool.is_some_and(|tool| self.offered.contains_key(tool))
        })
    }

    /// Removes and returns the recorded calls, in order.
    pub fn take_calls(&mut self) -> Vec<ToolCall> {
        std::mem::take(&mut self.called)
    }

    /// True if a call was recorded.
    pub fn were_called(&self) -> bool {
        !self.called.is_empty()
    }

    /// Answers one MCP message. Notifications get an empty result, which only some channels pass on.
    pub fn answer(&mut self, message: &Value) -> Value {
        let id = message.get("id").cloned().unwrap_or(Value::Null);
        let params = &message["params"];
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": SERVER, "version": env!("CARGO_PKG_VERSION")},
            }),
            "tools/list" => self.list(),
            "tools/call" => match self.call(params) {
                Ok(result) => result,
                Err(message) => return error(&id, -32602, &message),
            },
            "ping" => json!({}),
            method if method.starts_with("notifications/") => json!({}),
            method => return error(&id, -32601, &format!("there is no method {method}")),
        };
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }

    fn list(&self) -> Value {
        let tools: Vec<Value> = self
            .offered
            .iter()
            .map(|(name, tool)| {
                json!({
                    "name": name,
                    "description": tool.description.as_deref().unwrap_or_default(),
                    "inputSchema": tool.input_schema,
                    // Without this the model would have to search for the tool first.
                    "_meta": {"anthropic/alwaysLoad": true},
                })
            })
            .collect();
        json!({ "tools": tools })
    }

    fn call(&mut self, params: &Value) -> Result<Value, String> {
        let name = params["name"].as_str().unwrap_or_default();
        let tool = self
            .offered
            .get(name)
            .ok_or_else(|| format!("there is no tool {name}"))?;
        let number = self.called.len();
        if number == MOST_CALLS {
            return Err("the caller takes no more calls in this turn".to_owned());
        }
        self.called.push(ToolCall {
            tool_call_id: params["_meta"]["claudecode/toolUseId"]
                .as_str()
                .map_or_else(|| format!("{}_{number}", self.prefix), str::to_owned),
            name: tool.name.clone(),
            input: params
                .get("arguments")
                .cloned()
                .unwrap_or_else(|| json!({})),
        });
        Ok(json!({"content": [{"type": "text", "text": HANDED_OVER}]}))
    }
}

/// Text of the next message with the results of the calls that the caller received.
pub fn results(results: &[ToolResult]) -> String {
    let mut text = String::from("The results of the calls that were handed to the caller:");
    for result in results {
        let outcome = if result.is_error { "failed" } else { "gave" };
        let output = match &result.output {
            Value::String(output) => output.clone(),
            output => output.to_string(),
        };
        text.push_str(&format!(
            "\n\n{} ({}) {outcome}:\n{output}",
            result.name, result.tool_call_id
        ));
    }
    text
}

fn error(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// Replaces characters that the model does not accept (letters, digits, `_` and `-`, up to 64) and leaves
/// room for the server's prefix.
fn model_name(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(48)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(names: &[&str]) -> CallerTools {
        let tools: Vec<Tool> = names
            .iter()
            .map(|name| Tool {
                name: (*name).to_owned(),
                description: None,
                input_schema: json!({"type": "object"}),
            })
            .collect();
        CallerTools::new("dsp_1/1", &tools)
    }

    #[test]
    fn names_that_the_model_cannot_say_are_changed_and_found_again() {
        let mut tools = tools(&["external:svc.entry", "external.svc.entry", "plain"]);
        let answer = tools.answer(&json!({"id": 1, "method": "tools/list"}));
        let names: Vec<&str> = answer["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["external_svc_entry", "external_svc_entry_", "plain"]
        );
        for prefix in ["mcp__forge__", "mcp_forge_", "forge_", "forge."] {
            let offered = |name: &str| tools.is_offered(&format!("{prefix}{name}"));
            assert!(
                offered("external_svc_entry_") && !offered("other"),
                "{prefix}"
            );
        }
        assert!(!tools.is_offered("plain"));
    }

    #[test]
    fn a_call_is_written_down_with_its_id_and_the_callers_name() {
        let mut tools = tools(&["a.b"]);
        let message = json!({"id": 2, "method": "tools/call", "params": {
            "name": "a_b", "arguments": {"x": 1}, "_meta": {"claudecode/toolUseId": "toolu_1"}}});
        assert_eq!(
            tools.answer(&message)["result"]["content"][0]["text"],
            HANDED_OVER
        );
        let calls = tools.take_calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            (
                calls[0].tool_call_id.as_str(),
                calls[0].name.as_str(),
                &calls[0].input
            ),
            ("toolu_1", "a.b", &json!({"x": 1}))
        );
    }

    #[test]
    fn results_are_said_with_their_calls() {
        let result = |id: &str, output: Value, is_error| ToolResult {
            tool_call_id: id.to_owned(),
            name: "crm".to_owned(),
            output,
            is_error,
        };
        let said = results(&[
            result("1", json!("seven"), false),
            result("2", json!({"a": 1}), true),
        ]);
        assert!(said.contains("crm (1) gave:\nseven"), "{said}");
        assert!(said.ends_with("crm (2) failed:\n{\"a\":1}"), "{said}");
    }

    #[test]
    fn what_is_not_known_is_an_error_of_the_protocol() {
        let mut tools = tools(&["a"]);
        let cases = [
            (
                json!({"id": 1, "method": "tools/call", "params": {"name": "b"}}),
                -32602,
            ),
            (json!({"id": 1, "method": "resources/list"}), -32601),
        ];
        for (message, code) in cases {
            assert_eq!(tools.answer(&message)["error"]["code"], code, "{message}");
        }
        let answer = tools.answer(&json!({"method": "notifications/initialized"}));
        assert_eq!(answer["result"], json!({}));
    }
}
