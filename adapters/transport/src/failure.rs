//! Failures of HTTP calls and their mapping to adapter errors. Texts contain hosts, never complete URLs.

use std::time::Duration;

use forge_adapter_api::AdapterError;
use reqwest::StatusCode;

/// Reason for a missing or incomplete answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the TLS settings could not be built")]
    Tls(#[source] rustls::Error),
    #[error("the HTTP client could not be built")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Connect(Unreachable),
    #[error("{host} answered {status}: {body}")]
    Refused {
        host: String,
        status: StatusCode,
        /// Beginning of the body.
        body: String,
        retry_after: Option<Duration>,
    },
    #[error("no data was received within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Broken(Break),
    #[error("the answer is above the limit of {0} bytes")]
    TooLong(usize),
    #[error("the answer is not UTF-8")]
    NotUtf8,
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
        let (code, retryable) = match &failure {
            Failure::Refused { status, .. } => match status.as_u16() {
                401 | 403 => ("unauthenticated", false),
                429 => ("rate_limited", true),
                408 => ("upstream_error", true),
                400..=499 => ("invalid_request", false),
                _ => ("upstream_error", true),
            },
            Failure::Connect(_) | Failure::Silent(_) | Failure::Broken(_) => {
                ("upstream_error", true)
            }
            Failure::TooLong(_) | Failure::NotUtf8 | Failure::NotJson(_) => {
                ("upstream_error", false)
            }
            Failure::Tls(_) | Failure::Client(_) => ("internal", false),
        };
        let mut error = AdapterError::new(code, chain(&failure));
        error.retryable = retryable;
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
