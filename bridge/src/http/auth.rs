//! Who may call: bearer tokens of which only hashes are kept, and one extractor for each scope.

use std::net::SocketAddr;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::live::Live;

use super::error::{Code, Failure};

/// Which tokens are valid. Several at once, so that a rotation overlaps.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens in plain text, all scopes: `BRIDGE_TOKENS`.
    #[serde(with = "crate::config::secret::list")]
    pub tokens: Vec<SecretString>,
    /// Tokens of which only the hash is known here.
    pub token: Vec<TokenHash>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenHash {
    /// SHA-256 of the token, hexadecimal; a leading `sha256:` is fine.
    pub hash: String,
    #[serde(default = "Scope::all")]
    pub scopes: Vec<Scope>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Send and cancel dispatches, replay one delivery.
    Dispatch,
    /// Look at everything.
    Read,
    /// Reload, management, replaying many.
    Admin,
}

impl Scope {
    fn all() -> Vec<Scope> {
        vec![Scope::Dispatch, Scope::Read, Scope::Admin]
    }

    fn bit(self) -> u8 {
        match self {
            Scope::Dispatch => 1,
            Scope::Read => 2,
            Scope::Admin => 4,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scope::Dispatch => "dispatch",
            Scope::Read => "read",
            Scope::Admin => "admin",
        }
    }
}

/// The valid tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Auth {
    tokens: Live<Vec<Token>>,
}

#[derive(Debug)]
struct Token {
    hash: [u8; 32],
    scopes: u8,
}

/// Why the configured tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("token {number} of auth.tokens is empty")]
    EmptyToken { number: usize },
    #[error("auth.token[{index}].hash is not a SHA-256 in 64 hexadecimal digits")]
    MalformedHash { index: usize },
    #[error(
        "{0} can be reached from other machines and no token is configured; set BRIDGE_TOKENS or listen on 127.0.0.1"
    )]
    OpenToTheNetwork(SocketAddr),
}

impl Auth {
    pub fn new(config: &Config) -> Result<Self, Error> {
        let mut tokens = Vec::new();
        for (index, token) in config.tokens.iter().enumerate() {
            if token.expose_secret().trim().is_empty() {
                return Err(Error::EmptyToken { number: index + 1 });
            }
            tokens.push(Token {
                hash: Sha256::digest(token.expose_secret()).into(),
                scopes: Scope::all()
                    .into_iter()
                    .fold(0, |all, scope| all | scope.bit()),
            });
        }
        for (index, token) in config.token.iter().enumerate() {
            let hash = parse_hash(&token.hash).ok_or(Error::MalformedHash { index })?;
            let scopes = token.scopes.iter().fold(0, |all, scope| all | scope.bit());
            tokens.push(Token { hash, scopes });
        }
        Ok(Self {
            tokens: tokens.into(),
        })
    }

    /// From now on these tokens are the valid ones, and no others.
    pub fn adopt(&self, other: &Auth) {
        self.tokens.replace(other.tokens.get());
    }

    /// Nobody is asked for a token; only right on a loopback address.
    pub fn is_open(&self) -> bool {
        self.tokens.get().is_empty()
    }

    /// The SHA-256 of the first token that may dispatch, in hexadecimal digits: by it a control plane
    /// knows which of its tokens is the right one here.
    pub fn announced(&self) -> Option<String> {
        let may_dispatch = |token: &&Token| token.scopes & Scope::Dispatch.bit() != 0;
        let tokens = self.tokens.get();
        let token = tokens.iter().find(may_dispatch)?;
        Some(
            token
                .hash
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// Refuses to stand open on an address that others can reach.
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), Error> {
        if self.is_open() && !address.ip().is_loopback() {
            return Err(Error::OpenToTheNetwork(address));
        }
        Ok(())
    }

    /// The scopes of a token, compared with every known one in constant time.
    fn scopes(&self, token: &[u8]) -> Option<u8> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let mut found = Choice::from(0);
        let mut scopes = 0_u8;
        for known in self.tokens.get().iter() {
            let same = known.hash.ct_eq(&hash);
            scopes |= u8::conditional_select(&0, &known.scopes, same);
            found |= same;
        }
        bool::from(found).then_some(scopes)
    }

