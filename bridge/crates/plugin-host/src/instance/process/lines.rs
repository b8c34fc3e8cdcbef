//! Line protocol between the bridge and a program: one JSON object per line, as in `adapter-api/STDIO.md`. Pure.

use forge_adapter_api::foreign_json;
use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Limit of a line beside its payload.
pub(super) const AROUND: usize = 64 * 1024;
/// Limit of an invalid line that is quoted in the error.
const SHOWN: usize = 80;

/// A message of a program.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Manifest(Vec<u8>),
    /// An event of a call, or outside calls if the call id is 0.
    Event {
        id: u64,
        event: Vec<u8>,
    },
    Answer {
        id: u64,
        answer: Vec<u8>,
    },
    Error {
        id: u64,
        error: Vec<u8>,
    },
    /// A log record; the level is that of `HostV1::log`.
    Log {
        level: i32,
        record: Vec<u8>,
    },
}

/// The first line to a program.
pub(super) fn create(payload: &[u8]) -> Vec<u8> {
    line(&json!({"op": "create"}), Some(payload))
}

pub(super) fn start(id: u64, op: &str, payload: &[u8]) -> Vec<u8> {
    line(&json!({"id": id.to_string(), "op": op}), Some(payload))
}

pub(super) fn drop(id: u64) -> Vec<u8> {
    line(&json!({"drop": id.to_string()}), None)
}

/// Builds one line. The payload is inserted unchanged but for raw line breaks, which are only white space in JSON.
fn line(head: &Value, payload: Option<&[u8]>) -> Vec<u8> {
    let mut line = head.to_string().into_bytes();
    if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
        line.pop();
        line.extend(b",\"payload\":");
        let flat = payload.iter().map(|byte| match byte {
            b'\n' | b'\r' => b' ',
            other => *other,
        });
        line.extend(flat);
        line.push(b'}');
    }
    line.push(b'\n');
    line
}

#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    ok: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    log: Option<Value>,
    #[serde(borrow)]
    manifest: Option<&'a RawValue>,
}

/// Keeps `null`, which is an answer too, distinct from a missing member.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

/// Parses one line; the error says what is wrong with it.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let shown = || String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let text = String::from_utf8_lossy(line);
    let text = foreign_json::readable(&text);
    let mut members: Members<'_> = serde_json::from_str(&text)
        .map_err(|error| format!("a line that is not a message ({error}): {:?}", shown()))?;
    let bytes = |raw: &RawValue| raw.get().as_bytes().to_vec();
    let id = members.id.take().map(|id| match id.parse() {
        Ok(0) | Err(_) => Err(format!("a line with the id {id:?}, which was never issued")),
        Ok(id) => Ok(id),
    });
    let id = id.transpose()?;
    let Members {
        ok,
        error,
        event,
        log,
        manifest,
        ..
    } = members;
    match (id, ok, error, event, log, manifest) {
        (Some(id), Some(answer), None, None, ..) => {
            let answer = bytes(answer);
            Ok(Line::Answer { id, answer })
        }
        (Some(id), None, Some(error), None, ..) => {
            let error = bytes(error);
            Ok(Line::Error { id, error })
        }
        (id, None, None, Some(event), ..) => Ok(Line::Event {
            id: id.unwrap_or(0),
            event: bytes(event),
        }),
        (None, _, _, _, Some(log), _) => Ok(log_line(&log)),
        (None, .., Some(manifest)) => Ok(Line::Manifest(bytes(manifest))),
        _ => Err(format!(
            "a line without one of \"manifest\", \"event\", \"log\", or \"id\" with \"ok\" or \"error\": {:?}",
            shown()
        )),
    }
}

