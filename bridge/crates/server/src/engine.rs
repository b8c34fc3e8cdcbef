//! Engine API: signals that adapters sign with their token.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use forge_base::json as bounded;
use forge_signals::engine::{Action, Answer, Engine, ReceiveError};
use forge_signals::refusal::{Api, Reason, Refusals};

use super::auth::{Auth, SigningCaller};
use super::body::{Refused, not_json};
use super::error::{Code, Failure};
use super::query::NoQuery;
use super::signal_body::{self, RawBody, check_protocol, invalid, signature};

/// Takes a signal. The order of the checks is part of the protocol: token, size, type, signature, JSON, fields.
pub(super) async fn receive(
    _: NoQuery,
    caller: SigningCaller,
    State(engine): State<Engine>,
    State(auth): State<Auth>,
    State(refusals): State<Refusals>,
    headers: HeaderMap,
    RawBody(bytes): RawBody,
) -> Result<Json<Value>, Refused> {
    let signature = signature(&headers);
    if !signature.is_some_and(|signature| caller.has_signed(&bytes, &signature)) {
        let (reason, message) = match signature {
            None => (Reason::SignatureForm, signal_body::NO_SIGNATURE),
            Some(_) => (
                Reason::Signature,
                "the signature is not that of the body under the first 32 bytes of the token",
            ),
        };
        let failure = auth.refuse_signature(&caller, message);
        if failure.code() == Code::Unauthorized {
            let tree = bounded::parse(&bytes).unwrap_or_default();
            let adapter = tree["adapter_id"].as_str().or(tree["adapter"].as_str());
            refusals.count(Api::Engine, adapter, reason);
        }
        return Err(Refused::Read(failure));
    }
    let tree = bounded::parse(&bytes).map_err(|error| not_json(&error))?;
    check_protocol(&headers).map_err(Refused::Read)?;
    let received = engine.receive(&caller.into_engine(), &bytes, &tree).await;
    let answer = received.map_err(|error| Refused::Read(error.into()))?;
    Ok(Json(body(answer)))
}

fn body(answer: Answer) -> Value {
    let mut body = json!({
        "action": answer.action.as_str(), "session_id": answer.session_id, "logged": answer.logged,
    });
    if let Action::Intervention {
        id,
        message,
        severity,
    } = answer.action
    {
        body["intervention_id"] = id.into();
        body["message"] = message.into();
        body["severity"] = json!(severity);
    }
    if let Some(signal_id) = answer.signal_id {
        body["ok"] = true.into();
        body["signal_id"] = signal_id.into();
    }
    body
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Invalid(problems) => invalid(problems),
            ReceiveError::Full(_) => Failure::new(Code::RateLimited, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use forge_base::digest::{MacKey, hex};

    use super::super::testing::Edge;
    use super::super::token::{Scope, TokenHash};
    use super::super::{Config, auth};
    use super::*;

    const TOKEN: &str = "a token of more than thirty-two bytes";

    fn tokens(scopes: Vec<Scope>) -> auth::Config {
        let hash = TokenHash {
            hash: hex(&forge_base::digest::sha256(TOKEN)),
            name: Some("team".to_owned()),
            scopes,
            expires: None,
            requests_per_minute: None,
            space: None,
            identity: None,
        };
        auth::Config {
            token: vec![hash],
            ..auth::Config::default()
        }
    }

    /// Signs a body, unless the key is empty.
    fn request(token: &str, key: &str, kind: &str, body: Vec<u8>) -> Request<Body> {
        let mut request = Request::post("/engine/v1/signals").header("content-type", kind);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if !key.is_empty() {
            let digits = hex(&MacKey::new(&key.as_bytes()[..32]).mac([&body[..]]));
            request = request.header("x-forg-signature", format!("sha256={digits}"));
        }
        request.body(body.into()).unwrap()
    }

    /// Each request has the faults of all that follow it too, so that only the order decides.
    #[tokio::test]
    async fn a_token_is_checked_before_the_body_and_its_signature_before_the_json() {
        let (json, text) = ("application/json", "text/plain");
        let large = || vec![b'{'; 1024 * 1024];
        let signals = || vec![Scope::Signals];
        for (scopes, token, key, kind, body, expected) in [
            (signals(), "", "", text, large(), 401),
            (signals(), "unknown", "", text, large(), 401),
            (vec![Scope::Dispatch], TOKEN, "", text, large(), 403),
            (signals(), TOKEN, "", text, large(), 413),
            (signals(), TOKEN, "", text, b"{".to_vec(), 415),
            (signals(), TOKEN, "", json, b"{".to_vec(), 401),
            (signals(), TOKEN, TOKEN, json, b"{".to_vec(), 400),
            (
                signals(),
                TOKEN,
                TOKEN,
                json,
                b"{\"type\": \"a\"}".to_vec(),
                200,
            ),
        ] {
            let edge = Edge::with(Config::default(), &tokens(scopes)).await;
            let sent = edge.send(request(token, key, kind, body));
            assert_eq!(sent.await.status, expected, "{token} {key} {kind}");
        }
        // Without tokens the bearer is asked for all the same, and before the body is read.
        let edge = Edge::new().await;
        assert_eq!(edge.send(request("", "", text, large())).await.status, 401);
    }

    #[tokio::test]
    async fn the_user_of_a_signal_is_the_name_of_its_token() {
        let edge = Edge::with(Config::default(), &tokens(vec![Scope::Signals])).await;
        let body = b"{\"type\": \"mood\", \"session_id\": \"s\"}".to_vec();
        let sent = edge.send(request(TOKEN, TOKEN, "application/json", body));
        let expected = json!({"action": "log", "session_id": "s", "logged": true});
        assert_eq!(sent.await.json(), expected);
        let filter = forge_store::record::SignalSessionFilter {
            limit: 1,
            ..Default::default()
        };
        let page = edge.store.signal_sessions(filter).await.unwrap();
        assert_eq!(page.items[0].user_id.as_deref(), Some("team"));
    }
}
