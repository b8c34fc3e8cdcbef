//! Callers with a JWT: signature, issuer, audience and times are checked, and claims become an identity.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use forge_net::Client;

use super::key_set::{KeySet, Source};
use super::verifier;
use super::{Identity, IssuedToken, User, list, sorted};

/// Claims about the token instead of the user. They differ from token to token, and are not passed on.
const OF_THE_TOKEN: [&str; 12] = [
    "iss",
    "aud",
    "exp",
    "nbf",
    "iat",
    "jti",
    "auth_time",
    "at_hash",
    "c_hash",
    "nonce",
    "sid",
    "session_state",
];

/// Settings of callers with a JWT (`[external.jwt]`).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtConfig {
    /// `iss` of the tokens.
    pub issuer: String,
    /// `aud` of the tokens.
    pub audience: String,
    /// Address of the issuer's keys; with `oidc` the issuer names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    pub algorithms: Vec<String>,
    /// Tolerance for the clocks of the issuer and of this machine.
    #[serde(with = "forge_base::duration")]
    pub leeway: Duration,
    /// Claim of the user's id; like the ones below a name, or names with dots between.
    pub user_claim: String,
    pub tenant_claim: String,
    /// Claim with a list of roles, or one role; the first is the main role.
    pub roles_claim: String,
    pub permissions_claim: String,
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: String::new(),
            jwks_url: None,
            algorithms: vec!["RS256".to_owned()],
            leeway: Duration::from_secs(60),
            user_claim: "sub".to_owned(),
            tenant_claim: "tenant_id".to_owned(),
            roles_claim: "roles".to_owned(),
            permissions_claim: "permissions".to_owned(),
        }
    }
}

/// Error in the settings.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("external.jwt.{0} is missing; external.auth = {1:?} needs it")]
    Missing(&'static str, &'static str),
    #[error(
        "external.jwt.algorithms: {0:?} is not one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA"
    )]
    Algorithm(String),
    #[error("external.jwt.jwks_url is no URL: {0}")]
    Address(url::ParseError),
    #[error("external.jwt.algorithms is empty")]
    NoAlgorithm,
}

/// Reason for which a token is not accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("this route needs a JWT: Authorization: Bearer <token>")]
    Missing,
    #[error("the JWT is not accepted: {0}")]
    Invalid(String),
    #[error("the keys of the issuer are not known: {0}")]
    NoKeys(String),
}

/// Verification of tokens by the keys of one issuer.
#[derive(Debug)]
pub(crate) struct Tokens {
    config: JwtConfig,
    algorithms: Vec<Algorithm>,
    keys: KeySet,
    provider: &'static str,
}

impl Tokens {
    /// `provider` is the mode: `jwt` or `oidc`.
    pub(crate) fn new(config: &JwtConfig, provider: &'static str) -> Result<Self, JwtError> {
        verifier::install();
        for (name, value) in [("issuer", &config.issuer), ("audience", &config.audience)] {
            if value.is_empty() {
                return Err(JwtError::Missing(name, provider));
            }
        }
        let source = match (&config.jwks_url, provider) {
            (Some(url), _) => Source::Address(Url::parse(url).map_err(JwtError::Address)?),
            (None, "oidc") => Source::Discovery(config.issuer.clone()),
            (None, _) => return Err(JwtError::Missing("jwks_url", provider)),
        };
        let algorithm = |name: &String| {
            let algorithm = verifier::algorithm(name);
            algorithm.ok_or_else(|| JwtError::Algorithm(name.clone()))
        };
        let algorithms: Vec<_> = config
            .algorithms
            .iter()
            .map(algorithm)
            .collect::<Result<_, _>>()?;
        if algorithms.is_empty() {
            return Err(JwtError::NoAlgorithm);
        }
        Ok(Self {
            config: config.clone(),
            algorithms,
            keys: KeySet::new(source),
            provider,
        })
    }

    /// Identity of the caller with this token.
    pub(crate) async fn identify(
        &self,
        client: &Client,
        token: &[u8],
    ) -> Result<Identity, Refusal> {
        let invalid = |error: jsonwebtoken::errors::Error| Refusal::Invalid(error.to_string());
        let header = decode_header(token).map_err(invalid)?;
        // RFC 7515, 4.1.11: extensions that must be understood, and none is here. Base64 without padding, as the header
        // has just been read.
        let whole = token.split(|byte| *byte == b'.').next();
        let whole = whole.and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let whole: Option<Map<String, Value>> =
            whole.and_then(|json| serde_json::from_slice(&json).ok());
        if whole.is_none_or(|header| header.contains_key("crit")) {
            let message = "its header has crit, extensions that are not understood";
            return Err(Refusal::Invalid(message.to_owned()));
        }
        if !self.algorithms.contains(&header.alg) {
            let message = format!(
                "its algorithm {:?} is not in external.jwt.algorithms",
                header.alg
            );
            return Err(Refusal::Invalid(message));
        }
        let kid = header.kid.as_deref();
        let keys = self.keys.keys(client, kid).await.map_err(Refusal::NoKeys)?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&[&self.config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        validation.leeway = self.config.leeway.as_secs();
        let mut refused = Refusal::Invalid("no key of the issuer has its kid".to_owned());
        for key in keys {
            match decode::<Map<String, Value>>(token, &key, &validation) {
                // The library takes a list that contains the issuer.
                Ok(token) if token.claims.get("iss").is_none_or(|iss| !iss.is_string()) => {
                    return Err(Refusal::Invalid("its iss is not a text".to_owned()));
                }
                Ok(token) => return self.identity(token.claims),
                Err(error) => refused = invalid(error),
            }
        }
        Err(refused)
    }

    fn identity(&self, mut claims: Map<String, Value>) -> Result<Identity, Refusal> {
        let config = &self.config;
        let text = |name: &str| {
            claim(&claims, name)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let texts = |name: &str| claim(&claims, name).map(words).unwrap_or_default();
        let user_id = text(&config.user_claim).filter(|id| !id.trim().is_empty());
        let user_id = user_id
            .ok_or_else(|| Refusal::Invalid(format!("it has no claim {:?}", config.user_claim)))?;
        let tenant_id = text(&config.tenant_claim);
        let roles = texts(&config.roles_claim);
        let permissions = sorted(texts(&config.permissions_claim));
        let subject = text("sub").unwrap_or_else(|| user_id.clone());
        claims.retain(|name, _| !OF_THE_TOKEN.contains(&name.as_str()));
        Ok(Identity::User(Box::new(User {
            tenant_id,
            role: roles.first().cloned(),
            roles,
            permissions,
            token: Some(IssuedToken {
                issuer: config.issuer.clone(),
                audience: config.audience.clone(),
                subject,
                auth_provider: self.provider.to_owned(),
            }),
            user_id,
            claims,
        })))
    }
}

/// Claim of this name, or the member that a name with dots leads to.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        claim(claims.get(first)?.as_object()?, rest)
    })
}

/// Texts of a list, or of a text with spaces or commas between.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().flat_map(list).collect(),
        Value::Array(items) => {
            let texts = items.iter().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}
