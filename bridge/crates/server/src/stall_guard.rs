//! Bound of the time in which a request waits for a store whose writer makes no progress. Without it the request waits
//! as long as the disk or the connection hangs.

use std::pin::pin;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};

use super::error::{Code, Failure};
use forge_store::Store;

/// Time in which the handler of a refused change answers by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Paths of requests that wait for services, adapters and agents as long as those take.
const FOREIGN: [&str; 4] = [
    "/external/",
    "/api/v2/agents",
    "/api/v2/skills",
    "/api/v2/system/",
];
const RELOAD: &str = "/reload";

/// Answers a request that changes something, 503 if the store stalls meanwhile.
pub(super) async fn guard<F: Future<Output = Response>>(
    store: &dyn Store,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    match is_bounded(request.method(), request.uri().path()) {
        true => match unless_stalled(store, next(request)).await {
            Ok(response) => response,
            Err(stalled) => stalled.into_response(),
        },
        false => next(request).await,
    }
}

fn is_bounded(method: &Method, path: &str) -> bool {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let is_foreign = FOREIGN.iter().any(|prefix| path.starts_with(prefix));
    !reads && !is_foreign && !path.ends_with(RELOAD)
}

/// Waits for an answer until the store stalls. A change that waited is then refused, and its caller answers so. The outcome
/// of one under way is unknown; it is made, or not, as if its client had disconnected.
pub(super) async fn unless_stalled<T>(
    store: &dyn Store,
    answer: impl Future<Output = T>,
) -> Result<T, Failure> {
    let mut answer = pin!(answer);
    let reason = tokio::select! {
        biased;
        answer = &mut answer => return Ok(answer),
        reason = store.stalled() => reason,
    };
    let late = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    late.map_err(|_| {
        let message = format!(
            "the store is unavailable: {reason}; the outcome of this request is not known: send it again with the same key to find out"
        );
        Failure::new(Code::StoreUnavailable, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_for_others_are_not_bounded() {
        for (method, path, bounded) in [
            (Method::POST, "/api/v2/dispatch", true),
            (Method::POST, "/api/v2/dispatch/dsp_1/cancel", true),
            (Method::POST, "/api/v2/adapters/echo/pause", true),
            (Method::POST, "/emit", true),
            (Method::GET, "/api/v2/dispatch/dsp_1", false),
            (Method::POST, "/api/v2/adapters/echo/reload", false),
            (Method::POST, "/external/crm/queries/find", false),
            (Method::PUT, "/api/v2/agents/a/files/b", false),
        ] {
            assert_eq!(is_bounded(&method, path), bounded, "{method} {path}");
        }
    }
}
