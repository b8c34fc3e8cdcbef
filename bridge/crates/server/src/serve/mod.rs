//! Serves the routes on the bounded listener, with connections beyond the first ones in a runtime of their own.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use forge_listener::{Answer, Limits};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Config;
use super::limit::Peer;
use super::origin_guard;
use super::request_span::{MAX_HEADER_BYTES, MAX_HEADERS};
use super::tls::Tls;
use forge_base::tasks::IoRuntime;

/// Size of the read buffer and of the write buffer of a connection. Above [`MAX_HEADER_BYTES`], so that too large
/// headers are refused with the envelope.
const BUFFER_BYTES: usize = MAX_HEADER_BYTES + MAX_HEADER_BYTES / 2;

/// Number of connections up to which all run in the runtime that accepts them: with few threads for many connections
/// a request rarely has to wake one. Above it every other connection runs in a second runtime.
const CROWD: usize = 256;

/// Time for which a browser uses only TLS at this host name: a year.
const STRICT_TRANSPORT: &str = "max-age=31536000";

/// Serves until `shutdown`; then closes the socket, gives requests in progress `config.close_grace` to end, and
/// cuts off the others.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) {
    let limits = Limits {
        max_connections: most_connections(config),
        max_headers: 2 * MAX_HEADERS,
        buffer_bytes: BUFFER_BYTES,
        header_timeout: config.header_timeout,
        idle_timeout: config.idle_timeout,
        write_timeout: config.write_timeout,
        close_grace: config.close_grace,
    };
    let tls = tls.map(|tls| Arc::new(move || tls.server()) as forge_listener::Tls);
    let is_tls = tls.is_some();
    let handler = move |peer: SocketAddr, mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer::from(peer.ip()));
        let is_strict = is_tls && !origin_guard::is_for_this_machine(&request);
        let answer = router.clone().oneshot(request.map(Body::new));
        let answer: Answer<Body> = Box::pin(async move {
            let Ok(mut response) = answer.await;
            if is_strict {
                demand_tls(response.headers_mut());
            }
            response
        });
        answer
    };
    let mut second = None;
    let mut goes_to_second = false;
    let second_runtime = |open| {
        goes_to_second = !goes_to_second && open >= CROWD;
        if goes_to_second && second.is_none() {
            // If no threads can be started, the connection stays in this runtime.
            second = IoRuntime::new().ok();
        }
        let second = second.as_ref().filter(|_| goes_to_second)?;
        Some(second.handle().clone())
    };
    forge_listener::serve(listener, limits, tls, second_runtime, shutdown, handler).await;
}

/// Has browsers use TLS at this host name from now on, on every port. Not for `localhost`, which belongs to the other
/// servers of the machine too.
fn demand_tls(headers: &mut HeaderMap) {
    let value = HeaderValue::from_static(STRICT_TRANSPORT);
    headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
}

/// `config.max_connections`, at most half of the open file limit: store, adapters and callbacks need descriptors
/// too.
fn most_connections(config: &Config) -> usize {
    let limit = forge_listener::open_file_limit();
    let most = (limit / 2).max(1);
    if config.max_connections > most {
        tracing::warn!(
            "http.max_connections is lowered to {most}: the system allows {limit} open files; raise it with ulimit -n"
        );
    }
    config.max_connections.min(most)
}

#[cfg(test)]
mod tests;
