//! Conversion of an MCP call result into one value for the model. Pure.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

use super::Answer;

/// Converts a call result: structured content if present, else text blocks joined by newlines, else the
/// content blocks as MCP JSON. A value longer than `limit` bytes becomes an error.
pub(super) fn of(result: CallToolResult, limit: usize) -> Answer {
    let is_error = result.is_error.unwrap_or(false);
    let output = match result.structured_content {
        Some(structured) => structured,
        None => content(&result.content),
    };
    let bytes = match &output {
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    };
    if bytes > limit {
        return Answer::failed(format!("the result has {bytes} bytes, {limit} are allowed"));
    }
    Answer { output, is_error }
}

fn content(blocks: &[ContentBlock]) -> Value {
    let texts: Option<Vec<&str>> = blocks
        .iter()
        .map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    match texts {
        Some(texts) => texts.join("\n").into(),
        // Types of the MCP library, which always serialise.
        None => serde_json::to_value(blocks).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(result: Value) -> Answer {
        of(serde_json::from_value(result).unwrap(), 100)
    }

    #[test]
    fn results_become_one_value() {
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        let text = |text: &str| json!({"type": "text", "text": text});
        for (result, output, is_error) in [
            (json!({"content": []}), json!(""), false),
            (
                json!({"content": [text("a"), text("b")]}),
                json!("a\nb"),
                false,
            ),
            (
                json!({"content": [text("no")], "isError": true}),
                json!("no"),
                true,
            ),
            (
                json!({"content": [text("3")], "structuredContent": {"n": 3}}),
                json!({"n": 3}),
                false,
            ),
            (
                json!({"content": [text("a"), image]}),
                json!([text("a"), image]),
                false,
            ),
        ] {
            let answer = read(result);
            assert_eq!((answer.output, answer.is_error), (output, is_error));
        }
    }

    #[test]
    fn too_long_a_result_is_an_error_that_says_so() {
        let answer = read(json!({"content": [{"type": "text", "text": "x".repeat(101)}]}));
        assert_eq!(
            answer.output,
            json!("the result has 101 bytes, 100 are allowed")
        );
        assert!(answer.is_error);
    }
}
