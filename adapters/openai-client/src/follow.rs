//! Events of an answer's stream, up to the end of the answer.

use std::time::Duration;

use forge_adapter_api::AdapterError;
use forge_adapter_transport::http::{Failure, ServerEvent, ServerEvents};
use forge_adapter_transport::retry::details;
use tokio::time::{Instant, timeout_at};

use crate::completion::Completion;

/// Time for what can follow the end of an answer: its usage and the end of the stream.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The stream of one answer.
pub struct Follow {
    stream: ServerEvents,
    /// End of [`AFTERWARDS`].
    until: Option<Instant>,
}

impl Follow {
    pub fn new(stream: ServerEvents) -> Self {
        Self {
            stream,
            until: None,
        }
    }

    /// The next event; `None` after the end of the answer. A stream that ends before the answer in `heard` has a reason
    /// to end is an error.
    pub async fn next(
        &mut self,
        heard: &Completion,
        failed: impl Fn(Failure) -> AdapterError,
    ) -> Result<Option<ServerEvent>, AdapterError> {
        if heard.finish.is_none() {
            return match self.stream.next().await {
                Some(Ok(event)) if is_done(&event) => Err(ended_early()),
                Some(Ok(event)) => Ok(Some(event)),
                Some(Err(failure)) => Err(failed(failure)),
                None => Err(ended_early()),
            };
        }
        let until = *self
            .until
            .get_or_insert_with(|| Instant::now() + AFTERWARDS);
        match timeout_at(until, self.stream.next()).await {
            Ok(Some(Ok(event))) if !is_done(&event) => Ok(Some(event)),
            Ok(Some(Ok(_)) | None) => Ok(None),
            Ok(Some(Err(failure))) => {
                tracing::warn!(error = %failure, "the stream broke after the end of the answer");
                Ok(None)
            }
            Err(_) => {
                tracing::warn!("the stream did not end within {AFTERWARDS:?} after the answer");
                Ok(None)
            }
        }
    }
}

fn is_done(event: &ServerEvent) -> bool {
    event.data.trim() == "[DONE]"
}

/// The error of a stream that ended without the end of the answer.
pub fn ended_early() -> AdapterError {
    let text = "the stream ended before the answer did";
    AdapterError {
        details: Some(details("broken", None)),
        ..AdapterError::new("upstream_error", text).retryable()
    }
}
