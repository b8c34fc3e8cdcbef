//! Entry points for `tests/fuzz` to the private readers of this crate.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::http::ServerEvents;
use crate::json_rpc::{Incoming, incoming};
use crate::server_events::Framing;

/// The events of an answer that arrives in these pieces.
pub fn events(pieces: Vec<Bytes>, event_bytes: usize) -> ServerEvents {
    framed(pieces, Framing::Events, event_bytes)
}

/// The lines of an answer that arrives in these pieces.
pub fn lines(pieces: Vec<Bytes>, line_bytes: usize) -> ServerEvents {
    framed(pieces, Framing::Lines, line_bytes)
}

fn framed(pieces: Vec<Bytes>, framing: Framing, event_bytes: usize) -> ServerEvents {
    let pieces = stream::iter(pieces.into_iter().map(Ok));
    ServerEvents::new(pieces, framing, event_bytes, Duration::from_secs(60))
}

pub fn message(message: Value) -> Option<Incoming> {
    incoming(message)
}

pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    crate::http::retry_after(headers, now)
}
