//! W3C trace context: the caller's trace is continued, or one is started.

use serde::{Deserialize, Serialize};

use forge_base::trace::{self, Spans, Stage, TraceContext};

/// W3C trace context of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// Trace id and span id of the dispatch; the span ids of its stages are derived from it.
    pub traceparent: String,
    /// Span id of the caller, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
}

impl Trace {
    /// Empty trace context: no spans are emitted.
    pub(super) fn none() -> Self {
        Self {
            trace_id: String::new(),
            traceparent: String::new(),
            parent_span_id: None,
        }
    }

    /// Continues the caller's trace; starts a new one if the header is absent or malformed, as W3C Trace Context
    /// requires.
    pub fn from_header(header: Option<&str>) -> Self {
        let caller = header.and_then(TraceContext::parse);
        let ours = match caller {
            Some(caller) => caller.with_span(trace::random_id()),
            None => TraceContext::start(),
        };
        Self {
            trace_id: format!("{:032x}", ours.trace),
            traceparent: ours.to_string(),
            parent_span_id: caller.map(|caller| format!("{:016x}", caller.span)),
        }
    }

    /// Applies the sampling decision of `spans` to a trace that begins here; keeps the caller's decision otherwise.
    #[must_use]
    pub fn sampled(self, spans: &Spans) -> Self {
        if self.parent_span_id.is_some() {
            return self;
        }
        match spans.unsampled(|| self.context()) {
            Some(unsampled) => Self {
                traceparent: unsampled.to_string(),
                ..self
            },
            None => self,
        }
    }

    /// Context of the dispatch's own span; `None` if it is not traced.
    pub fn context(&self) -> Option<TraceContext> {
        TraceContext::parse(&self.traceparent)
    }

    /// Span id of the caller, if it sent one.
    pub fn parent(&self) -> Option<u64> {
        let id = self.parent_span_id.as_deref()?;
        u64::from_str_radix(id, 16).ok()
    }

    /// `traceparent` for the adapter, with the span of this attempt.
    pub fn of_attempt(&self, number: u32) -> String {
        match self.context() {
            Some(context) => context.stage(Stage::Execute(number)).to_string(),
            None => self.traceparent.clone(),
        }
    }
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

        let (nothing, _waiting) = Spans::bounded(1000, 0.0);
        let wanted = Trace::from_header(Some(&format!("00-{trace}-{parent}-01")));
        assert_eq!(wanted.clone().sampled(&nothing), wanted);
        let own = Trace::from_header(None);
        assert!(own.traceparent.ends_with("-01"));
        assert!(own.sampled(&nothing).traceparent.ends_with("-00"));

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
