//! Authentication by bearer tokens, of which only hashes are kept, and one extractor for each scope.

mod credentials;
mod signals;
mod watcher;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use forge_base::digest::{hex, sha256};
use forge_external::Identity;
use forge_store::record::KeyOwner;

use super::error::{Code, Failure};
use super::limit::{Failed, Hash, Meter, Peer, Peers, Rate};
use super::origin_guard::ForeignHost;
use super::token::{Scope, Token, TokenHash, Tokens, bits, parse_hash};

pub(super) use signals::{SessionStarter, SigningCaller};
pub(super) use watcher::{StreamAccess, Watcher};

/// Length in bytes below which a plain token counts as guessable.
const SHORT: usize = 16;

/// Valid tokens and rate limits. Several tokens can be valid at once, so that a rotation overlaps.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens in plain text, with all scopes: `BRIDGE_TOKENS`.
    #[serde(with = "forge_base::secret::list")]
    pub tokens: Vec<SecretString>,
    /// Tokens given by their hash.
    pub token: Vec<TokenHash>,
    /// Invalid tokens per minute from one address; further invalid ones are answered 429. 0: no limit.
    pub failures_per_minute: u32,
    /// Requests per minute with one token; further ones are answered 429. 0: no limit.
    pub requests_per_minute: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            token: Vec::new(),
            failures_per_minute: 30,
            requests_per_minute: 0,
        }
    }
}

impl Config {
    pub fn has_tokens(&self) -> bool {
        !(self.tokens.is_empty() && self.token.is_empty())
    }

    /// Positions, from 1, of plain tokens shorter than 16 bytes.
    pub fn short_tokens(&self) -> impl Iterator<Item = usize> + '_ {
        let numbered = (1..).zip(&self.tokens);
        numbered
            .filter(|(_, token)| token.expose_secret().len() < SHORT)
            .map(|(number, _)| number)
    }
}

/// Valid tokens and the state of the rate limits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Auth {
    tokens: watch::Sender<Arc<Tokens>>,
    peers: Arc<Peers>,
    since: Instant,
}

/// Caller of an authenticated request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Hash of the caller's token; `None` if no tokens are configured.
    pub(super) token: Option<Hash>,
    /// Owner of its idempotency keys and task ids.
    pub(super) key_owner: KeyOwner,
    /// True if it has the scope `read`.
    pub(super) may_read: bool,
}

impl Caller {
    /// Any caller, where no tokens are configured.
    const ANYONE: Self = Self {
        token: None,
        key_owner: KeyOwner::EVERYONE,
        may_read: true,
    };

    fn of(token: &Token) -> Self {
        Self {
            token: Some(token.hash),
            key_owner: token.key_owner,
            may_read: token.permits(Scope::Read, Timestamp::now()).is_ok(),
        }
    }
}

/// Error in the configured tokens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All of them, so that none hides another.
    #[error("{}", joined(.0))]
    Tokens(Vec<TokenError>),
    #[error(
        "{0} can be reached from other machines and no token is configured; set BRIDGE_TOKENS or listen on 127.0.0.1"
    )]
    OpenToTheNetwork(SocketAddr),
}

/// Error in one token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("token {number} of auth.tokens is empty")]
    Empty { number: usize },
    #[error("auth.token[{index}].hash is not a SHA-256 in 64 hexadecimal digits")]
    MalformedHash { index: usize },
    #[error("auth.token[{index}].identity.user_id is empty")]
    EmptyUser { index: usize },
    #[error("auth.token[{index}].space is empty")]
    EmptySpace { index: usize },
}

/// Owner of the keys of a token: its space, else its name and its identity, else the token itself.
fn key_owner(token: &TokenHash, hash: &Hash) -> KeyOwner {
    if let Some(space) = &token.space {
        return KeyOwner::of("space", &[Some(space)]);
    }
    let identity = token.identity.as_ref();
    if token.name.is_none() && identity.is_none() {
        return key_owner_of_hash(hash);
    }
    let user = identity.map(|identity| identity.user_id.as_str());
    let tenant = identity.and_then(|identity| identity.tenant_id.as_deref());
    KeyOwner::of("token", &[token.name.as_deref(), tenant, user])
}

/// Owner of the keys of a token that has no name.
fn key_owner_of_hash(hash: &Hash) -> KeyOwner {
    KeyOwner::of("hash", &[Some(&hex(hash))])
}

