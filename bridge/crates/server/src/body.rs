//! Reads request bodies: whole, within a size limit, a timeout and memory budgets shared by all requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use axum::extract::{FromRef, FromRequest, OptionalFromRequest, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use forge_base::json;
use forge_listener::body::{self, BodyError, Budget, MemoryPermit, SMALL_BYTES};
use hyper::body::Body as _;
use serde_json::Value;

use super::error::{Code, Failure};
use super::limit::Hash;
use super::{Config, auth, media_type};

/// Memory budget for bodies that are still arriving, over all requests, in KiB.
const TEXTS_KIB: usize = 256 * 1024;
/// Share of that budget for the bodies of one token, in KiB, so that its slow bodies do not hold up those of others.
const SHARE_KIB: usize = TEXTS_KIB / 4;
/// Number of shares above which those no longer in use are removed.
const MANY_SHARES: usize = 64;
/// Memory budget for parsed bodies, over all requests, in KiB of their text: a tree can take a hundred times as
/// much memory. A body above the budget takes all of it and is handled alone.
const TREES_KIB: usize = 1024;

/// Reader of JSON bodies; one for all requests, because they share the budgets.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    texts: Arc<body::BodyReader>,
    shares: Arc<Mutex<HashMap<Hash, Weak<Budget>>>>,
    trees: Budget,
}

impl BodyReader {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            texts: Arc::new(body::BodyReader {
                limit_bytes: config.body_limit_bytes,
                timeout: config.body_timeout,
                budget: Budget::of_kib(TEXTS_KIB),
            }),
            shares: Arc::default(),
            trees: Budget::of_kib(TREES_KIB),
        }
    }

    /// Share of a token; it lasts as long as it is used.
    fn share(&self, token: Hash) -> Arc<Budget> {
        let mut shares = self
            .shares
            .lock()
            .expect("nothing panics while it holds this lock");
        if let Some(share) = shares.get(&token).and_then(Weak::upgrade) {
            return share;
        }
        if shares.len() >= MANY_SHARES {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Budget::of_kib(SHARE_KIB));
        shares.insert(token, Arc::downgrade(&share));
        share
    }
}

pub(super) fn unread(error: &BodyError) -> Failure {
    let code = match error {
        BodyError::TooLarge(_) => Code::PayloadTooLarge,
        BodyError::TimedOut(_) => Code::RequestTimeout,
        BodyError::Broken(_) => Code::InvalidRequest,
    };
    Failure::new(code, error.to_string())
}

pub(super) fn not_json(error: &json::BodyError) -> Refused {
    let failure = Failure::field(error.field(), error.to_string());
    Refused::Read(failure.saying(error.to_string()))
}

/// JSON body as one bounded tree, with its memory permit: `Body { tree, .. }` keeps the permit until the handler
/// ends.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) tree: Value,
    _room: MemoryPermit,
}

impl Body {
    /// The tree, and the permit for its memory.
    pub(super) fn into_parts(self) -> (Option<Value>, Option<MemoryPermit>) {
        (Some(self.tree), Some(self._room))
    }
}

/// `None` for a request without a body, of whatever type.
impl<S> OptionalFromRequest<S> for Body
where
    S: Send + Sync,
    BodyReader: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Option<Self>, Refused> {
        if request.body().is_end_stream() {
            return Ok(None);
        }
        let body = <Self as FromRequest<S>>::from_request(request, state).await?;
        Ok(Some(body))
    }
}

impl<S> FromRequest<S> for Body
where
    S: Send + Sync,
    BodyReader: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let body_reader = BodyReader::from_ref(state);
        let most = request.body().size_hint().upper();
        let token = match most {
            Some(bytes) if bytes <= SMALL_BYTES => None,
            Some(_) | None => auth::token_hash(request.headers()),
        };
        let share = token.map(|token| body_reader.share(token));
        let typed = media_type::check(request.headers());
        let read = body_reader
            .texts
            .read(request.into_body(), share.as_deref());
        let (text, held) = read
            .await
            .map_err(|error| Refused::Unread(unread(&error)))?;
        // After its size, as the protocol of signals has it, and with the connection kept.
        typed.map_err(Refused::Read)?;
        let room = body_reader.trees.take(text.len() as u64).await;
        let parsed = match room {
            None => json::parse(&text),
            // Parsing takes long enough to delay other tasks of the thread.
            Some(_) => tokio::task::spawn_blocking(move || json::parse(&text))
                .await
                .map_err(|error| Refused::Read(Failure::internal(error)))?,
        };
        drop((held, share));
        let tree = parsed.map_err(|error| not_json(&error))?;
        Ok(Self { tree, _room: room })
    }
}

/// Rejected request body.
#[derive(Debug)]
pub(super) enum Refused {
    /// The rest of the body is still on the wire, so the connection is closed.
    Unread(Failure),
    Read(Failure),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Refused::Read(failure) => failure.into_response(),
            Refused::Unread(failure) => {
                let mut response = failure.into_response();
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body as Sent;
    use axum::http::Request;
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::super::auth;
    use super::super::testing::Edge;
    use super::*;

    fn post(token: &str, body: Sent) -> Request<Sent> {
        let request = Request::post("/api/v2/dispatch").header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("content-type", "application/json");
        request.body(body).unwrap()
    }

    #[tokio::test]
    async fn slow_bodies_of_one_token_do_not_hold_up_those_of_another() {
        let auth = auth::Config {
            tokens: vec!["slow".to_owned().into(), "other".to_owned().into()],
            ..auth::Config::default()
        };
        let edge = Edge::with(Config::default(), &auth).await;
        tokio::time::pause();
        let begun = Instant::now();
        let mut slow = JoinSet::new();
        for _ in 0..40 {
            let never = Sent::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
            slow.spawn(tower::ServiceExt::oneshot(
                edge.router.clone(),
                post("slow", never),
            ));
        }
        // Each has begun to wait: for memory, or for its body.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let message = "x".repeat(1024 * 1024);
        let body = serde_json::json!({
            "taskId": "t", "agentId": "a", "message": message, "callbackUrl": null, "provider": "echo",
        });
        let answer = edge.send(post("other", body.to_string().into())).await;
        assert_eq!(answer.status, 202);
        // Paused time advances only while all tasks wait.
        assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    }
}
