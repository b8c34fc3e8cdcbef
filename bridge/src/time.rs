//! One spelling of time on the wire and in the store: RFC 3339, UTC, milliseconds, `Z`.

use jiff::Timestamp;
use serde::Serializer;

/// `2026-11-21T02:41:12.123Z`
pub fn format(timestamp: Timestamp) -> String {
    format!("{timestamp:.3}")
}

/// For `#[serde(serialize_with)]`.
pub fn millis<S: Serializer>(timestamp: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{timestamp:.3}"))
}

/// For `#[serde(serialize_with)]` on an optional time.
pub fn millis_option<S: Serializer>(
    timestamp: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match timestamp {
        Some(timestamp) => millis(timestamp, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn milliseconds_are_always_written() {
        let at = "2026-11-21T02:41:12Z".parse().unwrap();
        assert_eq!(super::format(at), "2026-11-21T02:41:12.000Z");
    }
}
