//! Encoding of events: each event is serialised once, and a page of events becomes one chunk.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::error::Failure;
use forge_base::event::{Cursor, Event};
use forge_base::text::is_unseen;
use forge_base::time;
use forge_runs::event::is_core;

const DATA: &[u8] = b"data: ";
const UNAUTHORIZED: &str = "unauthorized";

/// Encoding of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events with `id:`, `event:` and `data:`.
    Sse,
    /// One event per line.
    Ndjson,
}

/// Framing of a stream, and the form of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Dispatch(Framing),
    /// Events of a run in the form of its public design.
    Run {
        framing: Framing,
        /// Leaves out the types that the design does not name.
        core_only: bool,
    },
}

impl Dialect {
    fn framing(self) -> Framing {
        match self {
            Dialect::Dispatch(framing) | Dialect::Run { framing, .. } => framing,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        self.framing().content_type()
    }

    pub(super) fn events(self, events: &[Arc<Event>]) -> Bytes {
        match self {
            Dialect::Dispatch(framing) => framing.events(events),
            Dialect::Run { framing, core_only } => {
                let shown = events
                    .iter()
                    .filter(|event| !core_only || is_core(&event.kind));
                let frames = shown.map(|event| framing.frame_of_run(event));
                frames.collect::<Vec<_>>().concat().into()
            }
        }
    }

    pub(super) fn heartbeat(self, scanned: &Cursor) -> Bytes {
        match self {
            Dialect::Run {
                framing: Framing::Ndjson,
                ..
            } => Bytes::from_static(b": keepalive\n"),
            Dialect::Run { framing, .. } | Dialect::Dispatch(framing) => framing.heartbeat(scanned),
        }
    }

    pub(super) fn refusal(self, failure: &Failure) -> Bytes {
        self.framing().refusal(failure)
    }
}

/// Event of a run: envelope of its public design.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunEvent<'a> {
    event_id: &'a Cursor,
    seq: u64,
    timestamp: String,
    #[serde(rename = "type")]
    kind: &'a str,
    run_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_id: Option<String>,
    data: &'a RawValue,
}

/// Event in the form of the public design of runs.
pub(super) fn run_event(event: &Event) -> RunEvent<'_> {
    RunEvent {
        event_id: &event.id,
        seq: event.seq,
        timestamp: time::format(event.timestamp),
        kind: &event.kind,
        run_id: &event.run_id,
        task_id: &event.task_id,
        attempt_id: (event.attempt > 0).then(|| event.attempt.to_string()),
        data: event.data.as_deref().unwrap_or(empty()),
    }
}

/// An object without members.
fn empty() -> &'static RawValue {
    serde_json::from_str("{}").expect("it is JSON")
}

impl Framing {
    fn frame_of_run(self, event: &Event) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + event.data_bytes());
        if self == Framing::Sse {
            write_field(&mut out, "id", &event.id.to_string());
            write_field(&mut out, "event", &event.kind);
            out.extend_from_slice(DATA);
        }
        write_json(&mut out, &run_event(event));
        out.extend_from_slice(if self == Framing::Sse {
            &b"\n\n"[..]
        } else {
            b"\n"
        });
        out
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Framing::Sse => "text/event-stream; charset=utf-8",
            Framing::Ndjson => "application/x-ndjson",
        }
    }

    pub(super) fn events(self, events: &[Arc<Event>]) -> Bytes {
        let frames = || {
            events.iter().map(|event| {
                let frame = event.written(frame);
                match self {
                    Framing::Sse => frame,
                    Framing::Ndjson => line(frame),
                }
            })
        };
        let mut out = Vec::with_capacity(frames().map(<[u8]>::len).sum());
        frames().for_each(|frame| out.extend_from_slice(frame));
        out.into()
    }

    /// Heartbeat; with SSE it carries the position up to which the log was scanned.
    pub(super) fn heartbeat(self, scanned: &Cursor) -> Bytes {
        match self {
            Framing::Sse => format!(": heartbeat\nid: {scanned}\n\n").into(),
            Framing::Ndjson => Bytes::from_static(b"\n"),
        }
    }

    /// Last line of a stream whose reader lost access; it has no cursor.
    pub(super) fn refusal(self, failure: &Failure) -> Bytes {
        let line = json!({
            "type": UNAUTHORIZED,
            "error": failure.message(),
            "code": failure.code().as_str(),
        });
        match self {
            Framing::Sse => format!("event: {UNAUTHORIZED}\ndata: {line}\n\n").into(),
            Framing::Ndjson => format!("{line}\n").into(),
        }
    }
}

/// SSE frame of an event; contains its NDJSON line.
fn frame(event: &Event) -> Box<[u8]> {
    let mut out = Vec::with_capacity(512 + event.data_bytes());
    write_field(&mut out, "id", &event.id.to_string());
    write_field(&mut out, "event", &event.kind);
    out.extend_from_slice(DATA);
    write_json(&mut out, event);
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// NDJSON line in a frame: the value of its third field, without the empty line after it.
fn line(frame: &[u8]) -> &[u8] {
    let data = frame.splitn(3, |byte| *byte == b'\n').nth(2);
    let line = data.and_then(|data| data.strip_prefix(DATA)?.strip_suffix(b"\n"));
    line.expect("a frame has three fields and an empty line")
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &str) {
    // A line break would end the field, and an adapter chooses the names of its events.
    let value = value.replace(is_unseen, " ");
    writeln!(out, "{name}: {value}").expect("writing into memory does not fail");
}

/// Writes an event as one line of JSON. Adapter data is kept verbatim, except that raw line breaks become spaces:
/// JSON allows them only between tokens, where a space means the same.
fn write_json(out: &mut Vec<u8>, event: &impl Serialize) {
    let begin = out.len();
    serde_json::to_writer(&mut *out, event).expect("an event has only text keys");
    for byte in &mut out[begin..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::value::RawValue;

    use super::*;
    use forge_base::event::{LogName, Written};

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
            written: Written::default(),
        }
    }

    #[test]
    fn an_event_is_one_frame_whatever_its_adapter_wrote() {
        let event = Arc::new(event("my\nevent", "{\r\n  \"delta\":\"a\\nb\"\n}"));
        let sse = Framing::Sse.events(std::slice::from_ref(&event));
        insta::assert_snapshot!(String::from_utf8_lossy(&sse), @r#"
id: log-7
event: my event
data: {"id":"log-7","seq":3,"type":"my\nevent","taskId":"t","agentId":"a","dispatchId":null,"provider":"echo","timestamp":"1970-01-01T00:00:00.000Z","traceId":null,"attempt":1,"data":{    "delta":"a\nb" }}
"#);
        let ndjson = Framing::Ndjson.events(&[Arc::clone(&event), event]);
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
