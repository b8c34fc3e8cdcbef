//! W3C trace context: the caller's trace is continued, or one is started.

use serde::{Deserialize, Serialize};

/// The W3C trace that the dispatch belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// What adapter and callback get: this trace, a span of our own.
    pub traceparent: String,
    /// The caller's span, when it named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
}

impl Trace {
    /// That of a dispatch whose trace does not matter.
    pub(super) fn none() -> Self {
        Self {
            trace_id: String::new(),
            traceparent: String::new(),
            parent_span_id: None,
        }
    }

    /// Continues the caller's trace; starts one where the header is absent or malformed, as W3C Trace
    /// Context wants it.
    pub fn from_header(header: Option<&str>) -> Self {
        let span = format!("{:016x}", rand::random::<u64>().max(1));
        match header.and_then(parse_traceparent) {
            Some((trace, parent, flags)) => Self {
                trace_id: trace.to_owned(),
                traceparent: format!("00-{trace}-{span}-{flags}"),
                parent_span_id: Some(parent.to_owned()),
            },
            None => {
                let trace_id = format!("{:032x}", rand::random::<u128>().max(1));
                let traceparent = format!("00-{trace_id}-{span}-01");
                Self {
                    trace_id,
                    traceparent,
                    parent_span_id: None,
                }
            }
        }
    }
}

/// Trace id, parent span id and flags of a `traceparent` header.
fn parse_traceparent(header: &str) -> Option<(&str, &str, &str)> {
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |text: &str| text.bytes().all(|b| b == b'0');
    let mut parts = header.trim().split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Version 00 has four parts; later ones may have more.
    let complete = version != "00" || parts.next().is_none();
    let valid = hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && !zero(trace)
        && hex(parent, 16)
        && !zero(parent)
        && hex(flags, 2)
        && complete;
    valid.then_some((trace, parent, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_continued_or_started() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let parent = "b7ad6b7169203331";
        let given = Trace::from_header(Some(&format!("00-{trace}-{parent}-00")));
        assert_eq!(given.trace_id, trace);
        assert_eq!(given.parent_span_id.as_deref(), Some(parent));
        assert!(given.traceparent.starts_with(&format!("00-{trace}-")));
        assert!(given.traceparent.ends_with("-00"));
        assert!(!given.traceparent.contains(parent));

        let later = format!("cc-{trace}-{parent}-01-what-comes");
        assert_eq!(Trace::from_header(Some(&later)).trace_id, trace);

        for malformed in [
            String::new(),
            "garbage".to_owned(),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{trace}-{parent}-01-extra"),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
        ] {
            let started = Trace::from_header(Some(&malformed));
            assert_ne!(started.trace_id, trace, "{malformed}");
            assert_eq!(started.parent_span_id, None);
        }
    }
}
