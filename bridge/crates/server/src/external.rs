//! Routes of external services: calls of commands and queries, and the list of services. Failed calls are answered with
//! the error envelope and the members of the Forge protocol.

use axum::Json;
use axum::extract::{FromRef, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::auth::{Auth, Caller, Reader, Sender, bearer};
use super::body::Body;
use super::durable_command::Durably;
use super::error::{Code, Failure};
use super::query::NoQuery;
use forge_base::trace::{TraceContext, TraceId};
use forge_external::manifest::EntryKind;
use forge_external::{Answered, AuthMode, Call, External, Identity, Outcome, Refusal, Repeat};
use forge_store::record::KeyOwner;

/// Beginning of the paths whose errors have the members of the Forge protocol.
const PREFIX: &str = "/external/";
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACE_ID: HeaderName = HeaderName::from_static("x-forge-trace-id");
/// Credentials for the service, where `Authorization` holds a token of the bridge.
const FORWARDED: HeaderName = HeaderName::from_static("x-forge-forward-authorization");

pub(super) async fn list(_: Reader, _: NoQuery, State(external): State<External>) -> Json<Value> {
    Json(external.overview())
}

pub(super) async fn command(
    caller: ServiceCaller,
    _: NoQuery,
    durably: Durably,
    target: Target,
    body: Option<Body>,
) -> Result<Response, Failure> {
    call(EntryKind::Command, caller, target, body, Some(durably)).await
}

pub(super) async fn query(
    caller: ServiceCaller,
    _: NoQuery,
    target: Target,
    body: Option<Body>,
) -> Result<Response, Failure> {
    call(EntryKind::Query, caller, target, body, None).await
}

/// Caller of an entry: with a token of the bridge, or with a JWT where the settings ask for one.
pub(super) struct ServiceCaller {
    identity: Identity,
    key_owner: KeyOwner,
}

impl<S> FromRequestParts<S> for ServiceCaller
where
    S: Send + Sync,
    External: FromRef<S>,
    Auth: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let (external, auth) = (External::from_ref(state), Auth::from_ref(state));
        if let AuthMode::Token | AuthMode::DevHeaders = external.auth() {
            let Sender(caller) = Sender::from_request_parts(parts, state).await?;
            return Ok(Self {
                identity: identity(&external, &auth, caller, &parts.headers),
                key_owner: caller.key_owner,
            });
        }
        let identified = external.identify(bearer(&parts.headers)).await;
        let with_keys = |identity: Identity| Self {
            key_owner: key_owner(&identity),
            identity,
        };
        identified.map(with_keys).map_err(|refusal| {
            let (code, named) = match refusal {
                Refusal::Missing => (Code::Unauthorized, "FORGE_AUTH_REQUIRED"),
                Refusal::Invalid(_) => (Code::Unauthorized, "FORGE_AUTH_INVALID"),
                Refusal::NoKeys(_) => (Code::ServiceUnavailable, "FORGE_AUTH_UNAVAILABLE"),
            };
            let message = refusal.to_string();
            let trace = parts.extensions.get::<TraceContext>().copied();
            let trace = trace.unwrap_or_else(TraceContext::start);
            let protocol = Protocol {
                code: Some(named.to_owned()),
                ..Protocol::of(trace, named, &message)
            };
            Failure::new(code, message).of_protocol(protocol)
        })
    }
}

/// Owner of the idempotency keys of a caller with a JWT: the user of this issuer and tenant.
fn key_owner(identity: &Identity) -> KeyOwner {
    let user = match identity {
        Identity::User(user) => Some(user),
        Identity::System { .. } | Identity::Anonymous => None,
    };
    let token = user.and_then(|user| user.token.as_ref());
    let issuer = token.map(|token| token.issuer.as_str());
    let id = user.map(|user| user.user_id.as_str());
    KeyOwner::of("jwt", &[issuer, identity.tenant(), id])
}

/// Identity of a caller with a token of the bridge towards external services.
pub(super) fn identity(
    external: &External,
    auth: &Auth,
    caller: Caller,
    headers: &HeaderMap,
) -> Identity {
    match external.auth() {
        // A JWT is checked on the routes of the services alone.
        AuthMode::Token | AuthMode::Jwt | AuthMode::Oidc => auth.identity(caller),
        AuthMode::DevHeaders => {
            Identity::of_headers(|name| headers.get(name).and_then(|value| value.to_str().ok()))
        }
    }
}

async fn call(
    kind: EntryKind,
    caller: ServiceCaller,
    target: Target,
    body: Option<Body>,
    durably: Option<Durably>,
) -> Result<Response, Failure> {
    let Target {
        external,
        auth,
        trace: begun,
        headers,
        service,
        entry,
    } = target;
    let calling = caller_trace(&headers);
    let trace = external.span_of_call(calling, begun);
    let authorization = match external.auth() {
        AuthMode::Token => headers.get(FORWARDED),
        AuthMode::DevHeaders | AuthMode::Jwt | AuthMode::Oidc => headers.get(header::AUTHORIZATION),
    };
    let authorization = authorization.filter(|value| !auth.has_token(value.as_bytes()));
    let (tree, room) = body.map_or_else(Default::default, Body::into_parts);
    let call = Call {
        kind,
        service: &service,
        entry: &entry,
        args: args(tree)?,
        caller: &caller.identity,
        trace,
        parent: calling.map(|calling| calling.span),
        authorization: authorization.cloned(),
        idempotency_key: None,
    };
    let prepared = external.prepare(&call);
    if let (Some(durably), Ok(prepared)) = (durably, &prepared)
        && (prepared.is_held() || headers.contains_key(IDEMPOTENCY_KEY))
    {
        drop(room);
        return durably.answer(call, caller.key_owner, &headers).await;
    }
    // The service can take long, and others need the memory.
    drop((call.args, room));
    let answered = match prepared {
        Ok(prepared) => prepared.send(Repeat::Briefly).await,
        Err(answered) => answered,
    };
    answer(answered)
}

