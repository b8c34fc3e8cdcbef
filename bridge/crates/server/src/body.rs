//! Reads request bodies: whole, within a size limit, a timeout and memory budgets shared by all requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Code, Failure};
use super::limit::Hash;
use super::{Config, auth, json};

/// Memory budget for bodies that are still arriving, over all requests, in KiB.
const TEXTS_KIB: usize = 256 * 1024;
/// Share of that budget for the bodies of one token, in KiB, so that its slow bodies do not hold up those of others.
const SHARE_KIB: usize = TEXTS_KIB / 4;
/// Number of shares above which those no longer in use are removed.
const MANY_SHARES: usize = 64;
/// Memory budget for parsed bodies, over all requests, in KiB of their text: a tree can take a hundred times as
/// much memory. A body above the budget takes all of it and is handled alone.
const TREES_KIB: usize = 1024;
/// Size up to which a body takes no permit: every connection can have one.
const SMALL_BYTES: u64 = 16 * 1024;

/// Reader of request bodies; one for all requests, because they share the budgets.
#[derive(Clone, Debug)]
pub(super) struct BodyReader {
    config: Arc<Config>,
    texts: Arc<Semaphore>,
    shares: Arc<Mutex<HashMap<Hash, Weak<Semaphore>>>>,
    trees: Arc<Semaphore>,
}

/// Share of a budget, returned on drop; `None` for a small body.
type MemoryPermit = Option<OwnedSemaphorePermit>;

async fn room(budget: &Arc<Semaphore>, all_kib: usize, bytes: u64) -> MemoryPermit {
    if bytes <= SMALL_BYTES {
        return None;
    }
    let kib = bytes.div_ceil(1024).min(all_kib as u64);
    let kib = u32::try_from(kib).unwrap_or(u32::MAX);
    Arc::clone(budget).acquire_many_owned(kib).await.ok()
}

impl BodyReader {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            texts: Arc::new(Semaphore::new(TEXTS_KIB)),
            shares: Arc::default(),
            trees: Arc::new(Semaphore::new(TREES_KIB)),
        }
    }

    /// Waits for memory: first for a part of the token's own share, then for a part of the whole budget.
    async fn reserve(&self, headers: &HeaderMap, bytes: u64) -> [MemoryPermit; 2] {
        let share = match auth::token_hash(headers) {
            Some(token) if bytes > SMALL_BYTES => {
                let share = self.share(token);
                room(&share, SHARE_KIB, bytes).await
            }
            Some(_) | None => None,
        };
        [share, room(&self.texts, TEXTS_KIB, bytes).await]
    }

    /// Share of a token; it lasts as long as it is used.
    fn share(&self, token: Hash) -> Arc<Semaphore> {
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
        let share = Arc::new(Semaphore::new(SHARE_KIB));
        shares.insert(token, Arc::downgrade(&share));
        share
    }

    /// Reads the whole body; returns its bytes with their memory permits.
    async fn read(&self, request: Request) -> Result<(Bytes, [MemoryPermit; 2]), Failure> {
        let limit = self.config.body_limit_bytes;
        let hint = request.body().size_hint();
        if hint.lower() > limit as u64 {
            return Err(too_large(limit));
        }
        let most = hint.upper().unwrap_or(limit as u64).min(limit as u64);
        let reading = async {
            let room = self.reserve(request.headers(), most).await;
            let mut body = Limited::new(request.into_body(), limit);
            // One buffer: many small chunks would each take more memory than the bytes in them.
            let mut whole = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame?.into_data() {
                    whole.extend_from_slice(&piece);
                }
            }
            Ok::<_, axum::BoxError>((Bytes::from(whole), room))
        };
        match tokio::time::timeout(self.config.body_timeout, reading).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
            Ok(Err(error)) => {
                let message = format!("the body could not be read: {error}");
                Err(Failure::new(Code::InvalidRequest, message))
            }
            Err(_) => {
                let seconds = self.config.body_timeout.as_secs();
                let message = format!("the body was not complete after {seconds} seconds");
                Err(Failure::new(Code::RequestTimeout, message))
            }
        }
    }
}

fn too_large(limit: usize) -> Failure {
    let message = format!("the body is larger than {limit} bytes");
    Failure::new(Code::PayloadTooLarge, message)
}

/// JSON body as one bounded tree, with its memory permit: `Body { tree, .. }` keeps the permit until the handler
/// ends.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) tree: Value,
    _room: MemoryPermit,
}

impl<S> FromRequest<S> for Body
where
    S: Send + Sync,
    BodyReader: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let body_reader = BodyReader::from_ref(state);
        let (text, held) = body_reader.read(request).await.map_err(Refused::Unread)?;
        let room = room(&body_reader.trees, TREES_KIB, text.len() as u64).await;
        let parsed = match room {
            None => json::parse(&text),
            // Parsing takes long enough to delay other tasks of the thread.
            Some(_) => tokio::task::spawn_blocking(move || json::parse(&text))
                .await
                .map_err(|error| Refused::Read(Failure::internal(error)))?,
        };
        drop(held);
        let tree = parsed.map_err(|error| {
            let failure = Failure::field(error.field(), error.to_string());
            Refused::Read(failure.saying(error.to_string()))
        })?;
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
    use futures_util::stream;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::super::auth;
    use super::super::testing::Edge;
    use super::*;

    fn post(token: &str, body: Sent) -> Request<Sent> {
        let request = Request::post("/api/v2/dispatch").header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {token}"));
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
