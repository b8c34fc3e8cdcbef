//! Batches an adapter's events for the event log and accumulates the parts that the result might need.

use forge_adapter_api::AdapterEvent;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use forge_base::event::{NewEvent, kind};
use forge_store::record::Progress;

use super::accumulator::{Accumulator, Change};
use super::model_retries::ModelRetries;
use super::tool_calls::ToolCalls;

/// Events at which a batch is written, even if more are waiting.
const BATCH_EVENTS: usize = 512;
/// Bytes of kinds and data at which a batch is written.
const BATCH_BYTES: usize = 1024 * 1024;
/// Maximum number of members kept from the data of events with reserved names.
const HINTS: usize = 64;
/// Maximum bytes of these members.
const HINT_BYTES: usize = 64 * 1024;

/// Batches the events of one attempt.
pub(super) struct EventBatcher {
    pub(super) accumulator: Accumulator,
    /// Data of adapter events with names reserved for the bridge, to be merged into the terminal event.
    pub(super) hints: Map<String, Value>,
    pub(super) calls: ToolCalls,
    pub(super) retries: ModelRetries,
    /// Time of the first event.
    pub(super) first: Option<Timestamp>,
    pub(super) events: u64,
    pub(super) lost: u64,
    hint_bytes: usize,
    batch: Progress,
    batch_bytes: usize,
}

impl EventBatcher {
    pub(super) fn new(accumulator: Accumulator) -> Self {
        Self {
            accumulator,
            hints: Map::new(),
            calls: ToolCalls::default(),
            retries: ModelRetries::default(),
            first: None,
            events: 0,
            lost: 0,
            hint_bytes: 0,
            batch: Progress::default(),
            batch_bytes: 0,
        }
    }

    /// Adds one event of the adapter.
    pub(super) fn event(&mut self, event: AdapterEvent, now: Timestamp) -> Change {
        self.first.get_or_insert(now);
        self.events += 1;
        if kind::is_reserved(&event.kind) {
            self.hint(event.data);
            return Change::Nothing;
        }
        let noticed = self.accumulator.observe(&event);
        self.calls.notice(&event.kind, event.data.as_ref(), now);
        self.retries.notice(&event.kind, event.data.as_ref());
        match noticed {
            Change::Usage => self.batch.spent = Some(self.accumulator.meter.to_store()),
            Change::Session => self.batch.session.clone_from(&self.accumulator.session),
            Change::Nothing => {}
        }
        // A timestamp that cannot be parsed is replaced by the time of arrival; others are taken as sent.
        let timestamp = event
            .timestamp
            .and_then(|text| text.parse().ok())
            .unwrap_or(now);
        let new = NewEvent::new(event.kind, timestamp);
        // Event data is an object or absent; any other value is wrapped.
        self.push(match event.data {
            None => new,
            Some(Value::Object(data)) => new.with(&data),
            Some(other) => new.with(&json!({ "value": other })),
        });
        noticed
    }

    /// Adds an event of the bridge itself.
    pub(super) fn note(&mut self, kind: &'static str, data: &Value, now: Timestamp) {
        self.calls.notice(kind, Some(data), now);
        self.batch.events.push(NewEvent::new(kind, now).with(data));
    }

    /// Records events that were dropped because the adapter did not wait for the full queue.
    pub(super) fn dropped(&mut self, count: u64, now: Timestamp) {
        // A child names the number itself.
        self.lost = self.lost.saturating_add(count);
        let data = json!({ "count": count });
        self.push(NewEvent::new(kind::EVENTS_DROPPED, now).with(&data));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch.events.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.batch.events.len() >= BATCH_EVENTS || self.batch_bytes >= BATCH_BYTES
    }

    /// Takes the current batch and begins a new one.
    pub(super) fn take(&mut self) -> Progress {
        self.batch_bytes = 0;
        std::mem::take(&mut self.batch)
    }

