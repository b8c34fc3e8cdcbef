//! Callers with a JWT: the keys of a real issuer on loopback, which turns them, is away and comes back.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::Map;

use super::*;

pub(super) const AUDIENCE: &str = "bridge";

/// Key of an issuer.
pub(super) struct Key {
    kid: String,
    pair: Ed25519KeyPair,
}

impl Key {
    pub(super) fn new(kid: &str) -> Self {
        let seed = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self {
            kid: kid.to_owned(),
            pair: Ed25519KeyPair::from_pkcs8(seed.as_ref()).unwrap(),
        }
    }

    fn public(&self) -> Value {
        let x = BASE64.encode(self.pair.public_key().as_ref());
        json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": x})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = BASE64.encode(self.pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "EdDSA", "kid": self.kid}), claims)
    }
}

/// Issuer with a discovery document and a set of keys.
pub(super) fn serve(issuer: &CallbackSink, keys: &[&Key]) {
    let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
    let (url, named) = (issuer.url("/keys"), issuer.url(""));
    issuer.answer_with(move |received| {
        let body = match received.path.as_str() {
            "/.well-known/openid-configuration" => json!({"issuer": named, "jwks_uri": url}),
            _ => json!({"keys": keys}),
        };
        Answer::status(200).body(body.to_string())
    });
}

pub(super) fn claims(issuer: &CallbackSink, extra: &Value) -> Value {
    let now = Timestamp::now().as_second();
    let mut claims = json!({
        "iss": issuer.url(""), "aud": AUDIENCE, "sub": "ann", "exp": now + 300, "iat": now,
        "tenant_id": "t1", "roles": ["admin", "dev"], "permissions": "b a", "plan": "pro",
    });
    let extra = extra.as_object().cloned().unwrap_or_default();
    claims.as_object_mut().unwrap().extend(extra);
    let given: Map<String, Value> = claims.as_object().cloned().unwrap();
    given
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .collect()
}

async fn setup(service: &CallbackSink, issuer: &CallbackSink, auth: &str) -> Setup {
    let jwks = match auth {
        "jwt" => format!("jwks_url = {:?}\n", issuer.url("/keys")),
        _ => String::new(),
    };
    let settings = format!(
        "auth = {auth:?}\n[external.jwt]\nissuer = {:?}\naudience = {AUDIENCE:?}\n{jwks}algorithms = [\"EdDSA\"]\n",
        issuer.url("")
    );
    let mut probe = probe(service);
    probe["entries"][0]["policy"] = json!("admins");
    let settings = format!("{settings}[external.policies.admins]\nroles = [\"admin\"]\n");
    Setup::with(
        &[probe],
        &settings,
        &[("BRIDGE_TOKENS", "bridge-token-bridge-token")],
    )
    .await
}

