//! Trace span of a delivery attempt. Of the address it records only the host, of an answer only its status.

use jiff::Timestamp;

use forge_base::trace::{Kind, Span, Stage, TraceContext};

use super::send::Attempt;
use super::verdict::Outcome;

impl Attempt<'_> {
    /// Trace context of this attempt; deterministic, so each call returns the same span id.
    pub(super) fn context(&self, dispatch: TraceContext) -> TraceContext {
        let [_, _, _, _, _, _, _, _, low @ ..] = *self.due.id.as_bytes();
        dispatch.stage(Stage::Deliver(u64::from_be_bytes(low), self.number))
    }
}

/// Span of a completed attempt.
pub(super) fn span(
    attempt: &Attempt<'_>,
    dispatch: TraceContext,
    outcome: &Outcome,
    end: Timestamp,
) -> Span {
    let due = attempt.due;
    let (status, error) = match outcome {
        Outcome::Answered { status, .. } => {
            let error = (!(200..300).contains(status)).then(|| status.to_string());
            (Some(u64::from(*status)), error)
        }
        Outcome::Failed => (None, Some("no_answer".to_owned())),
    };
    let context = attempt.context(dispatch);
    Span::new(context, Some(dispatch.span), "deliver", attempt.at, end)
        .kind(Kind::Client)
        .text("http.request.method", "POST")
        .text("server.address", host(&due.callback.origin))
        .whole("http.response.status_code", status)
        .text("forge.dispatch.id", due.dispatch.to_string())
        .text("forge.delivery.id", due.id.to_string())
        .whole("forge.delivery.attempt", Some(attempt.number.into()))
        .failed(error.as_deref())
}

/// Host of an origin: `example.com` in `https://example.com:443`.
fn host(origin: &str) -> &str {
    let (_, rest) = origin.split_once("://").unwrap_or_default();
    rest.rsplit_once(':').map_or(rest, |(host, _)| host)
}
