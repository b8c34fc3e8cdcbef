//! Accumulates text, usage and session id from an attempt's events; becomes the result if the adapter never
//! returns one.

use std::collections::VecDeque;

use forge_adapter_api::{AdapterEvent, ExecutionResult};
use serde_json::Value;
use serde_json::value::RawValue;

use forge_base::event::kind;

use super::budget::UsageTotals;

/// Maximum bytes of a session id; longer ones are ignored.
const SESSION_BYTES: usize = 1024;

/// Number of messages that can be retracted; and maximum bytes of a message id.
const MOST_MESSAGES: usize = 16;
const MESSAGE_BYTES: usize = 256;

/// Text, usage and session of one attempt, bounded.
#[derive(Clone, Debug)]
pub struct Accumulator {
    /// The text so far, cut at `text_limit` bytes.
    pub text: String,
    /// Bytes of text received, including those beyond the limit.
    pub text_bytes: usize,
    pub meter: UsageTotals,
    /// The runtime's session id, once reported.
    pub session: Option<String>,
    /// Last refusal of a model, until output follows it: `{reason, status?, error}` of the adapter's event.
    pub refusal: Option<Value>,
    text_limit: usize,
    /// Start of each of the latest messages, as bytes of `text` and of all text; the newest last.
    messages: VecDeque<(String, usize, usize)>,
}

/// Change made by an event that must be recorded or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// `meter` has changed: check the budget.
    Usage,
    /// `session` has changed.
    Session,
}

impl Accumulator {
    /// Starts empty before an attempt; `spent` is the usage of earlier ones.
    pub fn new(spent: Option<&RawValue>, text_limit: usize) -> Self {
        Self {
            text: String::new(),
            text_bytes: 0,
            meter: UsageTotals::after(spent),
            session: None,
            refusal: None,
            text_limit,
            messages: VecDeque::new(),
        }
    }

    /// Adds one event of the adapter.
    pub fn observe(&mut self, event: &AdapterEvent) -> Change {
        let Some(data) = &event.data else {
            return Change::Nothing;
        };
        match event.kind.as_str() {
            kind::TEXT => {
                self.refusal = None;
                if let Some(delta) = data.get("delta").and_then(Value::as_str) {
                    self.begin_message(message_of(data));
                    self.append(delta);
                }
                Change::Nothing
            }
            kind::RETRACTED => {
                self.retract(message_of(data));
                Change::Nothing
            }
            kind::USAGE => {
                self.meter.observe(data);
                Change::Usage
            }
            kind::SESSION_UPDATED => self.take_session(data),
            kind::THINKING | kind::TOOL_INVOKED => {
                self.refusal = None;
                Change::Nothing
            }
            kind::MODEL_RETRYING => {
                self.refusal = Some(refusal_in(data));
                Change::Nothing
            }
            kind::MODEL_FALLBACK => {
                self.refusal = Some(refusal_in(data));
                self.meter.turn(data);
                Change::Usage
            }
            _ => Change::Nothing,
        }
    }

    /// Adds the result of a round that another round follows.
    pub fn conclude(&mut self, result: &ExecutionResult) {
        self.meter.conclude(result);
        if let Some(id) = usable(result.session_id.as_deref()) {
            self.session = Some(id.to_owned());
        }
        if self.text.is_empty() {
            self.append(result.output.as_deref().unwrap_or_default());
        }
    }

    /// Begins another round: clears the text and adds further usage to the total.
    pub fn begin_round(&mut self) {
        self.meter.begin_round();
        self.text.clear();
        self.text_bytes = 0;
        self.messages.clear();
    }

    fn begin_message(&mut self, id: Option<&str>) {
        let newest = self.messages.back();
        let Some(id) = id.filter(|id| newest.is_none_or(|(newest, ..)| newest != id)) else {
            return;
        };
        if self.messages.len() == MOST_MESSAGES {
            self.messages.pop_front();
        }
        let start = (id.to_owned(), self.text.len(), self.text_bytes);
        self.messages.push_back(start);
    }

    /// Removes the text of a message, and what came after it.
    fn retract(&mut self, id: Option<&str>) {
        let found = self
            .messages
            .iter()
            .rposition(|(known, ..)| Some(known.as_str()) == id);
        if let Some((_, text, bytes)) = found.and_then(|at| self.messages.drain(at..).next()) {
            self.text.truncate(text);
            self.text_bytes = bytes;
        }
    }

