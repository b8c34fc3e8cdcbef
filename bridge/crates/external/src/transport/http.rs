//! Services over HTTP: one POST with the envelope, or one GET with the arguments in the query. Follows no redirect.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Method as HttpMethod;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use tokio::time::Instant;
use url::Url;

use forge_base::trace::TraceId;
use forge_net::{Answer, BodyEnd, Client, Outgoing, SendError, backoff};

use super::{End, envelope, too_long};
use crate::answer::{BAD_RESPONSE, FAILED, Status};
use crate::call::{Call, INPUT_INVALID};
use crate::manifest::{Entry, Method};

/// Maximum length of a URL with arguments.
const URL_BYTES: usize = 8 * 1024;

/// Call that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Message {
    method: HttpMethod,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
}

impl Message {
    /// `Err` with a diagnostic code and the reason.
    pub(crate) fn new(
        base: &Url,
        entry: &Entry,
        call: &Call<'_>,
    ) -> Result<Self, (&'static str, String)> {
        let url = entry.url(base);
        let mut url = url.map_err(|error| (FAILED, format!("the URL is not valid: {error}")))?;
        let (method, body) = match entry.method {
            Some(Method::Get) => {
                let args = call.args.to_string();
                url.query_pairs_mut().append_pair("args", &args);
                (HttpMethod::GET, Bytes::new())
            }
            Some(Method::Post) | None => (HttpMethod::POST, envelope(call)),
        };
        if method == HttpMethod::GET && url.as_str().len() > URL_BYTES {
            let reason = format!(
                "the arguments do not fit into a URL of {URL_BYTES} bytes; declare the entry with the method POST"
            );
            return Err((INPUT_INVALID, reason));
        }
        Ok(Self {
            method,
            url,
            headers: headers(call),
            body,
        })
    }

    pub(crate) async fn send(
        &self,
        client: &Client,
        deadline: Instant,
        answer_bytes: usize,
    ) -> End {
        let sent = client.send(Outgoing {
            method: self.method.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            body: self.body.clone(),
            timeout: deadline.saturating_duration_since(Instant::now()),
            answer_bytes,
        });
        match sent.await {
            Ok(answer) => received(answer, answer_bytes),
            Err(error) => failed(&error),
        }
    }
}

/// Headers of the protocol, and no other of the caller's. A value that is not visible ASCII is in the body alone.
pub(super) fn headers(call: &Call<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut insert = |name: &'static str, value: &str| {
        let visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if let (true, Ok(value)) = (visible, HeaderValue::from_str(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    insert("x-forge-external-service", call.service);
    insert("x-forge-external-entry", call.entry);
    insert("x-forge-external-kind", call.kind.as_str());
    insert("x-forge-trace-id", &TraceId(call.trace.trace).to_string());
    insert("traceparent", &call.trace.to_string());
    if let Some(key) = &call.idempotency_key {
        insert("idempotency-key", key);
    }
    for (name, value) in call.caller.headers() {
        insert(name, &value);
    }
    if let Some(value) = &call.authorization {
        let mut value = value.clone();
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

fn received(answer: Answer, limit: usize) -> End {
    let status = answer.status;
    match answer.end {
        _ if (300..400).contains(&status) => {
            let reason =
                format!("external runtime returned HTTP {status}; redirects are not followed");
            End::Broken(FAILED, reason)
        }
        BodyEnd::Complete => End::Answered {
            status: Status::Http(status),
            retry_after: retry_after(&answer.headers),
            body: answer.body,
            said: String::new(),
        },
        BodyEnd::TooLong => End::Broken(BAD_RESPONSE, too_long(limit)),
        BodyEnd::Broken => {
            let reason = "the answer was cut: the connection broke before its end";
            End::Broken(BAD_RESPONSE, reason.to_owned())
        }
        BodyEnd::TimedOut => End::TimedOut,
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    backoff::retry_after(value, Timestamp::now())
}

pub(super) fn failed(error: &SendError) -> End {
    match error {
        SendError::Refused(_) => End::Refused(FAILED, error.to_string()),
        SendError::Resolve(_) | SendError::Connect(_) => End::NotConnected(error.to_string()),
        SendError::Timeout(_) => End::TimedOut,
        SendError::Tls(_) | SendError::Closed(_) | SendError::Protocol(_) => {
            End::Broken(FAILED, error.to_string())
        }
    }
}
