//! Listener of the local agent: tools on this machine open sessions and send signed signals. No token is asked for;
//! pages of a browser are refused unless `http.origins` names them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::{Value, json};

use forge_base::{json as bounded, time};
use forge_listener::body::{self, Budget};
use forge_signals::FieldProblem;
use forge_signals::agent::{Agent, EmitError, StartError};
use forge_signals::sign::Signature;

use super::body::{Refused, not_json, unread};
use super::error::{Code, Failure, problem};
use super::origin_guard::{OriginRules, Pages};
use super::query::NoQuery;
use super::traffic::Traffic;
use super::{Config, Middleware, apply_middleware, request_span};

/// Maximum size of a body.
const BODY_BYTES: usize = 64 * 1024;
/// Memory budget for bodies that are still arriving, over all requests, in KiB.
const TEXTS_KIB: usize = 16 * 1024;
const SIGNATURE: HeaderName = HeaderName::from_static("x-forg-signature");

#[derive(Clone)]
struct Shared {
    agent: Agent,
    bodies: Arc<body::BodyReader>,
}

/// Routes of the listener on this address.
pub fn router(agent: Agent, config: &Arc<Config>, listen: SocketAddr) -> Router {
    let shared = Shared {
        agent,
        bodies: Arc::new(body::BodyReader {
            limit_bytes: BODY_BYTES,
            timeout: config.body_timeout,
            budget: Budget::of_kib(TEXTS_KIB),
        }),
    };
    let middleware = Middleware {
        rules: OriginRules {
            config: Arc::clone(config),
            listen,
            pages: Pages::Named,
        },
        traffic: Traffic::default(),
    };
    Router::new()
        .route("/health", get(health))
        .route("/session/start", post(start))
        .route("/emit", post(emit))
        .fallback(request_span::unknown_route)
        .method_not_allowed_fallback(request_span::wrong_method)
        .layer(from_fn_with_state(Arc::new(middleware), apply_middleware))
        .with_state(shared)
}

async fn health(_: NoQuery) -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

async fn start(
    State(Shared { agent, .. }): State<Shared>,
    _: NoQuery,
    SignalBody { tree, .. }: SignalBody,
) -> Result<Json<Value>, Failure> {
    let started = agent.start(&tree).await?;
    Ok(Json(json!({
        "session_id": started.session_id, "session_key": started.session_key,
        "expires_at": time::format(started.expires_at),
    })))
}

async fn emit(
    State(Shared { agent, .. }): State<Shared>,
    _: NoQuery,
    headers: HeaderMap,
    SignalBody { bytes, tree }: SignalBody,
) -> Result<Json<Value>, Failure> {
    let emitted = agent.emit(&bytes, &tree, signature(&headers)).await?;
    let told = emitted.verdict.intervention;
    let mut answer =
        json!({ "blocked": emitted.verdict.blocked, "session_id": emitted.session_id });
    if let Some(told) = told {
        answer["message"] = told.message.into();
        answer["intervention_id"] = told.id.into();
    }
    Ok(Json(answer))
}

/// The signature, if it is given once.
fn signature(headers: &HeaderMap) -> Option<Signature> {
    let mut given = headers.get_all(SIGNATURE).iter();
    match (given.next(), given.next()) {
        (Some(value), None) => Signature::parse(value.as_bytes()),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// JSON body with the bytes that were signed.
struct SignalBody {
    bytes: Bytes,
    tree: Value,
}

impl FromRequest<Shared> for SignalBody {
    type Rejection = Refused;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Refused> {
        let is_json = is_json(request.headers().get(header::CONTENT_TYPE));
        let read = shared.bodies.read(request.into_body(), None).await;
        let (bytes, _held) = read.map_err(|error| Refused::Unread(unread(&error)))?;
        if !is_json {
            let failure = Failure::field("Content-Type", "must be application/json");
            return Err(Refused::Read(failure));
        }
        let tree = bounded::parse(&bytes).map_err(|error| not_json(&error))?;
        Ok(Self { bytes, tree })
    }
}

fn is_json(value: Option<&HeaderValue>) -> bool {
    let text = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn fields(problems: Vec<FieldProblem>) -> Failure {
    let problems = problems.into_iter();
    Failure::fields(
        problems
            .map(|one| problem(&one.field, one.message))
            .collect(),
    )
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Invalid(problems) => fields(problems),
            StartError::Full(_) => Failure::new(Code::RateLimited, error.to_string()),
            StartError::Store(error) => error.into(),
        }
    }
}

impl From<EmitError> for Failure {
    fn from(error: EmitError) -> Self {
        match error {
            EmitError::Unauthorized(reason) => Failure::new(Code::Unauthorized, reason),
            EmitError::Invalid(problems) => fields(problems),
        }
    }
}
