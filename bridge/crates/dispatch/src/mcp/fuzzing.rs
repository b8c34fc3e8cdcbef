//! Private parsers of this component, exposed to `tests/fuzz`.

use super::{Answer, answer};

/// Parses a server's call result; `None` if malformed.
pub fn answer(bytes: &[u8], limit: usize) -> Option<Answer> {
    let result = serde_json::from_slice(bytes).ok()?;
    Some(answer::of(result, limit))
}
