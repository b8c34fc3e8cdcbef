//! Deliveries, their attempts and their replay.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use forge_base::event::NewEvent;
use forge_base::id::{DeliveryId, DispatchId};

use super::Callback;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub dispatch: DispatchId,
    pub callback: Callback,
    /// Attempts made so far.
    pub attempts: u32,
    /// Start of the present series of attempts: first due, or replayed.
    pub since: Timestamp,
}

#[derive(Debug)]
pub struct DeliveryPayload {
    /// Result including `events`.
    pub body: Vec<u8>,
    pub trace_id: String,
    /// Dispatch as it was accepted: contains the callback's headers and retry policy.
    pub request: Box<RawValue>,
    pub secrets: Option<Vec<u8>>,
}

/// Outcome of a due delivery. The store numbers the attempts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Settlement {
    /// Time of the outcome; `settled_at` of a delivery that ends with it.
    pub at: Timestamp,
    /// Attempt that was made; `None` if the delivery ends without another one.
    pub attempt: Option<DeliveryAttempt>,
    pub next: AfterAttempt,
    /// `callback.attempted` and, at the end, `callback.delivered` or `callback.dead`.
    pub events: Vec<NewEvent>,
    pub retention: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterAttempt {
    Delivered,
    Retry { due: Timestamp },
    Dead,
}

/// One delivery attempt as shown to operators. The store keeps the first 5 and the last 20.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryAttempt {
    /// Counted from 1.
    pub number: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub at: Timestamp,
    pub duration_ms: u64,
    /// HTTP status of the answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Error, if there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// First 20 kB of the answer's body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// Deliveries to send again.
#[derive(Clone, Debug)]
pub enum Replay {
    /// One delivery, in any state.
    One(DeliveryId),
    Many {
        /// `host` or `host:port`.
        host: Option<String>,
        since: Option<Timestamp>,
        status: DeliveryState,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Pending,
    Delivered,
    Dead,
    Superseded,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryRecord {
    pub id: DeliveryId,
    pub dispatch_id: DispatchId,
    pub task_id: String,
    pub url: String,
    pub status: DeliveryState,
    pub attempt_count: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub created_at: Timestamp,
    /// Time of the next attempt, while pending.
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub due_at: Option<Timestamp>,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub settled_at: Option<Timestamp>,
    pub attempts: Vec<DeliveryAttempt>,
}
