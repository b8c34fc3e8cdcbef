//! A caller's JSON Schema, and a value held against it: neither may take long, whatever they are.

use forge_dispatch::schema::{compile, mismatch};
use forge_server::json;

/// A schema, a line of three dashes, a value.
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
