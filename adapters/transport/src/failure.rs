//! Failures of HTTP calls and their mapping to adapter errors. Texts contain hosts, never complete URLs.

use std::time::Duration;

use forge_adapter_api::AdapterError;
use reqwest::StatusCode;

use crate::retry::{self, Refusal};

/// Reason for a missing or incomplete answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the TLS settings could not be built")]
    Tls(#[source] rustls::Error),
    #[error("the HTTP client could not be built")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Connect(Unreachable),
    #[error("{host} answered {}: {body}", named(*status))]
    Refused {
        host: String,
        status: StatusCode,
        /// Beginning of the body.
        body: String,
        retry_after: Option<Duration>,
        /// `x-should-retry` of the services of OpenAI and Anthropic.
        should_retry: Option<bool>,
    },
    #[error("no data was received within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Broken(Break),
    #[error(transparent)]
    TooLong(TooLong),
    #[error("the answer is not JSON")]
    NotJson(#[source] serde_json::Error),
}

/// The host could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("{host} could not be reached")]
pub struct Unreachable {
    pub host: String,
    #[source]
    pub source: reqwest::Error,
}

/// An answer, or one event of a stream, is above its limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    #[error("the answer is above the limit of {0} bytes")]
    Answer(usize),
    #[error("an event of the answer is above the limit of {0} bytes")]
    Event(usize),
}

/// Premature end of an answer.
#[derive(Debug, thiserror::Error)]
pub enum Break {
    #[error("the answer broke off")]
    Connection(#[source] reqwest::Error),
    #[error("the answer ended in the middle of an event")]
    InEvent,
}

impl From<Failure> for AdapterError {
    fn from(failure: Failure) -> Self {
        let passing = |reason| ("upstream_error", true, reason, None);
        let (code, retryable, reason, status) = match &failure {
            Failure::Refused {
                status,
                should_retry,
                ..
            } => {
                let refusal = Refusal::of(status.as_u16());
                let retryable = match refusal.reason {
                    "unauthenticated" => false,
                    _ => should_retry.unwrap_or(refusal.retryable),
                };
                (
                    refusal.code,
                    retryable,
                    refusal.reason,
                    Some(status.as_u16()),
                )
            }
            Failure::Connect(_) => passing("unreachable"),
            Failure::Silent(_) => passing("timeout"),
            Failure::Broken(_) => passing("broken"),
            Failure::TooLong(_) | Failure::NotJson(_) => {
                ("upstream_error", false, "malformed", None)
            }
            Failure::Tls(_) | Failure::Client(_) => ("internal", false, "internal", None),
        };
        let mut error = AdapterError::new(code, chain(&failure));
        error.retryable = retryable;
        error.details = Some(retry::details(reason, status));
        if let Failure::Refused {
            retry_after: Some(after),
            ..
        } = failure
        {
            error.retry_after_ms = u64::try_from(after.as_millis()).ok();
        }
        error
    }
}

/// The status with its name; 529 has none in the standard, but a meaning at several services.
pub fn named(status: StatusCode) -> String {
    match (status.as_u16(), status.canonical_reason()) {
        (529, _) => "529 Overloaded".to_owned(),
        (number, Some(reason)) => format!("{number} {reason}"),
        (number, None) => number.to_string(),
    }
}

/// Joins the message with those of its sources: an adapter's error crosses the boundary as one text.
fn chain(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut source = std::error::Error::source(failure);
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
