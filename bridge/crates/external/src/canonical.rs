//! Canonical JSON: keys in byte order at every level, no spaces, numbers as JavaScript prints whole ones, one line feed
//! at the end. Equal values have equal bytes, so a digest of them can be recomputed.

use serde::Serialize;
use serde_json::{Number, Value};

use forge_base::digest::{hex, sha256};

/// Largest whole number that a float holds exactly, and that JavaScript prints without an exponent.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

/// Canonical text of a value.
pub fn text(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("what is written here has text keys");
    let mut text = String::new();
    write(&value, &mut text);
    text.push('\n');
    text
}

/// SHA-256 of the canonical text, in hexadecimal.
pub fn digest(value: &impl Serialize) -> String {
    hex(&sha256(text(value)))
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
        Value::Number(number) => write_number(number, text),
        Value::Array(items) => {
            let mut open = '[';
            for item in items {
                text.push(open);
                write(item, text);
                open = ',';
            }
            text.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| key.as_bytes());
            let mut open = '{';
            for (key, value) in &members {
                text.push(open);
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(value, text);
                open = ',';
            }
            text.push_str(if members.is_empty() { "{}" } else { "}" });
        }
    }
}

fn write_number(number: &Number, text: &mut String) {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < LARGEST_EXACT => {
            text.push_str(&format!("{float:.0}"));
        }
        Some(_) | None => text.push_str(&number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_in_byte_order_at_every_level() {
        let value =
            json!({"b": [{"z": 1, "Z": 2.0, "é": null}], "a": {}, "c": [], "d": -0.5, "q\"": "\n"});
        let expected = "{\"a\":{},\"b\":[{\"Z\":2,\"z\":1,\"é\":null}],\"c\":[],\"d\":-0.5,\"q\\\"\":\"\\n\"}\n";
        assert_eq!(text(&value), expected);
    }

    #[test]
    fn a_text_that_is_read_and_written_again_is_the_same() {
        let first = text(&json!({"x": [1.5e300, 1e15, 1e16, 3, "é\u{1}"], "y": true}));
        let again: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(text(&again), first);
    }
}
