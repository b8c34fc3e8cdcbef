//! Readers that are private to this component, opened to `tests/fuzz`.

use super::{Answer, answer};

/// The result of a call as a server writes it; `None` when it is none.
pub fn answer(bytes: &[u8], limit: usize) -> Option<Answer> {
    let result = serde_json::from_slice(bytes).ok()?;
    Some(answer::of(result, limit))
}