    fn check(&self, parts: &Parts, scope: Scope) -> Result<(), Failure> {
        if self.is_open() {
            return Ok(());
        }
        let token = bearer(parts).ok_or_else(|| {
            let message = "this route needs a token: Authorization: Bearer <token>";
            Failure::new(Code::Unauthorized, message)
        })?;
        match self.scopes(token) {
            None => Err(Failure::new(Code::Unauthorized, "this token is not known")),
            Some(scopes) if scopes & scope.bit() == 0 => {
                let message = format!("this token lacks the scope {:?}", scope.name());
                Err(Failure::new(Code::Forbidden, message))
            }
            Some(_) => Ok(()),
        }
    }
}

fn bearer(parts: &Parts) -> Option<&[u8]> {
    let value = parts.headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
    let mut hash = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(hash)
}

macro_rules! caller {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl<S> FromRequestParts<S> for $name
        where
            S: Sync,
            Auth: FromRef<S>,
        {
            type Rejection = Failure;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
                Auth::from_ref(state).check(parts, $scope).map(|()| $name)
            }
        }
    };
}

caller!(
    /// Somebody who may send dispatches.
    Sender,
    Scope::Dispatch
);
caller!(
    /// Somebody who may look.
    Reader,
    Scope::Read
);
caller!(
    /// Somebody who may change how the bridge and its adapters are.
    Admin,
    Scope::Admin
);

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    const READ_ONLY: &str = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5";

    fn auth() -> Auth {
        Auth::new(&Config {
            tokens: vec!["old".to_owned().into(), "new".to_owned().into()],
            token: vec![TokenHash {
                hash: format!("sha256:{READ_ONLY}"),
                scopes: vec![Scope::Read],
            }],
        })
        .unwrap()
    }

    fn status(auth: &Auth, header: &str, scope: Scope) -> u16 {
        let request = Request::builder().header("authorization", header);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        match auth.check(&parts, scope) {
            Ok(()) => 200,
            Err(failure) => failure.code().status().as_u16(),
        }
    }

    #[test]
    fn a_token_opens_what_its_scopes_say() {
        let auth = auth();
        for (header, scope, expected) in [
            ("Bearer old", Scope::Admin, 200),
            ("bearer new", Scope::Dispatch, 200),
            ("Bearer  new ", Scope::Read, 200),
            ("Bearer 12345", Scope::Read, 200),
            ("Bearer 12345", Scope::Dispatch, 403),
            ("Bearer 12345", Scope::Admin, 403),
            ("Bearer ol", Scope::Read, 401),
            ("Bearer", Scope::Read, 401),
            ("Bearer ", Scope::Read, 401),
            ("Basic old", Scope::Read, 401),
            ("", Scope::Read, 401),
        ] {
            assert_eq!(
                status(&auth, header, scope),
                expected,
                "{header:?} {scope:?}"
            );
        }
    }

    #[test]
    fn without_tokens_only_loopback_may_be_open() {
        let open = Auth::new(&Config::default()).unwrap();
        assert_eq!(status(&open, "", Scope::Admin), 200);
        for (address, allowed) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.168.1.4:1", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(open.check_listen(address).is_ok(), allowed, "{address}");
            assert!(auth().check_listen(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn unusable_tokens_are_named() {
        let empty = Config {
            tokens: vec![" ".to_owned().into()],
            token: Vec::new(),
        };
        assert!(matches!(
            Auth::new(&empty),
            Err(Error::EmptyToken { number: 1 })
        ));
        for hash in ["", "abc", &"é".repeat(32), &"g".repeat(64)] {
            let malformed = Config {
                tokens: Vec::new(),
                token: vec![TokenHash {
                    hash: hash.to_owned(),
                    scopes: Scope::all(),
                }],
            };
            let error = Auth::new(&malformed).unwrap_err();
            assert!(matches!(error, Error::MalformedHash { index: 0 }), "{hash}");
        }
    }

    #[test]
    fn nothing_shows_a_plain_token() {
        let config = Config {
            tokens: vec!["hush".to_owned().into()],
            token: Vec::new(),
        };
        let shown = format!("{config:?}{}", serde_json::to_string(&config).unwrap());
        assert!(!shown.contains("hush"), "{shown}");
    }
}
