//! Events that an adapter emits during an execution.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Usage;

/// An event. The bridge adds ids, timestamps and sequence numbers. Names of events that only the bridge writes, and all
/// that begin as they do (`execution.`, `run.`, `refinery.` …), are its own: such events of an adapter are only hints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdapterEvent {
    /// The type, such as `assistant.text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Data; its members depend on the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// RFC 3339; default: the time at which the bridge receives the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

impl AdapterEvent {
    /// An event without data.
    pub fn new(kind: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            data: None,
            timestamp: None,
        }
    }

    /// `assistant.text`: one piece of the answer.
    pub fn text(delta: impl Into<String>) -> Self {
        Self::new("assistant.text").with(serde_json::json!({ "delta": delta.into() }))
    }

    /// `assistant.retracted`: the text of this attempt does not count, because a later one that was asked to continue
    /// it begins again.
    pub fn attempt_retracted(attempt: u32) -> Self {
        Self::new("assistant.retracted").with(serde_json::json!({ "attempt": attempt }))
    }

    /// `usage`: totals so far, not the difference to the previous event.
    pub fn usage(usage: &Usage, cost_usd: Option<f64>) -> Self {
        let mut data = serde_json::json!(usage);
        if let (Some(members), Some(cost)) = (data.as_object_mut(), cost_usd) {
            members.insert("costUsd".to_owned(), cost.into());
        }
        Self::new("usage").with(data)
    }

    /// Sets the data.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}
