//! Settings of signals (`[signals]`).

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the local agent, which tools on this machine send their signals to.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listen: Listen,
    /// Time without a signal after which a session has ended.
    #[serde(with = "forge_base::duration")]
    pub session_timeout: Duration,
    /// Maximum number of sessions whose key is valid; a further one is answered 429.
    pub max_sessions: usize,
    /// True to refuse signals whose `ts` is not within five minutes of their arrival.
    pub strict: bool,
    /// User of signals that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 6247))),
            session_timeout: Duration::from_secs(30 * 60),
            max_sessions: 10_000,
            strict: false,
            user: None,
        }
    }
}

/// Listener of the local agent.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    Off,
    /// A loopback address.
    At(SocketAddr),
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Listen::At(address)),
            Ok(_) => Err(
                "must be a loopback address: signals of other machines are not taken".to_owned(),
            ),
            Err(_) => Err("wanted an address such as \"127.0.0.1:6247\", or \"off\"".to_owned()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::At(address) => address.fmt(f),
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}
