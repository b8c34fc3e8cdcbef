//! What an adapter tells while it works.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One event. The bridge adds ids, times and the numbers; names under `execution.`, `callback.` and
/// `adapter.health` belong to the bridge and are taken as hints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdapterEvent {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// RFC 3339; when absent, the moment the bridge receives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}
