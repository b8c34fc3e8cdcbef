//! Access to event streams: by a token with the scope `read`, or by a ticket in the URL. It is checked again while a
//! stream is open, because a stream can outlive its token.

use std::future::pending;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use jiff::Timestamp;
use tokio::sync::watch;

use super::super::error::{Code, Failure};
use super::super::limit::Hash;
use super::super::token::{Scope, Tokens};
use super::{Auth, Caller};
use forge_base::digest::sha256;
use forge_store::Store;

/// Right to read an open stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamAccess {
    tokens: watch::Receiver<Arc<Tokens>>,
    /// Hash of the token that opened the stream; `None` if no tokens were configured.
    owner: Option<Hash>,
}

impl StreamAccess {
    /// Fails once the token has expired, was revoked or lost its scope.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let tokens = Arc::clone(&self.tokens.borrow_and_update());
        if tokens.list.is_empty() {
            return Ok(());
        }
        let known = self.owner.and_then(|owner| tokens.find(&owner));
        let known = known.ok_or_else(|| {
            Failure::new(Code::Unauthorized, "the token of this stream was revoked")
        })?;
        known.permits(Scope::Read, Timestamp::now())
    }

    /// Caller that opened the stream.
    pub(crate) fn caller(&self) -> Caller {
        let tokens = self.tokens.borrow();
        let known = self.owner.and_then(|owner| tokens.find(&owner));
        known.map_or(Caller::ANYONE, Caller::of)
    }

    /// True if the tokens were replaced since the last check.
    pub(crate) fn is_outdated(&self) -> bool {
        self.tokens.has_changed().unwrap_or(false)
    }

    /// Waits until the tokens are replaced.
    pub(crate) async fn outdated(&mut self) {
        if self.tokens.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Caller that may read an event stream.
#[derive(Debug)]
pub(crate) struct Watcher(pub(crate) StreamAccess);

impl<S> FromRequestParts<S> for Watcher
where
    S: Sync,
    Auth: FromRef<S>,
    Arc<dyn Store>: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let auth = Auth::from_ref(state);
        let tokens = auth.tokens.subscribe();
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        let ticket = url::form_urlencoded::parse(query).find(|(name, _)| name == "ticket");
        let owner = match ticket {
            Some((_, ticket)) if !parts.headers.contains_key(header::AUTHORIZATION) => {
                let store: Arc<dyn Store> = FromRef::from_ref(state);
                auth.redeem(&*store, &ticket).await?
            }
            Some(_) | None => auth.check(parts, Scope::Read)?.token,
        };
        Ok(Self(StreamAccess { tokens, owner }))
    }
}

impl Auth {
    /// Redeems a ticket: it authorises one stream with the rights of the token that requested it. Returns the hash of
    /// that token.
    async fn redeem(&self, store: &dyn Store, ticket: &str) -> Result<Option<Hash>, Failure> {
        let tokens = self.tokens();
        if tokens.list.is_empty() {
            return Ok(None);
        }
        let now = store.node().clock().now();
        let ticket = store.take_ticket(&sha256(ticket), now).await?;
        let owner = ticket.and_then(|ticket| ticket.owner);
        let known = owner.and_then(|hash| tokens.find(&hash)).ok_or_else(|| {
            let message = "this stream ticket is unknown, already used, or older than a minute; \
                           request another one with POST /api/v2/stream-tickets";
            Failure::new(Code::Unauthorized, message)
        })?;
        known.permits(Scope::Read, Timestamp::now())?;
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::super::Config;
    use super::*;

    fn auth(tokens: &[&str]) -> Auth {
        let tokens = tokens.iter().map(|token| SecretString::from(*token));
        Auth::new(&Config {
            tokens: tokens.collect(),
            ..Config::default()
        })
        .unwrap()
    }

    #[test]
    fn a_stream_lasts_as_long_as_its_token() {
        let (opened, none) = (auth(&["old"]), auth(&[]));
        let access = |token: Option<&str>| StreamAccess {
            tokens: opened.tokens.subscribe(),
            owner: token.map(forge_base::digest::sha256),
        };
        let (mut old, mut anonymous) = (access(Some("old")), access(None));
        assert!(old.check().is_ok());
        for (tokens, of_old, of_anonymous) in [
            (auth(&["new", "old"]), true, false),
            (auth(&["new"]), false, false),
            (none, true, true),
        ] {
            opened.adopt(&tokens);
            assert!(old.is_outdated() && anonymous.is_outdated());
            assert_eq!(old.check().is_ok(), of_old, "{tokens:?}");
            assert_eq!(anonymous.check().is_ok(), of_anonymous, "{tokens:?}");
            assert!(!old.is_outdated());
        }
    }
}
