//! What an adapter tells while it works.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Usage;

/// One event. The bridge adds ids, times and the numbers; names under `execution.`, `callback.` and
/// `adapter.health` belong to the bridge and are taken as hints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdapterEvent {
    /// The type, such as `assistant.text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the type says it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// RFC 3339; when absent, the moment the bridge receives it.
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

    /// `assistant.text`: a piece of the answer.
    pub fn text(delta: impl Into<String>) -> Self {
        Self::new("assistant.text").with(serde_json::json!({ "delta": delta.into() }))
    }

    /// `usage`: totals so far, not what came since the last one.
    pub fn usage(usage: &Usage, cost_usd: Option<f64>) -> Self {
        let mut data = serde_json::json!(usage);
        if let (Some(members), Some(cost)) = (data.as_object_mut(), cost_usd) {
            members.insert("costUsd".to_owned(), cost.into());
        }
        Self::new("usage").with(data)
    }

    /// The same event with this data.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}
