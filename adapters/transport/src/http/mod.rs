//! HTTP client for JSON and server-sent events, for endpoints configured by the operator. Everything is
//! bounded: time to connect, size of an answer and of an event, and silence between pieces.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forge_adapter_api::foreign_json;
use forge_adapter_api::host;
use futures_util::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::Value;
use tokio::time::timeout;
use url::form_urlencoded;

pub use crate::failure::{Break, Failure, TooLong, Unreachable, named};
use crate::server_events::Framing;
pub use crate::server_events::{ServerEvent, ServerEvents};

/// Number of bytes of an error response's body that go into the error text.
const REFUSAL_BYTES: usize = 2_000;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connect: Duration,
    /// Longest wait between the request and the head of the answer, and between two pieces of it.
    pub silence: Duration,
    /// Time limit of the whole exchange; `None` where the caller enforces its own.
    pub total: Option<Duration>,
    /// Size limit of a JSON answer.
    pub body_bytes: usize,
    /// Size limit of one server-sent event.
    pub event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(120),
            total: None,
            body_bytes: 16 << 20,
            event_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// Limits that follow those of the bridge: an answer, and one event of a stream, can be as large as a result
    /// (`plugin.payload_bytes`), because the last event of a stream often repeats the whole output.
    pub fn within(bridge: host::Limits) -> Self {
        Self {
            body_bytes: bridge.payload_bytes,
            event_bytes: bridge.payload_bytes,
            ..Self::default()
        }
    }
}

/// An HTTP client; cheap to clone.
#[derive(Clone, Debug)]
pub struct Http {
    client: reqwest::Client,
    limits: Limits,
}

impl Http {
    /// Builds a client that trusts the system's root certificates. It uses neither proxies of the
    /// environment nor redirects: both would send credentials to hosts that the operator did not configure.
    pub fn new(limits: Limits) -> Result<Self, Failure> {
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(rustls::ConfigBuilder::with_platform_verifier)
            .map_err(Failure::Tls)?
            .with_no_client_auth();
        let mut client = reqwest::Client::builder();
        if let Some(total) = limits.total {
            client = client.timeout(total);
        }
        let client = client
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .connect_timeout(limits.connect)
            .redirect(redirect::Policy::none())
            .build()
            .map_err(Failure::Client)?;
        Ok(Self { client, limits })
    }

