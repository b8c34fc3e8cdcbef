//! An MCP server on stdio with the tool `add`.

use serde_json::{Value, json};

/// Entry of `mcpServers` for a server whose tool returns this text, which it reads from a variable of the entry.
pub fn answering(text: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp_server.py");
    json!({"command": "python3", "args": [script], "env": {"ANSWER": text}})
}
