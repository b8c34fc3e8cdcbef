//! Settings of signals (`[signals]`).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::forward;
use crate::record::Usage;

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
    /// True to store the first 256 characters of goals, which the engine API accepts.
    pub store_goals: bool,
    /// User of signals that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File of rules and budgets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<PathBuf>,
    /// Tokens of a session at which an event is written.
    pub milestones: Vec<u64>,
    /// Users of each team.
    pub teams: BTreeMap<String, Vec<String>>,
    /// Price of each model, for signals without a cost.
    pub prices: BTreeMap<String, Price>,
    /// Engine of a team that signals are forwarded to.
    pub upstream: forward::Config,
}

/// Price of a model's tokens in dollars per million.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    #[serde(deserialize_with = "dollars")]
    pub input: f64,
    #[serde(deserialize_with = "dollars")]
    pub output: f64,
    /// Tokens read from a cache; the price of `input` by default.
    #[serde(
        default,
        deserialize_with = "some_dollars",
        skip_serializing_if = "Option::is_none"
    )]
    pub cache_read: Option<f64>,
    /// Tokens written to a cache; the price of `input` by default.
    #[serde(
        default,
        deserialize_with = "some_dollars",
        skip_serializing_if = "Option::is_none"
    )]
    pub cache_write: Option<f64>,
}

impl Price {
    /// Cost in micro-dollars, rounded up; `None` without tokens. A dollar per million is a micro-dollar per token.
    pub fn cost(&self, usage: &Usage) -> Option<u64> {
        if usage.tokens_in.is_none() && usage.tokens_out.is_none() {
            return None;
        }
        let number = |tokens: Option<u64>| tokens.unwrap_or(0) as f64;
        let (read, written) = (
            number(usage.cache_read_tokens),
            number(usage.cache_write_tokens),
        );
        // Cached tokens are among the tokens in.
        let plain = (number(usage.tokens_in) - read - written).max(0.0);
        let cost = plain * self.input
            + read * self.cache_read.unwrap_or(self.input)
            + written * self.cache_write.unwrap_or(self.input)
            + number(usage.tokens_out) * self.output;
        Some(cost.ceil() as u64)
    }
}

/// Highest price that is accepted: a million dollars per million tokens.
const MOST_DOLLARS: f64 = 1_000_000.0;

fn dollars<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let dollars = f64::deserialize(deserializer)?;
    match (0.0..=MOST_DOLLARS).contains(&dollars) {
        true => Ok(dollars),
        false => Err(serde::de::Error::custom(format!(
            "wanted dollars per million tokens, from 0 to {MOST_DOLLARS}"
        ))),
    }
}

fn some_dollars<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    dollars(deserializer).map(Some)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 6247))),
            session_timeout: Duration::from_secs(30 * 60),
            max_sessions: 10_000,
            strict: false,
            store_goals: false,
            user: None,
            rules: None,
            milestones: vec![10_000, 50_000, 100_000, 500_000],
            teams: BTreeMap::new(),
            prices: BTreeMap::new(),
            upstream: forward::Config::default(),
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
