//! Answers of an adapter: their size limit, and the errors that take the place of those that break a rule. Pure.

use forge_adapter_api::AdapterError;
use forge_adapter_api::foreign_json;

use crate::boundary::truncated_answer;

/// Default limit of an answer.
pub(crate) const DEFAULT_BYTES: usize = 32 * 1024 * 1024;
/// Longest error message of an adapter; longer ones are truncated.
const MESSAGE_BYTES: usize = 8 * 1024;

/// Outcome of a call: the answer as JSON, or the error.
pub(crate) type Answer = Result<Vec<u8>, AdapterError>;

/// Checks that an answer or error has at most `most` bytes, and parses the error.
pub(crate) fn check(said: Result<Vec<u8>, Vec<u8>>, most: usize) -> Answer {
    let (Ok(bytes) | Err(bytes)) = &said;
    if bytes.len() > most {
        return Err(too_large(&bytes[..most], bytes.len(), most));
    }
    said.map_err(|bytes| read_error(&bytes))
}

/// The error for an answer of `found` bytes that begins with `head`, where `most` are accepted.
pub(crate) fn too_large(head: &[u8], found: usize, most: usize) -> AdapterError {
    AdapterError {
        details: Some(truncated_answer::details(head, found)),
        ..AdapterError::new(
            "output_too_large",
            format!("the answer has {found} bytes, at most {most} are accepted"),
        )
    }
}

/// Parses an adapter's error; an unreadable one is a `protocol_violation`.
pub(crate) fn read_error(bytes: &[u8]) -> AdapterError {
    let Ok(mut error) = foreign_json::from_slice::<AdapterError>(bytes) else {
        return breach("an error answer that is not {\"code\", \"message\"} as JSON");
    };
    if error.code.is_empty() || error.code.len() > 256 {
        return breach("an error answer whose code is empty or too long");
    }
    if error.message.len() > MESSAGE_BYTES {
        let end = error.message.floor_char_boundary(MESSAGE_BYTES);
        error.message.truncate(end);
    }
    error
}

/// The error for a breach of the contract by the adapter.
pub(crate) fn breach(message: &str) -> AdapterError {
    AdapterError::new("protocol_violation", message)
}
