//! What an execution says while it runs: turned into recorded events, and remembered as far as the
//! result needs it when the adapter gives none.

use std::time::Duration;

use forge_adapter_api::{AdapterEvent, Usage};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::event::{NewEvent, kind};
use crate::store::record::Progress;

/// A batch is written when it holds so much, even if more is waiting.
const BATCH_EVENTS: usize = 512;

/// What is known of an execution apart from its result.
#[derive(Debug, Default)]
pub struct Observed {
    /// The text that was streamed, cut at the limit.
    pub text: String,
    /// The last totals that were reported.
    pub usage: Usage,
    pub cost_usd: Option<f64>,
    pub session_id: Option<String>,
    /// Data of events whose names belong to the bridge: merged into the terminal event.
    pub hints: Map<String, Value>,
}

/// Collects events into batches and keeps what is worth keeping.
pub(crate) struct Observer {
    pub(crate) observed: Observed,
    progress: Progress,
    text_limit: usize,
}

impl Observer {
    /// Keeps at most `text_limit` bytes of streamed text.
    pub(crate) fn new(text_limit: usize) -> Self {
        Self { observed: Observed::default(), progress: Progress::default(), text_limit }
    }

    /// Takes one event of the adapter; `true` when usage changed.
    pub(crate) fn event(&mut self, event: AdapterEvent, now: Timestamp) -> bool {
        let AdapterEvent { kind: name, data, timestamp } = event;
        if kind::is_reserved(&name) {
            if let Some(Value::Object(data)) = data {
                self.observed.hints.extend(data);
            }
            return false;
        }
        let usage = name == kind::USAGE;
        match (&data, name.as_str()) {
            (Some(Value::Object(data)), "assistant.text") => self.text(data),
            (Some(data), kind::USAGE) => self.usage(data),
            (Some(Value::Object(data)), kind::SESSION_UPDATED) => self.session(data),
            (Some(_) | None, _) => {}
        }
        // An adapter's clock is its own affair: what cannot be read is replaced by the time of arrival.
        let timestamp = timestamp.and_then(|text| text.parse().ok()).unwrap_or(now);
        // The wire promises an object or nothing.
        let data = data.map(|data| match data {
            Value::Object(_) => data,
            other => serde_json::json!({ "value": other }),
        });
        self.progress.events.push(NewEvent::new(&name, timestamp, data));
        usage
    }

    /// Events that an adapter lost because it did not wait.
    pub(crate) fn dropped(&mut self, count: u64, now: Timestamp) {
        let data = serde_json::json!({ "count": count });
        self.progress.events.push(NewEvent::new(kind::EVENTS_DROPPED, now, Some(data)));
    }

    /// What later attempts have to count as spent, as part of the next batch.
    pub(crate) fn spent(&mut self, spent: Box<serde_json::value::RawValue>) {
        self.progress.spent = Some(spent);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Progress { events, session, spent } = &self.progress;
        events.is_empty() && session.is_none() && spent.is_none()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.progress.events.len() >= BATCH_EVENTS
    }

    /// The batch so far; a new one begins.
    pub(crate) fn take(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }

    /// Gives back a batch that could not be written; it stays in front.
    pub(crate) fn put_back(&mut self, batch: Progress) {
        let later = std::mem::replace(&mut self.progress, batch);
        self.progress.events.extend(later.events);
        self.progress.session = later.session.or(self.progress.session.take());
        self.progress.spent = later.spent.or(self.progress.spent.take());
    }

    fn text(&mut self, data: &Map<String, Value>) {
        let Some(Value::String(delta)) = data.get("delta") else { return };
        let room = self.text_limit.saturating_sub(self.observed.text.len());
        self.observed.text.push_str(&delta[..delta.floor_char_boundary(room.min(delta.len()))]);
    }

    fn usage(&mut self, data: &Value) {
        // A usage event with members of other types says nothing that could be billed.
        if let Ok(usage) = serde_json::from_value(data.clone()) {
            self.observed.usage = usage;
        }
        if let Some(cost) = data.get("costUsd").and_then(Value::as_f64) {
            self.observed.cost_usd = Some(cost);
        }
    }

    fn session(&mut self, data: &Map<String, Value>) {
        if let Some(Value::String(id)) = data.get("sessionId") {
            self.observed.session_id = Some(id.clone());
            self.progress.session = Some(id.clone());
        }
    }
}

/// Milliseconds for the wire.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: Value) -> AdapterEvent {
        AdapterEvent { kind: kind.into(), data: Some(data), timestamp: None }
    }

    #[test]
    fn streamed_text_is_kept_up_to_the_limit_at_a_character() {
        let mut observer = Observer::new(4);
        observer.event(event("assistant.text", json!({"delta": "ab"})), Timestamp::UNIX_EPOCH);
        observer.event(event("assistant.text", json!({"delta": "c€d"})), Timestamp::UNIX_EPOCH);
        assert_eq!(observer.observed.text, "abc");
        assert_eq!(observer.take().events.len(), 2);
        assert!(observer.is_empty());
    }

    #[test]
    fn names_of_the_bridge_are_hints() {
        let mut observer = Observer::new(0);
        observer.event(event("execution.completed", json!({"turns": 3})), Timestamp::UNIX_EPOCH);
        assert!(observer.is_empty());
        assert_eq!(observer.observed.hints["turns"], 3);
    }

    #[test]
    fn usage_and_session_are_remembered() {
        let mut observer = Observer::new(0);
        let usage = json!({"inputTokens": 3, "outputTokens": 4, "costUsd": 0.5});
        assert!(observer.event(event("usage", usage), Timestamp::UNIX_EPOCH));
        observer.event(event("session.updated", json!({"sessionId": "s"})), Timestamp::UNIX_EPOCH);
        assert_eq!(observer.observed.usage.input_tokens, Some(3));
        assert_eq!(observer.observed.cost_usd, Some(0.5));
        assert_eq!(observer.take().session.as_deref(), Some("s"));
    }
}