    /// Restores a batch that could not be written, ahead of the events that came since.
    pub(super) fn put_back(&mut self, batch: Progress) {
        let later = std::mem::replace(&mut self.batch, batch);
        self.batch_bytes += self.batch.events.iter().map(bytes_of).sum::<usize>();
        self.batch.events.extend(later.events);
        self.batch.session = later.session.or(self.batch.session.take());
        self.batch.spent = later.spent.or(self.batch.spent.take());
        self.batch.charge = None;
    }

    fn hint(&mut self, data: Option<Value>) {
        let Some(Value::Object(data)) = data else {
            return;
        };
        for (name, value) in data {
            let bytes = self.hint_bytes + name.len() + value.to_string().len();
            if self.hints.len() < HINTS && bytes <= HINT_BYTES {
                self.hint_bytes = bytes;
                self.hints.insert(name, value);
            }
        }
    }

    fn push(&mut self, event: NewEvent) {
        self.batch_bytes += bytes_of(&event);
        self.batch.events.push(event);
    }
}

fn bytes_of(event: &NewEvent) -> usize {
    event.kind.len() + event.data.as_ref().map_or(0, |data| data.get().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, data: Value) -> AdapterEvent {
        AdapterEvent {
            kind: kind.into(),
            data: Some(data),
            timestamp: None,
        }
    }

    fn batcher() -> EventBatcher {
        EventBatcher::new(Accumulator::new(None, 100))
    }

    #[test]
    fn events_make_a_batch_that_a_failed_write_gives_back() {
        let mut batcher = batcher();
        let at = Timestamp::UNIX_EPOCH;
        batcher.event(event("assistant.text", json!({"delta": "a"})), at);
        let first = batcher.take();
        batcher.event(event("session.updated", json!({"sessionId": "s"})), at);
        batcher.put_back(first);
        let batch = batcher.take();
        let kinds: Vec<_> = batch.events.iter().map(|event| &*event.kind).collect();
        assert_eq!(kinds, ["assistant.text", "session.updated"]);
        assert_eq!(batch.session.as_deref(), Some("s"));
        assert!(batcher.is_empty());
    }

    #[test]
    fn a_batch_is_full_by_number_or_by_size() {
        let at = Timestamp::UNIX_EPOCH;
        let mut batcher = EventBatcher::new(Accumulator::new(None, 0));
        for _ in 0..BATCH_EVENTS {
            assert!(!batcher.is_full());
            batcher.event(event("acme.tick", json!({})), at);
        }
        assert!(batcher.is_full());
        let batch = batcher.take();
        assert!(!batcher.is_full());
        batcher.put_back(batch);
        assert!(batcher.is_full());
        batcher.take();
        batcher.event(event("acme.tick", json!("x".repeat(BATCH_BYTES))), at);
        assert!(batcher.is_full());
    }

    #[test]
    fn hints_are_bounded() {
        let mut batcher = batcher();
        let data = json!({"large": "x".repeat(HINT_BYTES), "small": 1});
        batcher.event(event("execution.completed", data), Timestamp::UNIX_EPOCH);
        assert_eq!(Value::Object(batcher.hints), json!({"small": 1}));
    }

    #[test]
    fn names_of_the_bridge_are_hints() {
        let mut batcher = batcher();
        for name in kind::OF_BRIDGE.iter().chain(kind::OF_RUNS) {
            batcher.event(event(name, json!({})), Timestamp::UNIX_EPOCH);
            assert!(batcher.is_empty(), "{name}");
        }
        batcher.event(
            event("execution.completed", json!({"turns": 3})),
            Timestamp::UNIX_EPOCH,
        );
        assert!(batcher.is_empty());
        assert_eq!(batcher.hints["turns"], 3);
    }

    #[test]
    fn data_that_is_no_object_becomes_one() {
        let mut batcher = batcher();
        batcher.event(event("acme.tick", json!(7)), Timestamp::UNIX_EPOCH);
        let batch = batcher.take();
        assert_eq!(
            batch.events[0].data.as_ref().unwrap().get(),
            r#"{"value":7}"#
        );
    }
}
