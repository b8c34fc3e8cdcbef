//! Events and cursors of the durable event log. Independent of its storage (`store/`) and of its delivery to readers
//! (`http/`).

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::id::DispatchId;

pub mod kind;

/// Event to be appended. The store assigns its id and its `seq`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewEvent {
    pub kind: Cow<'static, str>,
    pub timestamp: Timestamp,
    /// JSON object.
    pub data: Option<Box<RawValue>>,
}

impl NewEvent {
    pub fn new(kind: impl Into<Cow<'static, str>>, timestamp: Timestamp) -> Self {
        Self {
            kind: kind.into(),
            timestamp,
            data: None,
        }
    }

    /// Sets the data, which must serialise to a JSON object.
    #[must_use]
    pub fn with(self, data: &impl Serialize) -> Self {
        let data = to_raw_value(data).expect("data has only text keys");
        Self {
            data: Some(data),
            ..self
        }
    }
}

/// Event as recorded and as readers receive it: the schema `ExecutionEvent` of `openapi.json`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Opaque to readers: `<log>-<n>`.
    pub id: Cursor,
    /// Counts from 1 without a gap inside a dispatch, or a run; 0 if the event belongs to neither.
    pub seq: u64,
    #[serde(rename = "type")]
    pub kind: String,
    pub task_id: Option<String>,
    pub agent_id: Option<String>,
    pub dispatch_id: Option<DispatchId>,
    pub provider: Option<String>,
    #[serde(serialize_with = "crate::time::millis")]
    pub timestamp: Timestamp,
    /// Run of the dispatch, as its caller named it; without a dispatch, the run that owns the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub trace_id: Option<String>,
    /// Number of the attempt; 0 before the first one.
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    #[serde(skip)]
    pub written: Written,
}

/// Serialised event, written for the first reader and shared by all others.
#[derive(Debug, Default)]
pub struct Written(OnceLock<Box<[u8]>>);

impl Clone for Written {
    /// Not cloned: the owner of a clone can change the event.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Event {
    /// Serialised event; `write` runs only once, so every reader must use the same format.
    pub fn written(&self, write: impl FnOnce(&Self) -> Box<[u8]>) -> &[u8] {
        self.written.0.get_or_init(|| write(self))
    }

    /// Length of the data as JSON.
    pub fn data_bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.get().len())
    }
}

/// Name of one event history. A restored or new store has another one, so that a cursor of a different history is
/// refused rather than misread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogName(String);

impl LogName {
    /// New name: twelve hexadecimal digits.
    pub fn random() -> Self {
        Self(format!("{:012x}", rand::random::<u64>() & 0xffff_ffff_ffff))
    }

    /// Name read from the store.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn cursor(&self, position: u64) -> Cursor {
        Cursor {
            log: self.clone(),
            position,
        }
    }

    /// Position of a cursor of this log.
    pub fn position(&self, text: &str) -> Result<u64, CursorError> {
        let (log, position) = text.rsplit_once('-').ok_or(CursorError::Malformed)?;
        let digits = !position.is_empty() && position.bytes().all(|b| b.is_ascii_digit());
        let canonical = digits && (position == "0" || !position.starts_with('0'));
        if !canonical {
            return Err(CursorError::Malformed);
        }
        if log != self.0 {
            return Err(CursorError::OtherLog);
        }
        position.parse().map_err(|_| CursorError::Malformed)
    }
}

/// Position in the log; a reader continues with the events after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    log: LogName,
    pub position: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.log.0, self.position)
    }
}

impl Serialize for Cursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reason why a text is not a cursor of this log.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CursorError {
    #[error("not a cursor")]
    Malformed,
    #[error("a cursor of another event log")]
    OtherLog,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_cursor_has_one_spelling_and_one_log(position: u64, other in 1..u64::MAX) {
            let (log, foreign) = (LogName::random(), LogName::from_stored("another".to_owned()));
            let text = log.cursor(position).to_string();
            prop_assert_eq!(log.position(&text), Ok(position));
            prop_assert_eq!(foreign.position(&text), Err(CursorError::OtherLog));
            let next = log.cursor(position.wrapping_add(other)).to_string();
            prop_assert_ne!(log.position(&next), Ok(position));
        }

        #[test]
        fn what_is_read_is_what_is_written(text in "[0-9a-f]{0,3}-?[-+ 0-9a-f]{0,24}") {
            let log = LogName::from_stored("abc".to_owned());
            if let Ok(position) = log.position(&text) {
                prop_assert_eq!(log.cursor(position).to_string(), text);
            }
        }
    }

    #[test]
    fn a_cursor_is_read_back() {
        let log = LogName::random();
        assert_eq!(log.position(&log.cursor(17).to_string()), Ok(17));
    }

    #[test]
    fn what_was_never_issued_is_refused() {
        let log = LogName::from_stored("abc".into());
        for text in [
            "",
            "17",
            "abc-",
            "abc-+1",
            "abc-01",
            "abc-1x",
            "abc-99999999999999999999",
        ] {
            assert_eq!(log.position(text), Err(CursorError::Malformed), "{text:?}");
        }
        for text in ["abd-1", "abc--1"] {
            assert_eq!(log.position(text), Err(CursorError::OtherLog), "{text:?}");
        }
    }
}