async fn call(setup: &Setup, token: Option<&str>) -> (u16, Value) {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let header = bearer.as_deref().map(|value| ("authorization", value));
    let headers: Vec<_> = header.into_iter().collect();
    let (status, body) = setup.post(COMMAND, &json!({"args": {}}), &headers).await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn the_claims_of_a_token_are_the_caller() {
    for auth in ["jwt", "oidc"] {
        let (service, issuer) = (sink_with(json!(1)).await, CallbackSink::start().await);
        let key = Key::new("k1");
        serve(&issuer, &[&key]);
        let setup = setup(&service, &issuer, auth).await;
        let token = key.token(&claims(&issuer, &json!({})));
        let (status, answer) = call(&setup, Some(&token)).await;
        assert_eq!(status, 200, "{answer}");
        let received = service.until(1).await.remove(0);
        let sent: Value = serde_json::from_slice(&received.body).unwrap();
        let issuer_named = issuer.url("");
        assert_eq!(
            sent["auth"],
            json!({
                "kind": "user", "userId": "ann", "tenantId": "t1", "role": "admin", "roles": ["admin", "dev"],
                "permissions": ["a", "b"],
                "claims": {"sub": "ann", "tenant_id": "t1", "roles": ["admin", "dev"], "permissions": "b a", "plan": "pro"},
                "token": {"issuer": issuer_named, "audience": AUDIENCE, "subject": "ann", "authProvider": auth},
            })
        );
        assert_eq!(received.headers["authorization"], format!("Bearer {token}"));
        let guest = key.token(&claims(&issuer, &json!({"roles": ["guest"]})));
        let (status, answer) = call(&setup, Some(&guest)).await;
        assert_eq!(
            (status, &answer["code"]),
            (403, &json!("FORGE_POLICY_DENIED"))
        );
        setup.bridge.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_is_not_right_is_refused() {
    let (service, issuer) = (sink_with(json!(1)).await, CallbackSink::start().await);
    let (key, stranger) = (Key::new("k1"), Key::new("k1"));
    serve(&issuer, &[&key]);
    let setup = setup(&service, &issuer, "jwt").await;
    let now = Timestamp::now().as_second();
    let with = |extra: Value| key.token(&claims(&issuer, &extra));
    let own = claims(&issuer, &json!({}));
    // Signed with what everybody can read, as if it were a secret.
    let confused = json!({"alg": "HS256", "kid": "k1"});
    let none = json!({"alg": "none"});
    let extended = json!({"alg": "EdDSA", "kid": "k1", "crit": ["exp"]});
    let listed = json!({"iss": [issuer.url(""), "https://other.example"]});
    for (name, token) in [
        ("another audience", with(json!({"aud": "other"}))),
        (
            "another issuer",
            with(json!({"iss": "https://other.example"})),
        ),
        ("expired", with(json!({"exp": now - 120}))),
        ("not yet valid", with(json!({"nbf": now + 120}))),
        ("without an end", with(json!({"exp": null}))),
        ("without a user", with(json!({"sub": null}))),
        ("another key of this name", stranger.token(&own)),
        ("an unknown key", Key::new("k9").token(&own)),
        ("a symmetric algorithm", key.sign(&confused, &own)),
        ("no algorithm", key.sign(&none, &own)),
        ("an extension", key.sign(&extended, &own)),
        ("a list of issuers", with(listed)),
        ("a changed claim", with(json!({})).replacen("e", "f", 1)),
        ("no JWT", "no.j-w-t".to_owned()),
        (
            "a token of the bridge",
            "bridge-token-bridge-token".to_owned(),
        ),
    ] {
        let (status, answer) = call(&setup, Some(&token)).await;
        let code = answer["code"].as_str().unwrap();
        assert_eq!(
            (status, code),
            (401, "FORGE_AUTH_INVALID"),
            "{name}: {answer}"
        );
        assert!(!answer.to_string().contains(&token), "{name}: {answer}");
    }
    let (status, answer) = call(&setup, None).await;
    assert_eq!(
        (status, &answer["code"]),
        (401, &json!("FORGE_AUTH_REQUIRED"))
    );
    // Within the leeway of a minute.
    let late = with(json!({"exp": now - 30}));
    assert_eq!(call(&setup, Some(&late)).await.0, 200);
    // One fetch for the first token; the one for an unknown key waits its time.
    assert!(issuer.received().len() <= 2, "{}", issuer.received().len());
    assert_eq!(service.received().len(), 1);
    // Every other route wants a token of the bridge.
    let (status, _) = setup.bridge.api.get("/api/v2/external").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn an_issuer_that_is_away_is_no_fault_of_the_caller() {
    let (service, issuer) = (sink_with(json!(1)).await, CallbackSink::start().await);
    let key = Key::new("k1");
    issuer.answer(Answer::status(500));
    let setup = setup(&service, &issuer, "oidc").await;
    let token = key.token(&claims(&issuer, &json!({})));
    let (status, answer) = call(&setup, Some(&token)).await;
    assert_eq!(
        (status, &answer["code"]),
        (503, &json!("FORGE_AUTH_UNAVAILABLE")),
        "{answer}"
    );
    assert!(service.received().is_empty());
    setup.bridge.stop().await;
}

#[tokio::test]
async fn keys_belong_to_the_issuer_the_tenant_and_the_user() {
    let (service, issuer) = (sink_with(json!(1)).await, CallbackSink::start().await);
    let key = Key::new("k1");
    serve(&issuer, &[&key]);
    let setup = setup(&service, &issuer, "jwt").await;
    let callers = [
        json!({}),
        json!({"tenant_id": "t2"}),
        json!({"sub": "ben"}),
        json!({"tenant_id": null}),
    ];
    for (n, extra) in callers.iter().enumerate() {
        let bearer = format!("Bearer {}", key.token(&claims(&issuer, extra)));
        let headers = [
            ("authorization", bearer.as_str()),
            ("idempotency-key", "key"),
        ];
        for _ in 0..2 {
            let (status, answer) = setup
                .post(COMMAND, &json!({"args": {"n": n}}), &headers)
                .await;
            assert_eq!(status.as_u16(), 200, "{extra}: {answer}");
        }
        // Each has called it once.
        assert_eq!(service.until(n + 1).await.len(), n + 1, "{extra}");
    }
    setup.bridge.stop().await;
}
