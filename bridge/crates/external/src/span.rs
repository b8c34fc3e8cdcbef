//! End of a call as a metric and as a trace span. A span has the names of the entry and the outcome, never an argument,
//! a result or the text of an error.

use jiff::Timestamp;

use forge_base::trace::{Kind, Span, TraceContext, random_id};

use crate::call::Outcome;
use crate::manifest::EntryKind;
use crate::services::External;

/// Longest name of an entry in the name of a span, in bytes.
const NAME_BYTES: usize = 100;

/// Call of a known entry; recorded when it is dropped.
pub(crate) struct CallRecord<'a> {
    pub(crate) external: &'a External,
    pub(crate) service: &'a str,
    pub(crate) entry: &'a str,
    pub(crate) kind: EntryKind,
    pub(crate) trace: TraceContext,
    pub(crate) parent: Option<u64>,
    pub(crate) begun: Timestamp,
    /// `None` until the call ends, and if its caller left before.
    pub(crate) outcome: Option<Outcome>,
}

impl External {
    /// Context of the span of a call. It continues the trace of the caller; without one, `begun` is the start of a
    /// trace, and the settings decide if it is recorded.
    pub fn span_of_call(&self, caller: Option<TraceContext>, begun: TraceContext) -> TraceContext {
        match caller {
            Some(caller) => caller.with_span(random_id()),
            None => self.spans().unsampled(|| Some(begun)).unwrap_or(begun),
        }
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            self.external
                .meters()
                .called(self.service, self.kind, outcome);
        }
        let spans = self.external.spans();
        let Some(context) = spans.wanted(|| Some(self.trace)) else {
            return;
        };
        let outcome = self.outcome.map_or("cancelled", Outcome::as_str);
        let mut name = format!("call {}.{}", self.service, self.entry);
        name.truncate(name.floor_char_boundary(NAME_BYTES));
        let span = Span::new(context, self.parent, name, self.begun, Timestamp::now())
            .kind(Kind::Client)
            .text("forge.service", self.service)
            .text("forge.entry", self.entry)
            .text("forge.entry.kind", self.kind.as_str())
            .text("forge.outcome", outcome)
            .failed(Some(outcome).filter(|_| self.outcome != Some(Outcome::Done)));
        spans.put(span);
    }
}
