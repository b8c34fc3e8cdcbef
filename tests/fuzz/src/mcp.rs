//! Answers of an MCP server to a tool call.

use forge_dispatch::mcp::fuzzing::answer;

const LIMIT: usize = 200;

pub(crate) fn run(data: &[u8]) {
    let Some(answer) = answer(data, LIMIT) else {
        return;
    };
    let bytes = match &answer.output {
        serde_json::Value::String(text) => text.len(),
        other => other.to_string().len(),
    };
    assert!(bytes <= LIMIT, "{bytes}");
}