fn joined(errors: &[TokenError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl Auth {
    pub fn new(config: &Config) -> Result<Self, Error> {
        let general = Rate::per_minute(config.requests_per_minute);
        let (mut list, mut errors) = (Vec::new(), Vec::new());
        for (number, token) in (1..).zip(&config.tokens) {
            if token.expose_secret().trim().is_empty() {
                errors.push(TokenError::Empty { number });
            }
            let hash = sha256(token.expose_secret());
            list.push(Token {
                hash,
                key_owner: key_owner_of_hash(&hash),
                name: None,
                scopes: bits(&Scope::all()),
                expires: None,
                rate: general,
                meter: Meter::default(),
                identity: Identity::Anonymous,
            });
        }
        for (index, token) in config.token.iter().enumerate() {
            let Some(hash) = parse_hash(&token.hash) else {
                errors.push(TokenError::MalformedHash { index });
                continue;
            };
            let user = token.identity.as_ref().map(|identity| &identity.user_id);
            if user.is_some_and(|user| user.trim().is_empty()) {
                errors.push(TokenError::EmptyUser { index });
            }
            let space = token.space.as_deref();
            if space.is_some_and(|space| space.trim().is_empty()) {
                errors.push(TokenError::EmptySpace { index });
            }
            list.push(Token {
                hash,
                key_owner: key_owner(token, &hash),
                name: token.name.clone(),
                scopes: bits(&token.scopes),
                expires: token.expires,
                rate: match token.requests_per_minute {
                    Some(count) => Rate::per_minute(count),
                    None => general,
                },
                meter: Meter::default(),
                identity: token
                    .identity
                    .as_ref()
                    .map_or(Identity::Anonymous, Identity::from),
            });
        }
        if !errors.is_empty() {
            return Err(Error::Tokens(errors));
        }
        let failures = Rate::per_minute(config.failures_per_minute);
        Ok(Self {
            tokens: watch::Sender::new(Arc::new(Tokens { list, failures })),
            peers: Arc::default(),
            since: Instant::now(),
        })
    }

    /// Replaces the valid tokens by those of `other`.
    pub fn adopt(&self, other: &Auth) {
        self.tokens.send_replace(other.tokens());
    }

    fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens.borrow())
    }

    /// True if no token is required; acceptable only on a loopback address.
    pub fn is_open(&self) -> bool {
        self.tokens().list.is_empty()
    }

    /// SHA-256 of the first token that may dispatch, in hexadecimal; by it a control plane finds which of its tokens
    /// is valid here.
    pub fn announced(&self) -> Option<String> {
        let now = Timestamp::now();
        let may_dispatch = |token: &&Token| token.permits(Scope::Dispatch, now).is_ok();
        let tokens = self.tokens();
        let token = tokens.list.iter().find(may_dispatch)?;
        Some(hex(&token.hash))
    }

    /// Identity of a caller towards external services.
    pub(super) fn identity(&self, caller: Caller) -> Identity {
        let tokens = self.tokens();
        let token = caller.token.and_then(|hash| tokens.find(&hash));
        token.map_or(Identity::Anonymous, |token| token.identity.clone())
    }

    /// Name of a caller in records: the user of its token, else the beginning of the token's hash.
    pub(super) fn name(&self, caller: Caller) -> String {
        match (self.identity(caller), caller.token) {
            (Identity::User(user), _) => user.user_id,
            (_, Some(hash)) => format!("token {}", &hex(&hash)[..8]),
            (_, None) => "anonymous".to_owned(),
        }
    }

    /// User of dispatches and signals that name none: that of the caller's token, else the token's name, else the
    /// beginning of its hash. `None` without a token.
    pub(super) fn submitter(&self, caller: Caller) -> Option<String> {
        caller.token?;
        match self.identity(caller) {
            Identity::User(user) => Some(user.user_id),
            Identity::System { .. } | Identity::Anonymous => Some(self.token_name(caller)),
        }
    }

    /// Name of a caller's token; [`Self::name`] if it has none.
    pub(super) fn token_name(&self, caller: Caller) -> String {
        let tokens = self.tokens();
        let token = caller.token.and_then(|hash| tokens.find(&hash));
        let named = token.and_then(|token| token.name.clone());
        named.unwrap_or_else(|| self.name(caller))
    }

    /// True if a header's value contains a token of this bridge, in any form that a server could take it out of.
    pub(super) fn has_token(&self, value: &[u8]) -> bool {
        let tokens = self.tokens();
        credentials::any(value, &|text| tokens.find(&sha256(text)).is_some())
    }

    /// Fails if no token is required and `address` is reachable from other machines.
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), Error> {
        if self.is_open() && !address.ip().is_loopback() {
            return Err(Error::OpenToTheNetwork(address));
        }
        Ok(())
    }

    fn check(&self, parts: &Parts, scope: Scope) -> Result<Caller, Failure> {
        match self.admit(parts, scope)? {
            (caller, None) => Ok(caller),
            (_, Some(wait)) => Err(too_often(wait)),
        }
    }

    /// Authenticates a request. Returns the caller, and the time to wait if its token is above its rate.
    fn admit(&self, parts: &Parts, scope: Scope) -> Result<(Caller, Option<Duration>), Failure> {
        let (tokens, at) = (self.tokens(), self.since.elapsed());
        if tokens.list.is_empty() {
            return Ok((Caller::ANYONE, None));
        }
        let token = bearer(&parts.headers).ok_or_else(|| {
            let message = "this route needs a token: Authorization: Bearer <token>";
            Failure::new(Code::Unauthorized, message)
        })?;
        let hash = sha256(token);
        let Some(known) = tokens.find(&hash) else {
            let peer = parts.extensions.get::<Peer>().copied();
            return Err(self.refuse(peer, &tokens, "this token is not known"));
        };
        known.permits(scope, Timestamp::now())?;
        let wait = known.rate.and_then(|rate| known.meter.take(rate, at).err());
        Ok((Caller::of(known), wait))
    }

    /// Refuses an invalid token or signature and counts it. Only invalid ones are counted: a valid token works whatever
    /// else comes from its address.
    fn refuse(&self, peer: Option<Peer>, tokens: &Tokens, message: &str) -> Failure {
        if let Some((peer, rate)) = peer.zip(tokens.failures) {
            match self.peers.failed(peer, rate, self.since.elapsed()) {
                Ok(Failed::Counted) => {}
                Ok(Failed::Last) => tracing::warn!(
                    "too many invalid tokens from {peer}: answering further ones with 429"
                ),
                Err(wait) => {
                    let message = "too many invalid tokens from this address; try again later";
                    return Failure::new(Code::RateLimited, message).after(wait);
                }
            }
        }
        Failure::new(Code::Unauthorized, message)
    }
}

