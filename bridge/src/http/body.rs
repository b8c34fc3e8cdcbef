//! Takes a request's body off the wire: whole, within a size, a time and a common budget of memory.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::error::{Code, Failure};
use super::{Config, json};

/// What all requests together may hold of bodies that are still arriving.
const BUDGET_KIB: usize = 256 * 1024;
/// A body that announces no more than this does not wait for room: on every connection there may be one.
const SMALL_BYTES: u64 = 16 * 1024;

/// Reads bodies. One for all requests, since the budget is common.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    config: Arc<Config>,
    budget: Arc<Semaphore>,
}

impl Intake {
    pub(super) fn new(config: Arc<Config>) -> Self {
        let budget = Arc::new(Semaphore::new(BUDGET_KIB));
        Self { config, budget }
    }

    async fn read(&self, request: Request) -> Result<Bytes, Failure> {
        let limit = self.config.body_limit_bytes;
        let hint = request.body().size_hint();
        if hint.lower() > limit as u64 {
            return Err(too_large(limit));
        }
        let most = hint.upper().unwrap_or(limit as u64).min(limit as u64);
        let reading = async {
            let kib = u32::try_from(most.div_ceil(1024)).unwrap_or(u32::MAX);
            let kib = kib.min(BUDGET_KIB as u32);
            let _held = match most <= SMALL_BYTES {
                true => None,
                false => Some(self.budget.acquire_many(kib).await),
            };
            let mut body = Limited::new(request.into_body(), limit);
            // In one piece: each of many small ones would take more room than the bytes in it.
            let mut whole = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame?.into_data() {
                    whole.extend_from_slice(&piece);
                }
            }
            Ok::<_, axum::BoxError>(Bytes::from(whole))
        };
        match tokio::time::timeout(self.config.body_timeout, reading).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
            Ok(Err(error)) => {
                let message = format!("the body broke off: {error}");
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

/// A JSON body as one bounded tree.
#[derive(Debug)]
pub(super) struct Body(pub(super) Value);

impl<S> FromRequest<S> for Body
where
    S: Send + Sync,
    Intake: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let bytes = Intake::from_ref(state)
            .read(request)
            .await
            .map_err(Refused::Unread)?;
        json::parse(&bytes).map(Self).map_err(|error| {
            let failure = Failure::field(error.field(), error.to_string());
            Refused::Read(failure.saying(error.to_string()))
        })
    }
}

/// A body that is not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Its rest is still on the wire: the connection cannot go on.
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
