//! JSON that others wrote: read if it has JSON's grammar, as `JSON.parse` of Node decides, and with the same value where
//! it needs no repair.

use forge_adapter_api::foreign_json;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Depth that `serde_json` refuses.
const TOO_DEEP: usize = 128;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = foreign_json::from_slice::<Value>(data).ok();
    // A value that is not wanted is read by the grammar alone.
    let has_grammar = serde_json::from_str::<IgnoredAny>(&text).is_ok();
    let opened = text.bytes().filter(|byte| matches!(byte, b'[' | b'{'));
    if opened.count() < TOO_DEEP {
        assert_eq!(found.is_some(), has_grammar, "{text}");
    }
    if let Ok(strict) = serde_json::from_str::<Value>(&text) {
        assert_eq!(found.as_ref(), Some(&strict), "{text}");
    }
    let readable = foreign_json::readable(&text);
    assert_eq!(readable.len(), text.len());
    assert_eq!(foreign_json::readable(&readable), readable);
    if let Some(found) = found {
        assert!(foreign_json::count(&found).is_none_or(|count| count < 1 << 53));
        assert!(
            foreign_json::amount(&found).is_none_or(|amount| amount.is_finite() && amount >= 0.0)
        );
    }
}
