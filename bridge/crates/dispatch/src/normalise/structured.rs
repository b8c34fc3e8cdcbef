//! Check of an output against a schema: the adapter's structured output, or its text parsed as JSON.

use forge_adapter_api::foreign_json;
use serde_json::Value;

use forge_base::schema;

/// Returns the value that matches the schema; the error is the reason why there is none.
pub(crate) fn check(
    schema: &Value,
    structured: Option<&Value>,
    text: Option<&str>,
) -> Result<Value, String> {
    let value = match (structured, text) {
        (Some(value), _) => value.clone(),
        (None, Some(text)) => foreign_json::from_str(unfenced(text))
            .map_err(|error| format!("the output is not JSON: {error}"))?,
        (None, None) => return Err("there is neither structured output nor text".into()),
    };
    let validator = schema::compile(schema).map_err(|error| format!("outputSchema {error}"))?;
    match schema::mismatch(&validator, &value) {
        None => Ok(value),
        Some(mismatch) => Err(format!(
            "the output does not follow outputSchema: {mismatch}"
        )),
    }
}

/// Strips a code fence around the whole text; models often add one to JSON.
fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inner = text
        .strip_prefix("```json")
        .or_else(|| text.strip_prefix("```"))
        .and_then(|rest| rest.strip_suffix("```"));
    inner.unwrap_or(text).trim()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn structured_output_goes_before_text() {
        let schema = json!({"type": "object", "required": ["a"]});
        let good = json!({"a": 1});
        for (structured, text, expected) in [
            (Some(&good), None, true),
            (Some(&good), Some("not JSON"), true),
            (Some(&json!({})), Some(r#"{"a": 1}"#), false),
            (None, Some(r#" {"a": 1} "#), true),
            (None, Some("```json\n{\"a\": 1}\n```"), true),
            (None, Some("```\n{\"a\": 1}\n```\n"), true),
            (None, Some("Here it is: {\"a\": 1}"), false),
            (None, Some(r#"{"b": 1}"#), false),
            (None, Some(""), false),
            (None, None, false),
        ] {
            let checked = check(&schema, structured, text);
            assert_eq!(checked.is_ok(), expected, "{structured:?} {text:?}");
        }
    }
}
