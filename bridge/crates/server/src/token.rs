//! Tokens as configured and as held in memory: a hash with scopes, expiry and rate.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use super::error::{Code, Failure};
use super::limit::{Hash, Meter, Rate};
use forge_base::digest;
use forge_external::{Identity, TokenIdentity};
use forge_store::record::KeyOwner;

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenHash {
    /// SHA-256 of the token in hexadecimal, optionally prefixed with `sha256:`.
    pub hash: String,
    /// Name of the owner: the user of its dispatches and signals if there is no identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Space of idempotency keys and task ids. Tokens with the same one are one caller: those of a rotation, or of a
    /// caller that has several. Default: the name with the user of the identity, else the token alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    #[serde(default = "Scope::all")]
    pub scopes: Vec<Scope>,
    /// Time from which the token is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Overrides `auth.requests_per_minute`; 0: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// User that calls external services with this token; default: an anonymous caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<TokenIdentity>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Send and cancel dispatches, replay one delivery.
    Dispatch,
    /// Read dispatches, events, deliveries, adapters and metrics.
    Read,
    /// Reload, pause and resume adapters, manage runtimes, replay many deliveries.
    Admin,
    /// Send signals of AI tools, and start their sessions.
    Signals,
}

impl Scope {
    pub fn all() -> Vec<Scope> {
        vec![Scope::Dispatch, Scope::Read, Scope::Admin, Scope::Signals]
    }

    fn bit(self) -> u8 {
        match self {
            Scope::Dispatch => 1,
            Scope::Read => 2,
            Scope::Admin => 4,
            Scope::Signals => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Scope::Dispatch => "dispatch",
            Scope::Read => "read",
            Scope::Admin => "admin",
            Scope::Signals => "signals",
        }
    }
}

#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) list: Vec<Token>,
    pub(super) failures: Option<Rate>,
}

#[derive(Debug)]
pub(super) struct Token {
    pub(super) hash: Hash,
    pub(super) key_owner: KeyOwner,
    pub(super) name: Option<String>,
    pub(super) scopes: u8,
    pub(super) expires: Option<Timestamp>,
    pub(super) rate: Option<Rate>,
    pub(super) meter: Meter,
    pub(super) identity: Identity,
}

impl Tokens {
    /// Finds the token with this hash, comparing with every known one in constant time.
    pub(super) fn find(&self, hash: &Hash) -> Option<&Token> {
        let mut place = u64::MAX;
        for (index, known) in (0_u64..).zip(&self.list) {
            place.conditional_assign(&index, known.hash.ct_eq(hash));
        }
        self.list.get(usize::try_from(place).ok()?)
    }
}

impl Token {
    pub(super) fn permits(&self, scope: Scope, now: Timestamp) -> Result<(), Failure> {
        if self.expires.is_some_and(|expires| expires <= now) {
            let message = "this token has expired";
            return Err(Failure::new(Code::Unauthorized, message));
        }
        if self.scopes & scope.bit() == 0 {
            let message = format!("this token lacks the scope {:?}", scope.name());
            return Err(Failure::new(Code::Forbidden, message));
        }
        Ok(())
    }
}

pub(super) fn bits(scopes: &[Scope]) -> u8 {
    scopes.iter().fold(0, |all, scope| all | scope.bit())
}

pub(super) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    digest::from_hex(digits)?.try_into().ok()
}
