//! Client of the local agent: finds or starts a session, signs the bytes of records and sends them.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde_json::{Value, json};
use url::Url;

use super::super::client::{self, Client, Target};
use super::super::{Environment, FAILED, REFUSED, UNREACHABLE, USAGE};
use forge_base::digest::MacKey;
use forge_base::time;
use forge_net::is_private;
use forge_signals::sign::Signature;

/// Time limit of all calls of a command.
const LIMIT: Duration = Duration::from_millis(3_000);
const PORT: u16 = 6247;
const KEY_BYTES: usize = 32;
/// Either alphabet, with or without padding.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0:?} is no address of an agent: wanted https, or http to this machine")]
    Address(String),
    #[error("FORG_PORT is {0:?}: wanted a port number")]
    Port(String),
    #[error("FORG_SESSION_KEY is not 32 bytes as base64")]
    Key,
    #[error("the answer of the agent has no {0}")]
    Answer(&'static str),
    #[error(transparent)]
    Call(#[from] client::Error),
}

impl Error {
    /// Exit code of a command that is not called by a tool.
    pub(super) fn code(&self) -> u8 {
        match self {
            Error::Address(_) | Error::Port(_) | Error::Key => USAGE,
            Error::Answer(_) => REFUSED,
            Error::Call(client::Error::Unreachable { .. }) => UNREACHABLE,
            Error::Call(client::Error::Refused { .. } | client::Error::Unreadable { .. }) => {
                REFUSED
            }
            Error::Call(client::Error::Address { .. } | client::Error::Token { .. }) => USAGE,
            Error::Call(client::Error::Authority(_) | client::Error::Build(_)) => FAILED,
        }
    }

    /// True if another attempt gets the same answer.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Error::Call(client::Error::Refused { status, .. }) if status.as_u16() == 400)
    }

    /// True if the agent does not know the key of the session.
    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(self, Error::Call(client::Error::Refused { status, .. }) if status.as_u16() == 401)
    }
}

/// Agent of this machine, with a deadline for all calls.
pub(super) struct Agent {
    client: Client,
    deadline: Instant,
}

/// Session that signals belong to.
pub(super) struct Session {
    pub(super) id: String,
    key: SecretSlice<u8>,
    /// True if the environment names it.
    pub(super) is_given: bool,
}

/// Request for a session.
pub(super) struct Start<'a> {
    pub(super) adapter: &'a str,
    pub(super) user: Option<&'a str>,
    /// Id of the tool's own session, which leads to the same one while it is live.
    pub(super) own_id: Option<&'a str>,
}

/// Answer to a signal.
pub(super) struct Verdict {
    /// Reason; `None` if the tool can continue.
    pub(super) blocked: Option<String>,
    /// False if the bridge could not store the signal; one of an older version does not say so.
    pub(super) is_logged: bool,
    pub(super) answer: Value,
}

impl Agent {
    /// The deadline begins now.
    pub(super) fn new(environment: &Environment) -> Result<Self, Error> {
        let deadline = Instant::now() + LIMIT;
        let url = url(environment)?;
        let client = Client::new(&url, None)?;
        Ok(Self { client, deadline })
    }

    /// Session of the environment, else the one that the agent opens or finds.
    pub(super) async fn session(
        &self,
        environment: &Environment,
        start: &Start<'_>,
    ) -> Result<Session, Error> {
        match Session::given(environment)? {
            Some(session) => Ok(session),
            None => self.start(start).await,
        }
    }

