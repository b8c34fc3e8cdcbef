//! Reads request bodies: whole, within a size limit, a timeout and memory budgets shared by all requests.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Code, Failure};
use super::{Config, json};

/// Memory budget for bodies that are still arriving, over all requests, in KiB.
const TEXTS_KIB: usize = 256 * 1024;
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
            trees: Arc::new(Semaphore::new(TREES_KIB)),
        }
    }

    /// Reads the whole body; returns its bytes with their memory permit.
    async fn read(&self, request: Request) -> Result<(Bytes, MemoryPermit), Failure> {
        let limit = self.config.body_limit_bytes;
        let hint = request.body().size_hint();
        if hint.lower() > limit as u64 {
            return Err(too_large(limit));
        }
        let most = hint.upper().unwrap_or(limit as u64).min(limit as u64);
        let reading = async {
            let room = room(&self.texts, TEXTS_KIB, most).await;
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
