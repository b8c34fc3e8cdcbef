//! A tool of the caller.

use forge_adapter_api::request::Tool;
use serde_json::json;

/// A tool with this name and the optional argument `who`.
pub fn find(name: &str) -> Tool {
    Tool {
        name: name.to_owned(),
        description: Some("finds".to_owned()),
        input_schema: json!({"type": "object", "properties": {"who": {"type": "string"}}}),
    }
}