fn too_often(wait: Duration) -> Failure {
    let message = "too many requests with this token (auth.requests_per_minute)";
    Failure::new(Code::RateLimited, message).after(wait)
}

/// Hash of the token that a request carries, valid or not.
pub(super) fn token_hash(headers: &HeaderMap) -> Option<Hash> {
    bearer(headers).map(sha256)
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

macro_rules! caller {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(pub Caller);

        impl<S> FromRequestParts<S> for $name
        where
            S: Sync,
            Auth: FromRef<S>,
        {
            type Rejection = Failure;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
                Auth::from_ref(state).check(parts, $scope).map($name)
            }
        }
    };
}

caller!(
    /// Caller with the scope `dispatch`.
    Sender,
    Scope::Dispatch
);
caller!(
    /// Caller with the scope `read`.
    Reader,
    Scope::Read
);
caller!(
    /// Caller with the scope `admin`.
    Admin,
    Scope::Admin
);

/// Caller with the scope `dispatch`, possibly above its rate: a known dispatch is still answered from the record.
#[derive(Debug)]
pub struct Submitter {
    pub caller: Caller,
    /// Refusal of new dispatches, if the token is above its rate.
    pub over: Option<Failure>,
}

impl<S> FromRequestParts<S> for Submitter
where
    S: Sync,
    Auth: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let (caller, wait) = Auth::from_ref(state).admit(parts, Scope::Dispatch)?;
        let over = wait.map(too_often);
        Ok(Self { caller, over })
    }
}

/// Optional rights: true for a caller with the scope `read` under a host that is served here.
#[derive(Debug)]
pub struct MayRead(pub bool);

impl<S> FromRequestParts<S> for MayRead
where
    S: Sync,
    Auth: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let foreign = parts.extensions.get::<ForeignHost>().is_some();
        let may_read = !foreign && Auth::from_ref(state).admit(parts, Scope::Read).is_ok();
        Ok(Self(may_read))
    }
}

#[cfg(test)]
mod tests;