    async fn start(&self, start: &Start<'_>) -> Result<Session, Error> {
        let mut body = json!({ "adapter": start.adapter });
        let optional = [("user_id", start.user), ("client_session_id", start.own_id)];
        for (name, value) in optional {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        let target = Target::path(&["session", "start"]);
        let body = body.to_string().into_bytes();
        let answer = self.client.post_signed(target, body, None, self.deadline);
        let answer = answer.await?;
        let text = |name| answer[name].as_str().map(str::to_owned);
        let key = text("session_key").map(SecretString::from);
        Ok(Session {
            id: text("session_id").ok_or(Error::Answer("session_id"))?,
            key: key
                .and_then(|key| decoded(&key))
                .ok_or(Error::Answer("session_key"))?,
            is_given: false,
        })
    }

    /// Signs exactly these bytes and sends them.
    pub(super) async fn emit(&self, session: &Session, record: Vec<u8>) -> Result<Verdict, Error> {
        let key = MacKey::new(session.key.expose_secret());
        let signature = Signature::new(&key, &record).to_string();
        let target = Target::path(&["emit"]);
        let sent = self
            .client
            .post_signed(target, record, Some(&signature), self.deadline);
        let answer = sent.await?;
        // No other value blocks.
        let blocked = (answer["blocked"] == true).then(|| {
            let message = answer["message"].as_str();
            message
                .unwrap_or("A rule over signals blocks this.")
                .to_owned()
        });
        let is_logged = answer["logged"] != false;
        Ok(Verdict {
            blocked,
            is_logged,
            answer,
        })
    }
}

impl Session {
    /// Session that `FORG_SESSION_KEY` and `FORG_SESSION_ID` name.
    fn given(environment: &Environment) -> Result<Option<Self>, Error> {
        let value = |name| environment.get(name).filter(|value| !value.is_empty());
        let (Some(key), Some(id)) = (value("FORG_SESSION_KEY"), value("FORG_SESSION_ID")) else {
            return Ok(None);
        };
        let key = decoded(&SecretString::from(key.as_str())).ok_or(Error::Key)?;
        Ok(Some(Self {
            id: id.clone(),
            key,
            is_given: true,
        }))
    }
}

/// Present time, as records state it.
pub(super) fn now() -> String {
    time::format(Timestamp::now())
}

fn decoded(key: &SecretString) -> Option<SecretSlice<u8>> {
    let text = key.expose_secret().trim();
    let alphabet = match text.contains(['-', '_']) {
        true => &alphabet::URL_SAFE,
        false => &alphabet::STANDARD,
    };
    let bytes = GeneralPurpose::new(alphabet, LENIENT).decode(text).ok()?;
    let bytes = SecretSlice::from(bytes);
    (bytes.expose_secret().len() == KEY_BYTES).then_some(bytes)
}

/// Address of the agent. Plain HTTP does not leave this machine.
fn url(environment: &Environment) -> Result<String, Error> {
    let value = |name| environment.get(name).filter(|value| !value.is_empty());
    let Some(url) = value("FORG_AGENT_URL") else {
        let port = match value("FORG_PORT") {
            Some(port) => port.parse().map_err(|_| Error::Port(port.clone()))?,
            None => PORT,
        };
        return Ok(format!("http://127.0.0.1:{port}"));
    };
    let wrong = || Error::Address(url.clone());
    let parsed = Url::parse(url).map_err(|_| wrong())?;
    match is_private(&parsed) {
        true => Ok(url.clone()),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_key_is_taken_in_either_alphabet_with_or_without_padding() {
        for text in [
            "+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/s=",
            "+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/s",
            "-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s",
            "-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s=\n",
        ] {
            let key = decoded(&SecretString::from(text)).expect(text);
            assert_eq!(key.expose_secret().len(), KEY_BYTES, "{text}");
        }
        for text in ["", "AAEC", "+/v7-_v7", "no base64"] {
            assert!(decoded(&SecretString::from(text)).is_none(), "{text}");
            let given = environment(&[("FORG_SESSION_KEY", text), ("FORG_SESSION_ID", "s")]);
            let refused = Session::given(&given);
            assert_eq!(
                matches!(refused, Err(Error::Key)),
                !text.is_empty(),
                "{text}"
            );
        }
    }

    #[test]
    fn plain_http_stays_on_this_machine() {
        let at = |value| url(&environment(&[("FORG_AGENT_URL", value)]));
        for local in [
            "http://127.0.0.1:1",
            "http://localhost:1",
            "http://[::1]:1",
            "https://team.example",
        ] {
            assert_eq!(at(local).unwrap(), local);
        }
        for wrong in [
            "http://team.example",
            "http://localhost.evil.example",
            "file:///a",
            "agent",
        ] {
            assert!(matches!(at(wrong), Err(Error::Address(_))), "{wrong}");
        }
        let port = |value| url(&environment(&[("FORG_PORT", value)]));
        assert_eq!(port("7000").unwrap(), "http://127.0.0.1:7000");
        assert_eq!(port("").unwrap(), "http://127.0.0.1:6247");
        assert!(matches!(port("x"), Err(Error::Port(_))));
    }
}
