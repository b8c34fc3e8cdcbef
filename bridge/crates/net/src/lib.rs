//! HTTP client for all outgoing calls: guarded addresses, no system proxy, no redirects, a timeout and a size limit
//! for every answer. Independent of content and purpose of the requests.
#![forbid(unsafe_code)]

#[cfg(test)]
mod attempts;
pub mod backoff;
pub mod breaker;
mod direct;
pub mod guard;
mod http2;
mod paced;
mod special;
mod tls;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
use hyper::{Request, Response, Uri};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Method, redirect, retry};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};
use url::{Host, Url};

use direct::{Connector, Direct, Protocol, Unanswered, Unresolved};
use guard::{Guard, Lookup, Refused, Resolver, Trust};

pub use http2::{Http2, Http2Body, Http2Error};

/// Size of an answer's body that is enough to show operators.
pub const ANSWER_BYTES: usize = 20_000;

/// Settings for outgoing calls.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Forward proxy for all calls; its URL has no credentials. The proxy resolves names, so it has to guard them as
    /// well; literal addresses are still checked here.
    pub proxy: Option<String>,
    #[serde(with = "forge_base::duration")]
    pub connect_timeout: Duration,
    /// Longest idle time of a pooled connection.
    #[serde(with = "forge_base::duration")]
    pub idle_timeout: Duration,
    /// Limit of idle connections per origin.
    pub idle_per_origin: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            proxy: None,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(20),
            idle_per_origin: 32,
        }
    }
}

/// Reason why no client could be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("net.proxy must be the URL of a proxy, without credentials")]
    Proxy,
    #[error("the HTTP client could not be built")]
    Build(#[source] reqwest::Error),
    #[error("the TLS settings could not be built")]
    Tls(#[source] rustls::Error),
}

/// Sends requests. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    config: Arc<Config>,
    guard: Guard,
    /// Checks every address that a name resolves to.
    checked: Way,
    /// For hosts that the operator allows by name: accepts every address. Has a pool of its own, so that its
    /// connections never serve a host that has to be checked.
    named: Way,
}

/// Clients for one kind of trust.
#[derive(Clone, Debug)]
struct Way {
    /// For streams, and for all requests through a proxy.
    full: reqwest::Client,
    /// `None` if a proxy is configured.
    direct: Option<Direct>,
    /// Opens connections for HTTP/2; `None` if a proxy is configured.
    http2: Option<Connector>,
}

/// Request to send.
#[derive(Debug)]
pub struct Outgoing {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// From the name lookup to the last byte of the answer that is read.
    pub timeout: Duration,
    /// Limit of the answer's body; the rest is not read.
    pub answer_bytes: usize,
}

/// Answer with any status.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Beginning of the body, up to the limit of the request.
    pub body: Vec<u8>,
    pub end: BodyEnd,
}

/// Reason why no more of a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// The body is complete.
    Complete,
    /// Longer than the limit.
    TooLong,
    /// The connection broke.
    Broken,
    TimedOut,
}

/// Reason why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("refused to call: {0}")]
    Refused(Refused),
    #[error("could not look up the name: {0}")]
    Resolve(String),
    #[error("could not connect: {0}")]
    Connect(String),
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection was closed before the answer: {0}")]
    Closed(String),
    #[error("the request could not be sent or the answer is not HTTP: {0}")]
    Protocol(String),
}

impl Client {
    /// `guard` is shared with the callers that check URLs before storing them.
    pub fn new(config: &Config, guard: Guard) -> Result<Self, Error> {
        Self::looking_up(config, guard, &guard::system_lookup())
    }

    fn looking_up(config: &Config, guard: Guard, lookup: &Lookup) -> Result<Self, Error> {
        let tls = tls::config().map_err(Error::Tls)?;
        let way = |guard| {
            let resolver = Resolver {
                guard,
                lookup: Arc::clone(lookup),
            };
            let builder = config.builder(tls.clone())?;
            Ok(match config.proxy {
                // Only the proxy's own name is resolved here; a private address is allowed for it.
                Some(_) => Way {
                    full: builder.build().map_err(Error::Build)?,
                    direct: None,
                    http2: None,
                },
                None => Way {
                    direct: Some(Direct::new(config, tls.clone(), resolver.clone())),
                    http2: Some(direct::connector(
                        config,
                        tls.clone(),
                        resolver.clone(),
                        Protocol::Http2,
                    )),
                    full: builder
                        .dns_resolver(Arc::new(resolver))
                        .build()
                        .map_err(Error::Build)?,
                },
            })
        };
        Ok(Self {
            config: Arc::new(config.clone()),
            checked: way(Some(guard.clone()))?,
            named: way(None)?,
            guard,
        })
    }

    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Client for libraries that implement a protocol over HTTP; use it for this URL only. The library has to set its
    /// own time and size limits.
    pub fn for_streams(&self, url: &Url) -> Result<reqwest::Client, Refused> {
        Ok(self.way(url)?.full.clone())
    }

    /// Client with connections of its own, for protocols that need HTTP/2. `None` if a proxy is configured. Answers are
    /// bounded by [`Http2::limited`] alone.
    pub fn http2<B>(&self) -> Option<Http2<B>>
    where
        B: Body + Send + 'static,
        B::Data: Send,
    {
        let builder = direct::builder(&self.config);
        let (checked, named) = (self.checked.http2.clone()?, self.named.http2.clone()?);
        Some(Http2::new(self.guard.clone(), builder, checked, named))
    }

