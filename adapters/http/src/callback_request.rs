//! One callback: found, read, verified and passed on, in this order, so that a body is read only for an execution that
//! waits for it.

use forge_adapter_api::foreign_json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_transport::wire::{self, Malformed, Message};
use forge_listener::body::{BodyError, BodyReader, Budget};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::mpsc;

use crate::accepted_ids::{AcceptedIds, Admission};
use crate::signing::Signing;

const BODY_BYTES: usize = 16 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Memory of all bodies that are arriving, in KiB.
const BODIES_KIB: usize = 64 * 1024;
/// Path of an execution, before its key.
pub(crate) const PATH: &str = "/callback/";

/// State of all callbacks of a listener. Clones share it.
#[derive(Clone)]
pub(crate) struct Callbacks {
    state: Arc<Mutex<State>>,
    signing: Arc<Signing>,
    bodies: BodyReader,
}

#[derive(Default)]
struct State {
    /// Executions that wait, by key.
    waiting: HashMap<String, mpsc::Sender<Message>>,
    accepted: AcceptedIds,
}

/// Reason why a callback is not accepted.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("there is only {PATH}KEY here, as in the callbackUrl of an execution")]
    NotFound,
    #[error("a callback is a POST")]
    Method,
    /// Final, so that a server stops repeating a result that has arrived.
    #[error("no execution waits for this callback: it has ended")]
    Gone,
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(
        "the signature is missing, wrong or older than five minutes; sign with the adapter's secret (Standard Webhooks)"
    )]
    Unsigned,
    #[error("the body is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is no message: {0}")]
    Message(#[from] Malformed),
    #[error(
        "this webhook-id was accepted for another execution; each message needs an id of its own"
    )]
    IdOfAnother,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Gone => StatusCode::GONE,
            Self::Body(BodyError::TooLarge(_)) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyError::TimedOut(_)) => StatusCode::REQUEST_TIMEOUT,
            Self::Unsigned => StatusCode::UNAUTHORIZED,
            Self::Body(BodyError::Broken(_)) | Self::Json(_) | Self::Message(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::IdOfAnother => StatusCode::CONFLICT,
        }
    }

    /// True if the body was not read to its end.
    fn is_unread(&self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::Method | Self::Gone | Self::Body(_)
        )
    }
}

impl Callbacks {
    pub(crate) fn new(signing: Arc<Signing>) -> Self {
        Self {
            state: Arc::default(),
            signing,
            bodies: BodyReader {
                limit_bytes: BODY_BYTES,
                timeout: BODY_TIMEOUT,
                budget: Budget::of_kib(BODIES_KIB),
            },
        }
    }

    pub(crate) fn expect(&self, key: String, messages: mpsc::Sender<Message>) {
        self.lock().waiting.insert(key, messages);
    }

    pub(crate) fn forget(&self, key: &str) {
        self.lock().waiting.remove(key);
    }

    pub(crate) async fn answer(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = Response::default();
        let Err(refusal) = self.receive(request).await else {
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        };
        *response.status_mut() = refusal.status();
        *response.body_mut() = Full::from(format!("{refusal}\n"));
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, text);
        if matches!(refusal, Refusal::Method) {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        if refusal.is_unread() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn receive(&self, request: Request<Incoming>) -> Result<(), Refusal> {
        let (head, body) = request.into_parts();
        let key = head.uri.path().strip_prefix(PATH);
        let key = key.ok_or(Refusal::NotFound)?;
        if head.method != Method::POST {
            return Err(Refusal::Method);
        }
        let messages = self.lock().waiting.get(key).cloned();
        let messages = messages.ok_or(Refusal::Gone)?;
        let (body, _memory) = self.bodies.read(body, None).await?;
        let verified = self.signing.verify(&head.headers, &body);
        verified.map_err(|_| Refusal::Unsigned)?;
        let message = wire::message(&foreign_json::from_slice(&body)?)?;
        let place = messages.reserve().await.map_err(|_| Refusal::Gone)?;
        // Nothing is awaited between recording the id and passing the message on: a sender that disconnects cannot
        // leave one without the other.
        let id = head.headers.get("webhook-id").map(HeaderValue::as_bytes);
        let admission = self.lock().accepted.admit(id.unwrap_or_default(), key);
        match admission {
            Admission::New => place.send(message),
            // The sender did not receive the first answer.
            Admission::Repeated => {}
            Admission::OfAnother => return Err(Refusal::IdOfAnother),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
