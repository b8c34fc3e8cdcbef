//! HTTP client for JSON and server-sent events, for endpoints configured by the operator. Everything is
//! bounded: time to connect, size of an answer and of an event, and silence between pieces.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::Value;
use tokio::time::timeout;
use url::form_urlencoded;

pub use crate::failure::{Break, Failure, Unreachable};
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
            event_bytes: 4 << 20,
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

    pub fn patch(&self, url: &str, body: &Value) -> RequestBuilder {
        self.client
            .patch(url)
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
        // A read error only shortens the error text.
        let body = self.beginning(&mut response).await;
        Err(Failure::Refused {
            host: host(response.url()),
            status: response.status(),
            body,
            retry_after,
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
        serde_json::from_slice(&body).map_err(Failure::NotJson)
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
                return Err(Failure::TooLong(limit));
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

/// Parses `Retry-After`: seconds or an HTTP date.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::{Response, StatusCode};
    use axum::routing::{get, post};
    use axum::{Json, Router};
    use forge_adapter_api::AdapterError;
    use futures_util::stream;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    struct Server {
        url: String,
        task: JoinHandle<()>,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    async fn serve() -> Server {
        let pieces = |pieces: &'static [&'static str]| {
            move || async move {
                let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(*piece));
                Response::new(Body::from_stream(stream::iter(pieces)))
            }
        };
        let endless = || async {
            let pieces = stream::repeat(Ok::<_, Infallible>(
                "data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
            ));
            Response::new(Body::from_stream(pieces))
        };
        let silent = || async {
            let begun = stream::iter([Ok::<_, Infallible>("data: 1\n\n")]);
            Response::new(Body::from_stream(begun.chain(stream::pending())))
        };
        let refusing = || async {
            (
                StatusCode::TOO_MANY_REQUESTS,
                [(RETRY_AFTER, "7")],
                "slow down",
            )
        };
        let router = Router::new()
            .route("/echo", post(|body: String| async move { body }))
            .route("/echo-form", post(|body: String| async move { Json(body) }))
            .route(
                "/events",
                get(pieces(&[
                    ": hello\r\n\r\nda",
                    "ta: a\ndata: b\n\nevent: x\nid: 9\n",
                    "data: {}\n\n",
                    "data: lost",
                ])),
            )
            .route("/endless", get(endless))
            .route("/silent", get(silent))
            .route("/refusing", get(refusing));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its handle"
        )]
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Server { url, task }
    }

    fn http() -> Http {
        Http::new(Limits {
            silence: Duration::from_secs(2),
            body_bytes: 1000,
            event_bytes: 1000,
            ..Limits::default()
        })
        .unwrap()
    }

    #[tokio::test]
    async fn json_goes_there_and_back_within_its_bound() {
        let (server, http) = (serve().await, http());
        let url = format!("{}/echo", server.url);
        assert_eq!(
            http.json(http.post(&url, &json!({"a": 1}))).await.unwrap(),
            json!({"a": 1})
        );
        let long = json!("a".repeat(2000));
        assert!(matches!(
            http.json(http.post(&url, &long)).await,
            Err(Failure::TooLong(1000))
        ));
    }

    #[tokio::test]
    async fn a_form_is_encoded() {
        let (server, http) = (serve().await, http());
        let url = format!("{}/echo-form", server.url);
        let form = http.post_form(&url, &[("a", "1 & 2"), ("b", "ü")]);
        assert_eq!(http.json(form).await.unwrap(), json!("a=1+%26+2&b=%C3%BC"));
    }

    #[tokio::test]
    async fn events_are_put_together_from_their_pieces() {
        let (server, http) = (serve().await, http());
        let mut events = http
            .events(http.get(&format!("{}/events", server.url)))
            .await
            .unwrap();
        let event = |id: &str, name: &str, data: &str| ServerEvent {
            id: id.to_owned(),
            name: name.to_owned(),
            data: data.to_owned(),
        };
        assert_eq!(
            events.next().await.unwrap().unwrap(),
            event("", "message", "a\nb")
        );
        assert_eq!(events.next().await.unwrap().unwrap(), event("9", "x", "{}"));
        assert!(matches!(
            events.next().await,
            Some(Err(Failure::Broken(Break::InEvent)))
        ));
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn an_event_without_an_end_and_a_silence_are_failures() {
        let (server, http) = (serve().await, http());
        let mut endless = http
            .events(http.get(&format!("{}/endless", server.url)))
            .await
            .unwrap();
        assert!(matches!(
            endless.next().await,
            Some(Err(Failure::TooLong(1000)))
        ));
        let mut silent = http
            .events(http.get(&format!("{}/silent", server.url)))
            .await
            .unwrap();
        assert_eq!(silent.next().await.unwrap().unwrap().data, "1");
        assert!(matches!(silent.next().await, Some(Err(Failure::Silent(_)))));
    }

    #[tokio::test]
    async fn a_refusal_says_why_and_when_to_come_again() {
        let (server, http) = (serve().await, http());
        let failure = http
            .json(http.get(&format!("{}/refusing", server.url)))
            .await
            .unwrap_err();
        let error = AdapterError::from(failure);
        assert_eq!(
            (error.code.as_str(), error.retryable, error.retry_after_ms),
            ("rate_limited", true, Some(7000))
        );
        assert!(error.message.ends_with("slow down"), "{}", error.message);
        let host = server.url.trim_start_matches("http://");
        assert!(error.message.starts_with(host), "{}", error.message);
        drop(server);
    }

    #[test]
    fn the_time_to_come_again_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sat, 21 Nov 2026 00:00:00 GMT").unwrap();
        for (text, seconds) in [
            ("7", Some(7)),
            ("Sat, 21 Nov 2026 00:01:00 GMT", Some(60)),
            ("Fri, 20 Nov 2026 00:01:00 GMT", Some(0)),
            ("soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            let wanted = seconds.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, now), wanted, "{text}");
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_is_not_there_may_be_there_later() {
        let http = http();
        let error = AdapterError::from(
            http.json(http.get("http://127.0.0.1:1/x?key=s3cret"))
                .await
                .unwrap_err(),
        );
        assert_eq!(
            (error.code.as_str(), error.retryable),
            ("upstream_error", true)
        );
        assert!(error.message.contains("127.0.0.1:1"), "{}", error.message);
        assert!(!error.message.contains("s3cret"), "{}", error.message);
    }
}
