//! Connections without a proxy: hyper's client behind the guard. reqwest takes 1.5 times as long for the same work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::ext::on_informational;
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};

use super::Config;
use super::guard::Resolver;
use super::paced::Paced;

/// Idle time before the first TCP keepalive probe, and interval between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
/// Longest time that sent bytes can stay unacknowledged.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// Interim answers (1xx) to one request, after which it fails. The protocol has no limit, and hyper none either.
pub(super) const MAX_INTERIM: usize = 16;

/// Opens connections: guarded addresses, TLS where the URL asks for it.
pub(super) type Connector =
    BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<Paced<TcpStream>>>, BoxError>;

/// Connection pool for one kind of trust.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    client: legacy::Client<Connector, Full<Bytes>>,
}

/// Failed name lookup.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unresolved(#[source] BoxError);

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error(transparent)]
    Client(#[from] legacy::Error),
    #[error("more than {MAX_INTERIM} interim answers")]
    Interim,
}

/// Protocol of a connection; both ends agree on it by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Connector of a pool for one kind of trust.
pub(super) fn connector(
    config: &Config,
    tls: rustls::ClientConfig,
    resolver: Resolver,
    protocol: Protocol,
) -> Connector {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let tcp = ServiceBuilder::new()
        .map_response(|stream: TokioIo<TcpStream>| TokioIo::new(Paced::new(stream.into_inner())))
        .service(tcp);
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    let https = match protocol {
        Protocol::Http1 => https.enable_http1().wrap_connector(tcp),
        Protocol::Http2 => https.enable_http2().wrap_connector(tcp),
    };
    let bounded = ServiceBuilder::new().timeout(config.connect_timeout);
    BoxCloneSyncService::new(bounded.service(https))
}

/// Builder of a client whose idle connections the settings bound.
pub(super) fn builder(config: &Config) -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(config.idle_timeout)
        .pool_max_idle_per_host(config.idle_per_origin);
    builder
}

impl Direct {
    pub(super) fn new(config: &Config, tls: rustls::ClientConfig, resolver: Resolver) -> Self {
        let connector = connector(config, tls, resolver, Protocol::Http1);
        Self {
            client: builder(config).build(connector),
        }
    }

    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let too_many = Arc::new(Notify::new());
        let (interim, notify) = (AtomicUsize::new(0), Arc::clone(&too_many));
        on_informational(&mut request, move |_| {
            if interim.fetch_add(1, Ordering::Relaxed) == MAX_INTERIM {
                notify.notify_one();
            }
        });
        tokio::select! {
            answer = self.client.request(request) => Ok(answer?),
            () = too_many.notified() => Err(Unanswered::Interim),
        }
    }
}

impl Unanswered {
    pub(super) fn is_connect(&self) -> bool {
        match self {
            Unanswered::Client(error) => error.is_connect(),
            Unanswered::Interim => false,
        }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Unresolved;
    type Future = BoxFuture<'static, Result<Self::Response, Unresolved>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unresolved>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = self.find(name.as_str().to_owned());
        found
            .map(|found| found.map(Vec::into_iter).map_err(Unresolved))
            .boxed()
    }
}
