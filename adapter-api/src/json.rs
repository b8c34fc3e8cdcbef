//! Conversion of arguments and answers to the bytes that cross the boundary.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{AdapterError, Result};

/// Deserializes the arguments of an op; an empty payload counts as an empty object.
pub(crate) fn arguments<T: DeserializeOwned>(op: &str, payload: &[u8]) -> Result<T> {
    let payload = if payload.is_empty() { b"{}" } else { payload };
    serde_json::from_slice(payload)
        .map_err(|error| AdapterError::new("invalid_request", format!("{op}: {error}")))
}

pub(crate) fn answer<T: Serialize>(op: &str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| AdapterError::new("internal", format!("{op}: answer: {error}")))
}

/// The answer of an op without a result.
pub(crate) fn done() -> Vec<u8> {
    b"{}".to_vec()
}

pub(crate) fn unsupported(op: &str) -> AdapterError {
    AdapterError::new(
        "unsupported_op",
        format!("this adapter does not support {op:?}"),
    )
}
