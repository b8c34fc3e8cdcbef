//! Bodies of signals: the bytes that are signed, and their JSON.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use serde_json::Value;

use forge_base::json;
use forge_listener::body::{self, Budget};
use forge_signals::FieldProblem;
use forge_signals::sign::Signature;

use super::body::{Refused, not_json, unread};
use super::error::{Failure, problem};
use super::{Config, media_type};

/// Maximum size of a body.
const BODY_BYTES: usize = 64 * 1024;
/// Memory budget for bodies that are still arriving, over all requests, in KiB.
const TEXTS_KIB: usize = 16 * 1024;
const SIGNATURE: HeaderName = HeaderName::from_static("x-forg-signature");
const PROTOCOL: HeaderName = HeaderName::from_static("x-forg-adapter-protocol");
pub(super) const NO_SIGNATURE: &str =
    "X-Forg-Signature must be given once, as sha256= and 64 hexadecimal digits";
/// The only version of the protocol.
const VERSION: &str = "v1";

/// Reader of the bodies of one listener. Cheap to clone.
#[derive(Clone)]
pub(super) struct SignalReader(Arc<body::BodyReader>);

impl SignalReader {
    pub(super) fn new(config: &Config) -> Self {
        Self(Arc::new(body::BodyReader {
            limit_bytes: BODY_BYTES,
            timeout: config.body_timeout,
            budget: Budget::of_kib(TEXTS_KIB),
        }))
    }
}

/// Body of the type JSON, not parsed: a signature is checked first.
pub(super) struct RawBody(pub(super) Bytes);

impl<S> FromRequest<S> for RawBody
where
    S: Send + Sync,
    SignalReader: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let typed = media_type::check(request.headers());
        let SignalReader(reader) = SignalReader::from_ref(state);
        let read = reader.read(request.into_body(), None).await;
        let (bytes, _held) = read.map_err(|error| Refused::Unread(unread(&error)))?;
        typed.map_err(Refused::Read)?;
        Ok(Self(bytes))
    }
}

/// JSON body with the bytes that were signed.
pub(super) struct SignalBody {
    pub(super) bytes: Bytes,
    pub(super) tree: Value,
}

impl<S> FromRequest<S> for SignalBody
where
    S: Send + Sync,
    SignalReader: FromRef<S>,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let RawBody(bytes) = RawBody::from_request(request, state).await?;
        let tree = json::parse(&bytes).map_err(|error| not_json(&error))?;
        Ok(Self { bytes, tree })
    }
}

/// The signature, if it is given once.
pub(super) fn signature(headers: &HeaderMap) -> Option<Signature> {
    let mut given = headers.get_all(SIGNATURE).iter();
    match (given.next(), given.next()) {
        (Some(value), None) => Signature::parse(value.as_bytes()),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// Refuses other versions of the protocol. Without the header it is the only one.
pub(super) fn check_protocol(headers: &HeaderMap) -> Result<(), Failure> {
    match headers
        .get_all(PROTOCOL)
        .iter()
        .all(|value| value == VERSION)
    {
        true => Ok(()),
        false => Err(Failure::field(
            "X-Forg-Adapter-Protocol",
            format!("must be {VERSION}, or absent"),
        )),
    }
}

/// Refuses a signal for its fields.
pub(super) fn invalid(problems: Vec<FieldProblem>) -> Failure {
    let problems = problems.into_iter();
    Failure::fields(
        problems
            .map(|one| problem(&one.field, one.message))
            .collect(),
    )
}