    fn way(&self, url: &Url) -> Result<&Way, Refused> {
        Ok(match self.guard.trust(url)? {
            Trust::Checked => &self.checked,
            Trust::Named => &self.named,
        })
    }

    /// Sends one request: follows no redirect and never retries.
    pub async fn send(&self, outgoing: Outgoing) -> Result<Answer, SendError> {
        let way = self.way(&outgoing.url).map_err(SendError::Refused)?;
        let limits = (outgoing.timeout, outgoing.answer_bytes);
        match &way.direct {
            Some(direct) => {
                let sent = direct.send(outgoing.direct()?);
                answer(sent, Unanswered::is_connect, limits).await
            }
            None => {
                let sent = way.full.execute(outgoing.proxied());
                let sent = sent.map_ok(Response::from);
                answer(sent, reqwest::Error::is_connect, limits).await
            }
        }
    }
}

impl Outgoing {
    fn direct(self) -> Result<Request<Full<Bytes>>, SendError> {
        let uri = Uri::try_from(self.url.as_str());
        let uri = uri.map_err(|error| SendError::Protocol(error.to_string()))?;
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers;
        let any = HeaderValue::from_static("*/*");
        request.headers_mut().entry(ACCEPT).or_insert(any);
        Ok(request)
    }

    fn proxied(self) -> reqwest::Request {
        let mut request = reqwest::Request::new(self.method, self.url);
        *request.headers_mut() = self.headers;
        *request.body_mut() = Some(self.body.into());
        request
    }
}

async fn answer<B, E>(
    sent: impl Future<Output = Result<Response<B>, E>>,
    is_connect: impl FnOnce(&E) -> bool,
    (limit, answer_bytes): (Duration, usize),
) -> Result<Answer, SendError>
where
    B: Body<Data = Bytes> + Unpin,
    E: StdError + 'static,
{
    let deadline = Instant::now() + limit;
    match timeout_at(deadline, sent).await {
        Ok(Ok(response)) => {
            let (head, body) = response.into_parts();
            let (body, end) = beginning_of(body, deadline, answer_bytes).await;
            Ok(Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body,
                end,
            })
        }
        Ok(Err(error)) => Err(SendError::of(&error, is_connect(&error))),
        Err(_) => Err(SendError::Timeout(limit)),
    }
}

impl Config {
    fn builder(&self, tls: rustls::ClientConfig) -> Result<reqwest::ClientBuilder, Error> {
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            // Adapters enable decompression in the same build; here the limits count the bytes as sent.
            .no_gzip()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(self.idle_timeout)
            .pool_max_idle_per_host(self.idle_per_origin);
        let Some(proxy) = &self.proxy else {
            return Ok(builder);
        };
        let url = Url::parse(proxy).map_err(|_| Error::Proxy)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::Proxy);
        }
        let proxy = reqwest::Proxy::all(url).map_err(|_| Error::Proxy)?;
        Ok(builder.proxy(proxy))
    }
}

async fn beginning_of(
    mut body: impl Body<Data = Bytes> + Unpin,
    deadline: Instant,
    limit: usize,
) -> (Vec<u8>, BodyEnd) {
    let mut beginning = Vec::new();
    let end = loop {
        let chunk = match timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(_))) => break BodyEnd::Broken,
            Ok(None) => break BodyEnd::Complete,
            Err(_) => break BodyEnd::TimedOut,
        };
        let room = limit - beginning.len();
        beginning.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            break BodyEnd::TooLong;
        }
    };
    (beginning, end)
}

impl SendError {
    /// Classifies a client's error by its root cause. Leaves out the URL, which can contain a token.
    fn of(error: &(dyn StdError + 'static), connecting: bool) -> Self {
        let mut bottom = error;
        let (mut closed, mut unresolved) = (false, false);
        loop {
            if let Some(refused) = bottom.downcast_ref::<Refused>() {
                return SendError::Refused(refused.clone());
            }
            if let Some(tls) = bottom.downcast_ref::<rustls::Error>() {
                return SendError::Tls(tls.to_string());
            }
            if let Some(http) = bottom.downcast_ref::<hyper::Error>() {
                closed |= http.is_incomplete_message() || http.is_closed() || http.is_canceled();
            }
            unresolved |= bottom.is::<Unresolved>();
            let io = bottom.downcast_ref::<std::io::Error>();
            closed |= io.is_some_and(|io| CLOSED.contains(&io.kind()));
            // `source` of an I/O error skips the error that it wraps.
            let inner = io.and_then(|io| io.get_ref());
            match inner.map(|inner| inner as &(dyn StdError + 'static)) {
                Some(inner) => bottom = inner,
                None => match bottom.source() {
                    Some(source) => bottom = source,
                    None => break,
                },
            }
        }
        let text = bottom.to_string();
        if unresolved {
            SendError::Resolve(text)
        } else if connecting {
            SendError::Connect(text)
        } else if closed {
            SendError::Closed(text)
        } else {
            SendError::Protocol(text)
        }
    }
}

const CLOSED: [std::io::ErrorKind; 4] = [
    std::io::ErrorKind::ConnectionReset,
    std::io::ErrorKind::ConnectionAborted,
    std::io::ErrorKind::BrokenPipe,
    std::io::ErrorKind::UnexpectedEof,
];

/// True if what is sent to the URL cannot be read on the way: https, or http to this machine.
pub fn is_private(url: &Url) -> bool {
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => true,
        "http" => is_here,
        _ => false,
    }
}

/// Scheme, host and port in full: `https://example.com:443`. The unit of limits.
pub fn origin(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}://{host}:{port}", url.scheme())
}

#[cfg(test)]
mod tests;
