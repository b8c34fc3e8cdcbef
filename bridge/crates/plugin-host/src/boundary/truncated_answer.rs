//! Extracts the beginning of `output` from an answer that is too large to be accepted. Pure.

use forge_adapter_api::foreign_json;
use serde_json::{Value, json};

/// Limit of the output that is kept.
const KEPT_BYTES: usize = 1024 * 1024;
/// Longest JSON for the output that is kept: an escape of six bytes can stand for one.
const LITERAL_BYTES: usize = 6 * KEPT_BYTES;
/// Longest sequence that a cut can split, in bytes: two escapes that form one character.
const SPLIT: usize = 12;

/// Details of the error for an answer of `bytes` bytes: its size and the beginning of its `output`.
pub(crate) fn details(head: &[u8], bytes: usize) -> Value {
    json!({"bytes": bytes, "output": output(head)})
}

/// The member `output` of a JSON object whose end can be missing.
fn output(head: &[u8]) -> Option<String> {
    let mut at = skip(head, 0, b"{")?;
    loop {
        let key_end = string_end(head, at);
        let key: String = foreign_json::from_slice(head.get(at..key_end)?).ok()?;
        at = skip(head, key_end, b":")?;
        if key == "output" {
            return text(head.get(at..string_end(head, at))?);
        }
        at = skip(head, value_end(head, at)?, b",")?;
    }
}

/// The position after white space, this byte and white space again; `None` without the byte.
fn skip(head: &[u8], at: usize, byte: &[u8]) -> Option<usize> {
    let blank = |at: usize| {
        let rest = head.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|b| b.is_ascii_whitespace()).count()
    };
    let at = blank(at);
    (head.get(at..at + 1)? == byte).then(|| blank(at + 1))
}

/// The position after the string that begins at `at`, or the end of `head`.
fn string_end(head: &[u8], at: usize) -> usize {
    let mut escaped = false;
    for (offset, byte) in head.iter().enumerate().skip(at + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return offset + 1,
            _ => {}
        }
    }
    head.len()
}

/// The position of the comma after the value that begins at `at`; `None` if there is none.
fn value_end(head: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match head.get(at)? {
            b'"' => at = string_end(head, at),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' if depth == 0 => return Some(at),
            _ => at += 1,
        }
    }
}

/// The content of a JSON string, up to `KEPT_BYTES`, without a character or escape that the cut has split.
fn text(literal: &[u8]) -> Option<String> {
    let inner = literal.strip_prefix(b"\"")?;
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    let inner = &inner[..inner.len().min(LITERAL_BYTES)];
    let without_end = |read: fn(&[u8]) -> serde_json::Result<String>| {
        (0..=SPLIT.min(inner.len())).find_map(|cut| {
            let mut literal = vec![b'"'];
            literal.extend_from_slice(&inner[..inner.len() - cut]);
            literal.push(b'"');
            read(&literal).ok()
        })
    };
    // A half of a character at the end is the cut's; only others are the adapter's.
    let whole = without_end(|literal| serde_json::from_slice(literal));
    let mut whole = whole.or_else(|| without_end(foreign_json::from_slice))?;
    whole.truncate(whole.floor_char_boundary(KEPT_BYTES));
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_found_and_cut_cleanly() {
        let table = [
            (r#"{"status":"ok","output":"hello wor"#, Some("hello wor")),
            (r#"{"output":"a\"b\\"#, Some("a\"b\\")),
            (r#"{"output":"cut escape \"#, Some("cut escape ")),
            (r#"{"output":"pair \ud83d\ude0"#, Some("pair ")),
            (
                r#"{"output":"half \ud83d, and mor"#,
                Some("half \u{fffd}, and mor"),
            ),
            (r#"{"output":"whole","error":"x"}"#, Some("whole")),
            (
                r#" { "usage" : {"a":[1,"}"]} , "n":1, "output" : "x"#,
                Some("x"),
            ),
            (r#"{"status":"ok","error":"no output here"#, None),
            (r#"{"output":null,"#, None),
            ("xxxxxxxx", None),
            ("", None),
            (r#"{"output":"#, None),
        ];
        for (head, expected) in table {
            assert_eq!(output(head.as_bytes()).as_deref(), expected, "{head}");
        }
        let split = "{\"output\":\"ü".as_bytes();
        assert_eq!(output(&split[..split.len() - 1]).as_deref(), Some(""));
    }

    #[test]
    fn no_more_than_the_first_mebibyte_is_kept() {
        let head = format!("{{\"output\":\"{}", "ü".repeat(KEPT_BYTES));
        assert_eq!(output(head.as_bytes()).unwrap().len(), KEPT_BYTES);
        let escaped = format!("{{\"output\":\"{}", "\\u0001".repeat(2 * KEPT_BYTES));
        assert_eq!(
            output(escaped.as_bytes()).unwrap(),
            "\u{1}".repeat(KEPT_BYTES)
        );
        let late = format!(
            "{{\"usage\":\"{}\",\"output\":\"x",
            "x".repeat(8 * KEPT_BYTES)
        );
        assert_eq!(output(late.as_bytes()).as_deref(), Some("x"));
    }
}