    fn append(&mut self, delta: &str) {
        self.text_bytes = self.text_bytes.saturating_add(delta.len());
        let room = self.text_limit - self.text.len();
        self.text
            .push_str(&delta[..delta.floor_char_boundary(room)]);
    }

    fn take_session(&mut self, data: &Value) -> Change {
        match usable(data.get("sessionId").and_then(Value::as_str)) {
            Some(id) if self.session.as_deref() != Some(id) => {
                self.session = Some(id.to_owned());
                Change::Session
            }
            Some(_) | None => Change::Nothing,
        }
    }
}

fn message_of(data: &Value) -> Option<&str> {
    let id = data.get("messageId").and_then(Value::as_str);
    id.filter(|id| id.len() <= MESSAGE_BYTES)
}

fn refusal_in(data: &Value) -> Value {
    let members = ["reason", "status", "error"].into_iter();
    let members = members.filter_map(|name| Some((name.to_owned(), data.get(name)?.clone())));
    Value::Object(members.collect())
}

fn usable(session: Option<&str>) -> Option<&str> {
    session.filter(|id| (1..=SESSION_BYTES).contains(&id.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: Value) -> AdapterEvent {
        AdapterEvent {
            kind: kind.to_owned(),
            data: Some(data),
            timestamp: None,
        }
    }

    #[test]
    fn text_usage_and_session_are_kept() {
        let mut accumulator = Accumulator::new(None, 100);
        let session = json!({"sessionId": "s"});
        for (kind, data, noticed) in [
            ("assistant.text", json!({"delta": "Hel"}), Change::Nothing),
            (
                "assistant.thinking",
                json!({"delta": "hm"}),
                Change::Nothing,
            ),
            ("assistant.text", json!({"delta": "lo"}), Change::Nothing),
            ("assistant.text", json!("garbage"), Change::Nothing),
            ("usage", json!({"outputTokens": 3}), Change::Usage),
            ("session.updated", session.clone(), Change::Session),
            ("session.updated", session, Change::Nothing),
            ("session.updated", json!({"sessionId": ""}), Change::Nothing),
            (
                "session.updated",
                json!({"sessionId": "x".repeat(1025)}),
                Change::Nothing,
            ),
        ] {
            assert_eq!(accumulator.observe(&event(kind, data)), noticed, "{kind}");
        }
        assert_eq!(accumulator.text, "Hello");
        assert_eq!(accumulator.session.as_deref(), Some("s"));
        assert_eq!(accumulator.meter.spent().usage.output_tokens, Some(3));
    }

    #[test]
    fn text_is_bounded_at_a_character() {
        let mut accumulator = Accumulator::new(None, 5);
        for _ in 0..4 {
            accumulator.observe(&event("assistant.text", json!({"delta": "üü"})));
        }
        assert_eq!(
            (accumulator.text.as_str(), accumulator.text_bytes),
            ("üü", 16)
        );
    }

    #[test]
    fn rounds_add_up_and_each_has_its_own_text() {
        let mut accumulator = Accumulator::new(None, 100);
        for text in ["one", "two"] {
            accumulator.begin_round();
            accumulator.observe(&event("usage", json!({"outputTokens": 2})));
            accumulator.conclude(&ExecutionResult {
                usage: forge_adapter_api::Usage {
                    output_tokens: Some(3),
                    ..Default::default()
                },
                session_id: Some("s".to_owned()),
                ..ExecutionResult::ok(text)
            });
        }
        assert_eq!(accumulator.meter.spent().usage.output_tokens, Some(6));
        assert_eq!(accumulator.text, "two");
        assert_eq!(accumulator.session.as_deref(), Some("s"));
    }

    #[test]
    fn a_retracted_message_is_no_text() {
        let mut accumulator = Accumulator::new(None, 4);
        for (kind, data) in [
            ("assistant.text", json!({"delta": "a", "messageId": "1"})),
            ("assistant.text", json!({"delta": "b"})),
            ("assistant.text", json!({"delta": "cdef", "messageId": "2"})),
            ("assistant.retracted", json!({"messageId": "3"})),
            ("assistant.retracted", json!({})),
            ("assistant.retracted", json!({"messageId": "2"})),
            ("assistant.text", json!({"delta": "g", "messageId": "3"})),
        ] {
            accumulator.observe(&event(kind, data));
        }
        assert_eq!(
            (accumulator.text.as_str(), accumulator.text_bytes),
            ("abg", 3)
        );
    }
}
