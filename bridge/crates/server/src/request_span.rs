//! Processing around every request: request id, span, error envelope, panics as 500, and header limits.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::error::{Code, Failure, render};
use super::external;
use super::traffic::Traffic;
use forge_base::id::RequestId;

/// Maximum number of headers. Above twice this number hyper answers 431 itself, without the envelope.
pub(super) const MAX_HEADERS: usize = 100;
/// Maximum size of headers and path, in bytes; hyper answers 431 itself above one and a half times this size.
pub(super) const MAX_HEADER_BYTES: usize = 64 * 1024;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[derive(Debug, thiserror::Error)]
#[error("a handler panicked; the line above says where")]
struct Panicked;

/// Outermost layer: runs a request in its span, turns panics and failures into responses, and counts it.
pub(super) async fn traced<F: Future<Output = Response>>(
    traffic: &Traffic,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let begun = Instant::now();
    let id = RequestId::new();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let trace = external::trace(&request);
    if let Some(trace) = trace {
        request.extensions_mut().insert(trace);
    }
    // Error level, so that lines logged within the span have its ids at every log level.
    let span = tracing::error_span!(
        "request",
        request.id = %id,
        http.method = %request.method(),
        http.route = path(route.as_ref()),
        dispatch.id = tracing::field::Empty,
        trace.id = tracing::field::Empty,
    );
    let answer = async {
        let answered = AssertUnwindSafe(next(request)).catch_unwind().await;
        let response = answered.unwrap_or_else(|_| Failure::internal(Panicked).into_response());
        let mut response = render(response, id, trace);
        let text = HeaderValue::try_from(id.to_string()).expect("an id is visible ASCII");
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, text);
        let nosniff = HeaderValue::from_static("nosniff");
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
        // Another policy is named by the files of the console, which hold no data, by a run, which has an ETag, and by
        // the stream of a run, whose header the public design names.
        let caching = headers.entry(header::CACHE_CONTROL);
        caching.or_insert(HeaderValue::from_static("no-store"));
        let status = response.status().as_u16();
        traffic.answered(path(route.as_ref()), &method, status, begun.elapsed());
        tracing::debug!(status, "request answered");
        response
    };
    answer.instrument(span).await
}

/// Template of the route, which contains no ids.
fn path(route: Option<&MatchedPath>) -> &str {
    route.map_or("none", MatchedPath::as_str)
}

/// Answers 431 with the envelope if headers are too many or too large. Closes the connection after a chunked body:
/// hyper hides whether there was a `Content-Length` too, by which a proxy in front might have delimited the next
/// request differently (RFC 9112, section 6.3).
pub(super) async fn limit_headers<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let headers = request.headers();
    if headers.len() > MAX_HEADERS || size(request.uri(), headers) > MAX_HEADER_BYTES {
        let message =
            format!("more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes");
        return Failure::new(Code::HeadersTooLarge, message).into_response();
    }
    let in_chunks = headers.contains_key(header::TRANSFER_ENCODING);
    let mut response = next(request).await;
    if in_chunks {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

fn size(uri: &Uri, headers: &HeaderMap) -> usize {
    let line = uri.path_and_query().map_or(0, |path| path.as_str().len());
    headers.iter().fold(line, |sum, (name, value)| {
        sum + name.as_str().len() + value.len() + ": \r\n".len()
    })
}

pub(super) async fn unknown_route(uri: Uri) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no route {:?}", uri.path()),
    )
}

pub(super) async fn wrong_method(request: Request) -> Failure {
    let message = format!(
        "{} does not support {}",
        request.uri().path(),
        request.method()
    );
    external::wrong_method(Failure::new(Code::MethodNotAllowed, message), &request)
}