    pub fn post(&self, url: &str, body: &Value) -> RequestBuilder {
        self.client
            .post(url)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    /// A POST of JSON that is already text.
    pub fn post_text(&self, url: &str, body: Bytes) -> RequestBuilder {
        self.client
            .post(url)
            .header("content-type", "application/json")
            .body(body)
    }

    pub fn patch(&self, url: &str, body: &Value) -> RequestBuilder {
        self.client
            .patch(url)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    pub fn put(&self, url: &str, body: &Value) -> RequestBuilder {
        self.client
            .put(url)
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    /// A POST of `fields` as `application/x-www-form-urlencoded`.
    pub fn post_form(&self, url: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        self.client
            .post(url)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.finish())
    }

    pub fn get(&self, url: &str) -> RequestBuilder {
        self.client.get(url)
    }

    pub fn delete(&self, url: &str) -> RequestBuilder {
        self.client.delete(url)
    }

    /// Sends the request and reads the whole JSON answer.
    pub async fn json(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let mut response = self.send(request).await?;
        self.value(&mut response).await
    }

    /// Sends the request and returns only the status of the answer.
    pub async fn head_of(&self, request: RequestBuilder) -> Result<StatusCode, Failure> {
        Ok(self.send(request).await?.status())
    }

    /// Sends the request and returns the answer's events as a stream.
    pub async fn events(&self, request: RequestBuilder) -> Result<ServerEvents, Failure> {
        let request = request.header("accept", "text/event-stream");
        let response = self.send(request).await?;
        Ok(self.as_events(response, Framing::Events))
    }

    /// Sends the request and returns events, or the whole answer if the endpoint returned JSON instead.
    pub async fn reply(&self, request: RequestBuilder) -> Result<Reply, Failure> {
        let request = request.header("accept", "text/event-stream, application/json");
        let mut response = self.send(request).await?;
        if says_json(response.headers()) {
            return self.value(&mut response).await.map(Reply::Whole);
        }
        Ok(Reply::Events(self.as_events(response, Framing::Events)))
    }

    pub(crate) fn as_events(&self, response: Response, framing: Framing) -> ServerEvents {
        let limits = self.limits;
        let bytes = response
            .bytes_stream()
            .map(move |piece| piece.map_err(|error| limits.broken(error)));
        ServerEvents::new(bytes, framing, limits.event_bytes, limits.silence)
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let mut response = timeout(self.limits.silence, request.send())
            .await
            .map_err(|_| Failure::Silent(self.limits.silence))?
            .map_err(|error| self.limits.not_sent(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let should_retry = match text(response.headers(), "x-should-retry") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) | None => None,
        };
        // A read error only shortens the error text.
        let body = self.beginning(&mut response).await;
        Err(Failure::Refused {
            host: host(response.url()),
            status: response.status(),
            body,
            retry_after,
            should_retry,
        })
    }

    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    pub(crate) async fn whole(&self, response: &mut Response) -> Result<Vec<u8>, Failure> {
        self.body(response, self.limits.body_bytes).await
    }

    async fn value(&self, response: &mut Response) -> Result<Value, Failure> {
        let body = self.whole(response).await?;
        foreign_json::from_slice(&body).map_err(Failure::NotJson)
    }

    async fn beginning(&self, response: &mut Response) -> String {
        let mut body = Vec::new();
        while body.len() < REFUSAL_BYTES
            && let Ok(Ok(Some(piece))) = timeout(self.limits.silence, response.chunk()).await
        {
            body.extend_from_slice(&piece);
        }
        body.truncate(REFUSAL_BYTES);
        String::from_utf8_lossy(&body).into_owned()
    }

    async fn body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let piece = timeout(self.limits.silence, response.chunk())
                .await
                .map_err(|_| Failure::Silent(self.limits.silence))?
                .map_err(|error| self.limits.broken(error))?;
            let Some(piece) = piece else {
                return Ok(body);
            };
            if body.len() + piece.len() > limit {
                return Err(Failure::TooLong(TooLong::Answer(limit)));
            }
            body.extend_from_slice(&piece);
        }
    }
}

/// Answer of an endpoint that was asked for events.
pub enum Reply {
    Events(ServerEvents),
    Whole(Value),
}

impl Limits {
    fn not_sent(&self, error: reqwest::Error) -> Failure {
        match self.total {
            Some(total) if error.is_timeout() && !error.is_connect() => Failure::Silent(total),
            Some(_) | None => Failure::Connect(Unreachable {
                host: error.url().map(host).unwrap_or_default(),
                source: error.without_url(),
            }),
        }
    }

    pub(crate) fn broken(&self, error: reqwest::Error) -> Failure {
        match self.total {
            Some(total) if error.is_timeout() => Failure::Silent(total),
            Some(_) | None => Failure::Broken(Break::Connection(error.without_url())),
        }
    }
}

/// Host and port only: a path or a query can contain secrets.
fn host(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn says_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().starts_with("application/json"))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    Some(headers.get(name)?.to_str().ok()?.trim())
}

/// Parses `retry-after-ms`, which OpenAI's service sends and its clients prefer, else `Retry-After`: seconds or an HTTP
/// date. LiteLLM passes on the headers of the service behind it under a prefix.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let named = |millis, after| wait_in(text(headers, millis), text(headers, after), now);
    named("retry-after-ms", RETRY_AFTER.as_str())
        .or_else(|| named("llm_provider-retry-after-ms", "llm_provider-retry-after"))
}

fn wait_in(millis: Option<&str>, after: Option<&str>, now: SystemTime) -> Option<Duration> {
    let millis = millis.and_then(|text| text.parse::<f64>().ok());
    if let Some(wait) = millis.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()) {
        return Some(wait);
    }
    let after = after?;
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(after).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests;
