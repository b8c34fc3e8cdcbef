//! Listener of the local agent: tools on this machine open sessions and send signed signals. No token is asked for;
//! pages of a browser are refused unless `http.origins` names them. The main listener has two of the routes too.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{FromRef, State};
use axum::http::HeaderMap;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use forge_base::time;
use forge_signals::agent::{Agent, EmitError, StartError};
use forge_signals::refusal::{Api, Reason, Refusals};
use forge_store::Store;

use super::auth::SessionStarter;
use super::error::{Code, Failure};
use super::origin_guard::{OriginRules, Pages};
use super::query::NoQuery;
use super::signal_body::{SignalBody, SignalReader, check_protocol, invalid, signature};
use super::traffic::Traffic;
use super::{Config, Middleware, apply_middleware, request_span};

/// Routes that the main listener has too.
pub(super) const ON_BOTH: [&str; 2] = ["/session/start", "/emit"];

#[derive(Clone)]
struct Shared {
    agent: Agent,
    refusals: Refusals,
    reader: SignalReader,
}

impl FromRef<Shared> for Agent {
    fn from_ref(shared: &Shared) -> Self {
        shared.agent.clone()
    }
}

impl FromRef<Shared> for Refusals {
    fn from_ref(shared: &Shared) -> Self {
        shared.refusals.clone()
    }
}

impl FromRef<Shared> for SignalReader {
    fn from_ref(shared: &Shared) -> Self {
        shared.reader.clone()
    }
}

/// Routes of the listener on this address.
pub fn router(
    agent: Agent,
    refusals: Refusals,
    store: Arc<dyn Store>,
    config: &Arc<Config>,
    listen: SocketAddr,
) -> Router {
    let shared = Shared {
        agent,
        refusals,
        reader: SignalReader::new(config),
    };
    let middleware = Middleware {
        rules: OriginRules {
            config: Arc::clone(config),
            listen,
            pages: Pages::Named,
        },
        store,
        traffic: Traffic::default(),
        node: None,
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

/// Routes on the main listener, where other machines can start sessions too: with a token.
pub(super) fn on_main() -> Router<super::Shared> {
    Router::new()
        .route("/session/start", post(start_with_token))
        .route("/emit", post(emit))
}

async fn health(_: NoQuery) -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

async fn start_with_token(
    _: SessionStarter,
    agent: State<Agent>,
    query: NoQuery,
    headers: HeaderMap,
    body: SignalBody,
) -> Result<Json<Value>, Failure> {
    start(agent, query, headers, body).await
}

async fn start(
    State(agent): State<Agent>,
    _: NoQuery,
    headers: HeaderMap,
    SignalBody { tree, .. }: SignalBody,
) -> Result<Json<Value>, Failure> {
    check_protocol(&headers)?;
    let started = agent.start(&tree).await?;
    Ok(Json(json!({
        "session_id": started.session_id, "session_key": started.session_key,
        "expires_at": time::format(started.expires_at),
    })))
}

async fn emit(
    State(agent): State<Agent>,
    State(refusals): State<Refusals>,
    _: NoQuery,
    headers: HeaderMap,
    SignalBody { bytes, tree }: SignalBody,
) -> Result<Json<Value>, Failure> {
    check_protocol(&headers)?;
    let signature = signature(&headers);
    let emitted = agent.emit(&bytes, &tree, signature).await;
    let emitted = emitted.inspect_err(|error| {
        if let EmitError::Unauthorized(_) = error {
            let reason = signature.map_or(Reason::SignatureForm, |_| Reason::Signature);
            refusals.count(Api::Agent, tree["adapter"].as_str(), reason);
        }
    })?;
    let told = emitted.verdict.intervention;
    let mut answer = json!({
        "blocked": emitted.verdict.blocked, "session_id": emitted.session_id, "logged": emitted.is_logged,
    });
    if let Some(told) = told {
        answer["message"] = told.message.into();
        answer["intervention_id"] = told.id.into();
    }
    Ok(Json(answer))
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Invalid(problems) => invalid(problems),
            StartError::Full(_) => Failure::new(Code::RateLimited, error.to_string()),
            StartError::Store(error) => error.into(),
        }
    }
}

impl From<EmitError> for Failure {
    fn from(error: EmitError) -> Self {
        match error {
            EmitError::Unauthorized(reason) => Failure::new(Code::Unauthorized, reason),
            EmitError::Invalid(problems) => invalid(problems),
        }
    }
}