/// `args` of a body; none are an empty object.
fn args(body: Option<Value>) -> Result<Value, Failure> {
    let args = match body {
        None => None,
        Some(Value::Object(mut body)) => body.remove("args"),
        Some(_) => {
            let message = "the body must be a JSON object such as {\"args\": {}}";
            return Err(Failure::field("", message));
        }
    };
    Ok(args
        .filter(|args| !args.is_null())
        .unwrap_or_else(|| Value::Object(Map::new())))
}

pub(super) fn answer(answered: Answered) -> Result<Response, Failure> {
    let Answered {
        outcome,
        result,
        diagnostics,
        trace_id,
    } = answered;
    let code = match outcome {
        Outcome::Done => {
            let header = HeaderValue::try_from(&trace_id).expect("a trace id is visible ASCII");
            let body = json!({
                "ok": true, "result": result, "diagnostics": diagnostics, "traceId": trace_id,
            });
            return Ok(([(TRACE_ID, header)], Json(body)).into_response());
        }
        Outcome::Denied => Code::Forbidden,
        Outcome::Refused | Outcome::Failed => Code::InvalidRequest,
        Outcome::TimedOut => Code::ServiceTimeout,
        Outcome::Unavailable(_) => Code::ServiceUnavailable,
    };
    let last = diagnostics.last();
    let text = |key: &str| last.and_then(|last| last[key].as_str()).map(str::to_owned);
    let failure = Failure::new(code, text("message").unwrap_or_default());
    let failure = match outcome {
        Outcome::Unavailable(wait) => failure.after(wait),
        _ => failure,
    };
    Err(failure.of_protocol(Protocol {
        code: text("code"),
        diagnostics,
        trace_id,
    }))
}

/// Members that a failed call has besides the error envelope.
#[derive(Clone, Debug)]
pub(super) struct Protocol {
    code: Option<String>,
    diagnostics: Vec<Value>,
    trace_id: String,
}

impl Protocol {
    /// Members for a failure that has none of its own.
    pub(super) fn of(trace: TraceContext, code: &str, message: &str) -> Self {
        Self {
            code: None,
            diagnostics: vec![json!({ "severity": "error", "code": code, "message": message })],
            trace_id: TraceId(trace.trace).to_string(),
        }
    }

    /// Adds the members to an envelope, and the trace id to the headers.
    pub(super) fn complete(self, body: &mut Value, headers: &mut HeaderMap) {
        if let Ok(header) = HeaderValue::try_from(&self.trace_id) {
            headers.insert(TRACE_ID, header);
        }
        if let Some(code) = self.code {
            body["code"] = code.into();
        }
        body["ok"] = false.into();
        body["diagnostics"] = self.diagnostics.into();
        body["traceId"] = self.trace_id.into();
    }
}

/// True for requests to external services.
pub(super) fn is_call(request: &Request) -> bool {
    request.uri().path().starts_with(PREFIX)
}

/// Trace of a request to an external service: the caller's, or a new one. `None` for all other requests.
pub(super) fn trace(request: &Request) -> Option<TraceContext> {
    is_call(request).then(|| caller_trace(request.headers()).unwrap_or_else(TraceContext::start))
}

fn caller_trace(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get("traceparent")?.to_str().ok()?)
}

/// Adds the protocol's own code to the refusal of a method.
pub(super) fn wrong_method(failure: Failure, request: &Request) -> Failure {
    let Some(trace) = request.extensions().get::<TraceContext>() else {
        return failure;
    };
    let code = "FORGE_DEV_INVOKE_FAILED";
    let message = format!("{}; POST {{\"args\": {{}}}}", failure.message());
    let protocol = Protocol {
        code: Some(code.to_owned()),
        ..Protocol::of(*trace, code, &message)
    };
    failure.saying(message).of_protocol(protocol)
}

/// Everything that a call needs of a request besides its caller and its body.
pub(super) struct Target {
    external: External,
    auth: Auth,
    trace: TraceContext,
    headers: HeaderMap,
    /// Names in the path, decoded.
    service: String,
    entry: String,
}

impl<S> FromRequestParts<S> for Target
where
    S: Send + Sync,
    External: FromRef<S>,
    Auth: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let malformed = || {
            let message = "the path contains a % that begins no escape of UTF-8, such as %2F";
            Failure::new(Code::InvalidRequest, message)
        };
        let mut escapes = parts.uri.path().split('%').skip(1);
        let digits = |text: &str| {
            let digits = text.as_bytes().get(..2);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        if !escapes.all(digits) {
            return Err(malformed());
        }
        let names = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((service, entry)) = names.map_err(|_| malformed())?;
        let trace = parts.extensions.get::<TraceContext>().copied();
        Ok(Self {
            external: External::from_ref(state),
            auth: Auth::from_ref(state),
            trace: trace.unwrap_or_else(TraceContext::start),
            headers: parts.headers.clone(),
            service,
            entry,
        })
    }
}
