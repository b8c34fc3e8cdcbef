//! Trace of a run: its dispatches are children of one span, which ends with the run.

use forge_base::id::RunId;
use forge_base::trace::{Kind, Span, Spans, TraceContext};

use crate::event::End;
use crate::state::{Ended, State};

/// Span of the run. The same after each start, since nothing but the trace id is stored.
const OWN_SPAN: u64 = 1;

/// Position of a run in its trace, with the decision of `spans` whether to record it. `None` if the trace id is malformed.
pub(crate) fn context(trace_id: &str, spans: &Spans) -> Option<TraceContext> {
    let own = TraceContext::parse(&format!("00-{trace_id}-{OWN_SPAN:016x}-01"))?;
    Some(spans.unsampled(|| Some(own)).unwrap_or(own))
}

/// Emits the span of a run that has ended.
pub(crate) fn ended(
    spans: &Spans,
    context: Option<TraceContext>,
    run: RunId,
    (state, end): (&State, &Ended),
) {
    let Some(own) = spans.wanted(|| context) else {
        return;
    };
    let error = match end.status {
        End::Completed => None,
        End::Failed => Some("failed"),
        End::Cancelled => Some("cancelled"),
    };
    let span = Span::new(own, None, "run", state.created_at, end.at)
        .kind(Kind::Server)
        .text("forge.run.id", run.to_string())
        .whole("forge.tasks", Some(state.tasks.len() as u64))
        .real("forge.cost.usd", Some(state.cost_usd()))
        .failed(error);
    spans.put(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_sampled_like_a_dispatch_whose_trace_begins_here() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let (nothing, _waiting) = Spans::bounded(1000, 0.0);
        let (all, _waiting) = Spans::bounded(1000, 1.0);
        for (spans, flags) in [(nothing, "00"), (all, "01"), (Spans::default(), "01")] {
            let own = context(trace, &spans).map(|own| own.to_string());
            let expected = format!("00-{trace}-0000000000000001-{flags}");
            assert_eq!(own, Some(expected));
        }
        assert_eq!(context("", &Spans::default()), None);
    }
}
