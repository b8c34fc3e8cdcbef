//! Callers that send signals: their token signs. Each one that is refused is counted.

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use secrecy::{ExposeSecret as _, SecretSlice};

use forge_base::digest::sha256;
use forge_signals::engine;
use forge_signals::refusal::{Api, Reason, Refusals};
use forge_signals::sign::{Signature, token_key};

use super::super::error::{Code, Failure};
use super::super::limit::{Hash, Peer};
use super::super::token::Scope;
use super::{Auth, bearer};

/// Caller with the scope `signals` that signs with its token. While no tokens are configured, any token of ASCII
/// characters is taken.
#[derive(Debug)]
pub(crate) struct SigningCaller {
    token: SecretSlice<u8>,
    owner: Hash,
    user: Option<String>,
    peer: Option<Peer>,
}

impl SigningCaller {
    /// True if the caller has signed these bytes.
    pub(crate) fn has_signed(&self, bytes: &[u8], signature: &Signature) -> bool {
        signature.is_of(token_key(self.token.expose_secret()), bytes)
    }

    /// Caller of the engine: sessions belong to the token, and their user is that of its dispatches.
    pub(crate) fn into_engine(self) -> engine::Caller {
        engine::Caller {
            owner: self.owner,
            user: self.user,
        }
    }
}

impl Auth {
    fn signing(&self, parts: &Parts) -> Result<SigningCaller, Failure> {
        let caller = self.check(parts, Scope::Signals)?;
        let token = bearer(&parts.headers);
        let Some(token) = token.filter(|token| caller.token.is_some() || token.is_ascii()) else {
            let message = "this route needs a token of ASCII characters, which signs: Authorization: Bearer <token>";
            return Err(Failure::new(Code::Unauthorized, message));
        };
        let owner = caller.token.unwrap_or_else(|| sha256(token));
        Ok(SigningCaller {
            token: SecretSlice::from(token.to_vec()),
            owner,
            user: self.submitter(caller),
            peer: parts.extensions.get::<Peer>().copied(),
        })
    }

    /// Refuses a wrong signature like an invalid token.
    pub(crate) fn refuse_signature(&self, caller: &SigningCaller, message: &str) -> Failure {
        self.refuse(caller.peer, &self.tokens(), message)
    }
}

impl<S> FromRequestParts<S> for SigningCaller
where
    S: Sync,
    Auth: FromRef<S>,
    Refusals: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let caller = Auth::from_ref(state).signing(parts);
        caller.inspect_err(|failure| count::<S>(state, Api::Engine, failure))
    }
}

/// Caller with the scope `signals` that starts a session of the local agent on the main listener.
#[derive(Debug)]
pub(crate) struct SessionStarter;

impl<S> FromRequestParts<S> for SessionStarter
where
    S: Sync,
    Auth: FromRef<S>,
    Refusals: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let caller = Auth::from_ref(state).check(parts, Scope::Signals);
        let starter = caller.map(|_| Self);
        starter.inspect_err(|failure| count::<S>(state, Api::Agent, failure))
    }
}

/// Counts a refused token. The body that names the adapter is not read.
fn count<S>(state: &S, api: Api, failure: &Failure)
where
    Refusals: FromRef<S>,
{
    if failure.code() == Code::Unauthorized {
        Refusals::from_ref(state).count(api, None, Reason::Token);
    }
}
