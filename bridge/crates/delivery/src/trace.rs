//! An attempt as its trace has it: of the address only the host, of an answer only its status.

use jiff::Timestamp;

use forge_base::trace::{Kind, Span, Stage, TraceContext};

use super::send::Attempt;
use super::verdict::Outcome;

impl Attempt<'_> {
    /// This attempt's own place in the trace, the same as often as it is asked for.
    pub(super) fn context(&self, dispatch: TraceContext) -> TraceContext {
        let [_, _, _, _, _, _, _, _, low @ ..] = *self.due.id.as_bytes();
        dispatch.stage(Stage::Deliver(u64::from_be_bytes(low), self.number))
    }
}

/// The span of an attempt that was made.
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

/// `example.com` of `https://example.com:443`.
fn host(origin: &str) -> &str {
    let (_, rest) = origin.split_once("://").unwrap_or_default();
    rest.rsplit_once(':').map_or(rest, |(host, _)| host)
}
