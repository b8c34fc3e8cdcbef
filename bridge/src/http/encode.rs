//! Events as bytes: a whole page of them becomes one chunk.

use std::io::Write as _;

use bytes::Bytes;

use crate::event::{Cursor, Event};

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// `id:`, `event:`, `data:`.
    Sse,
    /// One event a line.
    Ndjson,
}

impl Framing {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Framing::Sse => "text/event-stream; charset=utf-8",
            Framing::Ndjson => "application/x-ndjson",
        }
    }

    pub(super) fn events(self, events: &[Event]) -> Result<Bytes, serde_json::Error> {
        let mut out = Vec::with_capacity(events.len() * 512);
        for event in events {
            match self {
                Framing::Sse => {
                    write_field(&mut out, "id", &event.id.to_string());
                    write_field(&mut out, "event", &event.kind);
                    out.extend_from_slice(b"data: ");
                    write_json(&mut out, event)?;
                    out.extend_from_slice(b"\n\n");
                }
                Framing::Ndjson => {
                    write_json(&mut out, event)?;
                    out.push(b'\n');
                }
            }
        }
        Ok(out.into())
    }

    /// Says that we live and, with SSE, how far the log was looked through.
    pub(super) fn heartbeat(self, scanned: &Cursor) -> Bytes {
        match self {
            Framing::Sse => format!(": heartbeat\nid: {scanned}\n\n").into(),
            Framing::Ndjson => Bytes::from_static(b"\n"),
        }
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &str) {
    // A line break would end the field, and an adapter chooses the names of its events.
    let value = value.replace(|letter: char| letter.is_control(), " ");
    writeln!(out, "{name}: {value}").expect("writing into memory does not fail");
}

/// One line of JSON. What an adapter sent is kept as it was, and in JSON a raw line break can only
/// stand between tokens, where a space means the same.
fn write_json(out: &mut Vec<u8>, event: &Event) -> Result<(), serde_json::Error> {
    let begin = out.len();
    serde_json::to_writer(&mut *out, event)?;
    for byte in &mut out[begin..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::value::RawValue;

    use super::*;
    use crate::event::LogName;

    fn event(kind: &str, data: &str) -> Event {
        Event {
            id: LogName::from_stored("log".into()).cursor(7),
            seq: 3,
            kind: kind.into(),
            task_id: Some("t".into()),
            agent_id: Some("a".into()),
            dispatch_id: None,
            provider: Some("echo".into()),
            timestamp: Timestamp::UNIX_EPOCH,
            run_id: None,
            trace_id: None,
            attempt: 1,
            data: Some(RawValue::from_string(data.into()).unwrap()),
        }
    }

    #[test]
    fn an_event_is_one_frame_whatever_its_adapter_wrote() {
        let event = event("my\nevent", "{\r\n  \"delta\":\"a\\nb\"\n}");
        let sse = Framing::Sse.events(std::slice::from_ref(&event)).unwrap();
        insta::assert_snapshot!(String::from_utf8_lossy(&sse), @r#"
id: log-7
event: my event
data: {"id":"log-7","seq":3,"type":"my\nevent","taskId":"t","agentId":"a","dispatchId":null,"provider":"echo","timestamp":"1970-01-01T00:00:00.000Z","traceId":null,"attempt":1,"data":{    "delta":"a\nb" }}
"#);
        let ndjson = Framing::Ndjson.events(&[event.clone(), event]).unwrap();
        assert_eq!(ndjson.iter().filter(|byte| **byte == b'\n').count(), 2);
        for line in ndjson
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let read: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!(read["data"]["delta"], "a\nb");
        }
    }

    #[test]
    fn a_heartbeat_carries_the_cursor() {
        let cursor = LogName::from_stored("log".into()).cursor(9);
        assert_eq!(
            Framing::Sse.heartbeat(&cursor),
            ": heartbeat\nid: log-9\n\n"
        );
        assert_eq!(Framing::Ndjson.heartbeat(&cursor), "\n");
    }
}
