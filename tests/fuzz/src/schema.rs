//! Validation of a value against a caller's JSON Schema: bounded in time for any input.

use forge_base::json;
use forge_base::schema::{compile, mismatch};

/// Input: a schema, a line of three dashes, and a value.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (schema, value) = text.split_once("\n---\n").unwrap_or((&text, "null"));
    let Ok(schema) = json::parse(schema.as_bytes()) else {
        return;
    };
    match compile(&schema) {
        Ok(validator) => {
            let value = json::parse(value.as_bytes()).unwrap_or_default();
            if let Some(why) = mismatch(&validator, &value) {
                assert!(!why.is_empty());
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}
