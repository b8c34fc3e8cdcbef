//! HTTP with JSON bodies and streams of server-sent events, to endpoints that the operator has configured.
//! Everything is bounded: the connection's time, the answer's size, one event's size, the silence between two.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use eventsource_stream::{EventStreamError, Eventsource as _};
use forge_adapter_api::AdapterError;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Response, StatusCode, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::Value;
use tokio::time::timeout;

/// So much of a refusal's body goes into the error text.
const REFUSAL_BYTES: usize = 2_000;

/// Bounds of a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connect: Duration,
    /// Between the request and the head of the answer, and between two pieces of it.
    pub silence: Duration,
    /// Of a JSON answer.
    pub body_bytes: usize,
    /// Of one server-sent event.
    pub event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(120),
            body_bytes: 16 << 20,
            event_bytes: 4 << 20,
        }
    }
}

/// Why there is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the TLS settings could not be built")]
    Tls(#[source] rustls::Error),
    #[error("the HTTP client could not be built")]
    Client(#[source] reqwest::Error),
    #[error("the endpoint could not be reached")]
    Connect(#[source] reqwest::Error),
    #[error("the endpoint answered {status}: {body}")]
    Refused {
        status: StatusCode,
        /// Its beginning.
        body: String,
        retry_after: Option<Duration>,
    },
    #[error("the endpoint was silent for {0:?}")]
    Silent(Duration),
    #[error("the answer broke off")]
    Broken(#[source] reqwest::Error),
    #[error("the answer is above the limit of {0} bytes")]
    TooLong(usize),
    #[error("the answer is not UTF-8")]
    NotUtf8,
    #[error("the answer is not JSON")]
    NotJson(#[source] serde_json::Error),
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

/// The message and those of its sources: an adapter's error crosses the boundary as one text.
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

/// A client; cheap to clone.
#[derive(Clone, Debug)]
pub struct Http {
    client: reqwest::Client,
    limits: Limits,
}

impl Http {
    /// Roots are the system's; the proxies of the environment are used; redirects are not followed, as
    /// they would take credentials along.
    pub fn new(limits: Limits) -> Result<Self, Failure> {
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(rustls::ConfigBuilder::with_platform_verifier)
            .map_err(Failure::Tls)?
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
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

    pub fn get(&self, url: &str) -> RequestBuilder {
        self.client.get(url)
    }

    pub fn delete(&self, url: &str) -> RequestBuilder {
        self.client.delete(url)
    }

    /// Sends and reads the whole answer.
    pub async fn json(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let mut response = self.send(request).await?;
        let body = self.body(&mut response, self.limits.body_bytes).await?;
        serde_json::from_slice(&body).map_err(Failure::NotJson)
    }

    /// Sends and reads the answer's events as they come.
    pub async fn events(&self, request: RequestBuilder) -> Result<ServerEvents, Failure> {
        let response = self
            .send(request.header("accept", "text/event-stream"))
            .await?;
        let limit = self.limits.event_bytes;
        let unread = Arc::new(AtomicUsize::new(0));
        let read = Arc::clone(&unread);
        let bytes = response.bytes_stream().map(move |piece| {
            let piece = piece.map_err(Failure::Broken)?;
            match read.fetch_add(piece.len(), Ordering::Relaxed) {
                before if before > limit => Err(Failure::TooLong(limit)),
                _ => Ok(piece),
            }
        });
        let events = bytes.eventsource().map(|event| match event {
            Ok(event) => Ok(ServerEvent {
                id: event.id,
                name: event.event,
                data: event.data,
            }),
            Err(EventStreamError::Transport(failure)) => Err(failure),
            Err(EventStreamError::Utf8(_) | EventStreamError::Parser(_)) => Err(Failure::NotUtf8),
        });
        Ok(ServerEvents {
            events: Box::pin(events),
            unread,
            silence: self.limits.silence,
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let mut response = timeout(self.limits.silence, request.send())
            .await
            .map_err(|_| Failure::Silent(self.limits.silence))?
            .map_err(Failure::Connect)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        // What cannot be read of it is missing in the text only.
        let body = self.beginning(&mut response).await;
        Err(Failure::Refused {
            status: response.status(),
            body,
            retry_after,
        })
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
                .map_err(Failure::Broken)?;
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

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    pub id: String,
    /// `message` when it has no name.
    pub name: String,
    pub data: String,
}

/// The events of one answer; comments are skipped, and count as sound.
pub struct ServerEvents {
    events: Pin<Box<dyn Stream<Item = Result<ServerEvent, Failure>> + Send>>,
    /// Bytes since the last event.
    unread: Arc<AtomicUsize>,
    silence: Duration,
}

impl ServerEvents {
    /// `None` when the answer has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ServerEvent, Failure>> {
        loop {
            let heard = self.unread.load(Ordering::Relaxed);
            match timeout(self.silence, self.events.next()).await {
                Ok(Some(Ok(event))) => {
                    self.unread.store(0, Ordering::Relaxed);
                    return Some(Ok(event));
                }
                Ok(end) => return end,
                Err(_) if self.unread.load(Ordering::Relaxed) != heard => {}
                Err(_) => return Some(Err(Failure::Silent(self.silence))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::Router;
    use axum::body::Body;
    use axum::http::Response;
    use axum::routing::{get, post};
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
        assert!(
            events.next().await.is_none(),
            "an event without its end is none"
        );
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
        drop(server);
    }

    #[tokio::test]
    async fn an_endpoint_that_is_not_there_may_be_there_later() {
        let http = http();
        let error = AdapterError::from(
            http.json(http.get("http://127.0.0.1:1/"))
                .await
                .unwrap_err(),
        );
        assert_eq!(
            (error.code.as_str(), error.retryable),
            ("upstream_error", true)
        );
    }
}