/// The call that an invalid line names, with an answer in a wrong form.
pub(super) fn call_of(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Named {
        id: Value,
    }
    let Named { id } = foreign_json::from_slice(line).ok()?;
    let id = match &id {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    id.filter(|id| *id != 0)
}

fn log_line(log: &Value) -> Line {
    let level = match log["level"].as_str() {
        Some("error") => 1,
        Some("warn") => 2,
        Some("debug") => 4,
        Some("trace") => 5,
        Some(_) | None => 3,
    };
    let record = match log {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Line::Log {
        level,
        record: record.into_bytes(),
    }
}

/// The call id of a line that is too long to be read, if it is the first member.
pub(super) fn id_of(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head.get(..head.len().min(64))?).ok()?;
    let rest = text.trim_start().strip_prefix('{')?.trim_start();
    let rest = rest.strip_prefix("\"id\"")?.trim_start();
    let rest = rest.strip_prefix(':')?.trim_start().strip_prefix('"')?;
    rest.split_once('"')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_one_line() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(start(4294967297, "execute", b"{\"a\":\n\"b\\n\"}")),
            "{\"id\":\"4294967297\",\"op\":\"execute\",\"payload\":{\"a\": \"b\\n\"}}\n"
        );
        assert_eq!(text(start(1, "x", b"")), "{\"id\":\"1\",\"op\":\"x\"}\n");
        assert_eq!(text(drop(1)), "{\"drop\":\"1\"}\n");
        assert_eq!(text(create(b"{}")), "{\"op\":\"create\",\"payload\":{}}\n");
    }

    #[test]
    fn every_line_of_a_program_is_understood_or_said_to_be_wrong() {
        let event = br#"{"type":"a"}"#.to_vec();
        let table: [(&str, Result<Line, &str>); 17] = [
            (
                r#"{"id":"7","ok":{}}"#,
                Ok(Line::Answer {
                    id: 7,
                    answer: b"{}".to_vec(),
                }),
            ),
            (
                r#"{"id":"7","ok":null}"#,
                Ok(Line::Answer {
                    id: 7,
                    answer: b"null".to_vec(),
                }),
            ),
            (
                r#"{"id":"7","error":{}}"#,
                Ok(Line::Error {
                    id: 7,
                    error: b"{}".to_vec(),
                }),
            ),
            (
                r#"{"event":{"type":"a"},"id":"7"}"#,
                Ok(Line::Event {
                    id: 7,
                    event: event.clone(),
                }),
            ),
            (
                r#"{"event":{"type":"a"},"x":1}"#,
                Ok(Line::Event { id: 0, event }),
            ),
            (r#"{"manifest":{}}"#, Ok(Line::Manifest(b"{}".to_vec()))),
            (
                r#"{"log":"a"}"#,
                Ok(Line::Log {
                    level: 3,
                    record: b"a".to_vec(),
                }),
            ),
            (
                r#"{"log":{"level":"error"}}"#,
                Ok(Line::Log {
                    level: 1,
                    record: br#"{"level":"error"}"#.to_vec(),
                }),
            ),
            ("", Err("not a message")),
            ("hello", Err("\"hello\"")),
            ("[1]", Err("not a message")),
            ("{}", Err("without one of")),
            (r#"{"id":7,"ok":{}}"#, Err("not a message")),
            (r#"{"id":"0","ok":{}}"#, Err("never issued")),
            (r#"{"id":"x","ok":{}}"#, Err("never issued")),
            (r#"{"id":"7","ok":{},"error":{}}"#, Err("without one of")),
            (r#"{"ok":{}}"#, Err("without one of")),
        ];
        for (line, expected) in table {
            match (read(line.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{line}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{line}: {found}"),
                (found, _) => panic!("{line}: {found:?}"),
            }
        }
    }

    #[test]
    fn an_answer_in_a_wrong_form_names_its_call() {
        for (line, id) in [
            (r#"{"id":"7","status":"ok","output":"x"}"#, Some(7)),
            (r#"{"id":7,"ok":{}}"#, Some(7)),
            (r#"{"id":"0","ok":{}}"#, None),
            (r#"{"id":["7"]}"#, None),
            (r#"{"ok":{}}"#, None),
            ("hello", None),
        ] {
            assert_eq!(call_of(line.as_bytes()), id, "{line}");
        }
    }

    #[test]
    fn the_id_of_a_line_that_is_too_long_is_found_where_it_is_first() {
        for (head, id) in [
            (r#"{"id":"12","ok":{"output":"xxx"#, Some(12)),
            (r#" { "id" : "12" , "#, Some(12)),
            (r#"{"ok":{"id":"12""#, None),
            ("x", None),
        ] {
            assert_eq!(id_of(head.as_bytes()), id, "{head}");
        }
    }
}
