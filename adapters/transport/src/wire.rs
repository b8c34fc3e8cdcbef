//! The bridge's own JSON as written by a foreign program or server: events during the run, one result at
//! the end.

use forge_adapter_api::{AdapterEvent, ExecutionResult};
use serde::Deserialize as _;
use serde_json::Value;

/// A message of a runtime that uses the bridge's JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A message with a `type`.
    Event(AdapterEvent),
    /// A message with a `status`, `ok` or `error`, which ends the run.
    Result(Box<ExecutionResult>),
}

/// Failure to parse a message.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    #[error("neither an event with a `type` nor a result with a `status`")]
    Neither,
    #[error("not an event")]
    Event(#[source] serde_json::Error),
    #[error("not a result")]
    Result(#[source] serde_json::Error),
}

/// Parses a message as an event or a result. `{"type": "result", "result": {…}}` is a result too, for
/// streams whose messages all need a type.
pub fn message(value: &Value) -> Result<Message, Malformed> {
    if value["type"] == "result" && value["result"].is_object() {
        return result(&value["result"]).map(Message::Result);
    }
    if value["type"].is_string() {
        return AdapterEvent::deserialize(value)
            .map(Message::Event)
            .map_err(Malformed::Event);
    }
    if value["status"].is_string() {
        return result(value).map(Message::Result);
    }
    Err(Malformed::Neither)
}

/// Parses an answer that can only be a result.
pub fn result(value: &Value) -> Result<Box<ExecutionResult>, Malformed> {
    if !value["status"].is_string() {
        return Err(Malformed::Neither);
    }
    ExecutionResult::deserialize(value)
        .map(Box::new)
        .map_err(Malformed::Result)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_and_results_are_told_apart() {
        let event = AdapterEvent::text("a");
        let wanted = ExecutionResult::ok("x");
        let wanted = Message::Result(Box::new(wanted));
        for value in [
            json!({"status": "ok", "output": "x", "later": 1}),
            json!({"type": "result", "result": {"status": "ok", "output": "x"}}),
        ] {
            assert_eq!(message(&value).unwrap(), wanted);
        }
        assert_eq!(
            message(&json!({"type": "assistant.text", "data": {"delta": "a"}})).unwrap(),
            Message::Event(event)
        );
    }

    #[test]
    fn what_is_neither_is_malformed() {
        for value in [
            json!(1),
            json!({}),
            json!([]),
            json!({"status": "fine"}),
            json!({"status": "ok", "output": 7}),
        ] {
            assert!(message(&value).is_err(), "{value}");
        }
    }
}
