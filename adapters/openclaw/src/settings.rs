//! The operator's settings: address and token of the gateway, and what a dispatch gets there.

use forge_adapter_api::{self as api, AdapterError, Config};
use secrecy::SecretString;
use serde::Deserialize;

pub(crate) struct Settings {
    /// Address with the scheme `http` or `https` and no trailing slash, as the HTTP client needs it; `None` if not
    /// configured.
    pub(crate) url: Option<String>,
    pub(crate) token: Option<SecretString>,
    pub(crate) table: Table,
}

/// The table `[adapters.openclaw]` without the gateway's address and token.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// Agent of the gateway for dispatches whose `agentId` it does not have; default: they are refused.
    pub(crate) agent: Option<String>,
    pub(crate) max_concurrent: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            agent: None,
            max_concurrent: 4,
        }
    }
}

impl Settings {
    pub(crate) fn read(config: &Config) -> api::Result<Self> {
        config.refuse_misspelt(&["url", "token", "agent", "max_concurrent"])?;
        let table: Table = config.parse()?;
        let named = config
            .string("url")
            .or_else(|| config.string("OPENCLAW_URL"));
        let url = named.map(http).transpose()?;
        if let Some(agent) = &table.agent
            && !is_agent_id(agent)
        {
            return Err(invalid(&format!("agent: {AGENT_IDS}")));
        }
        let token = config
            .string("token")
            .or_else(|| config.string("OPENCLAW_TOKEN"));
        Ok(Self {
            url,
            token: token.map(SecretString::from),
            table,
        })
    }
}

/// Form of the gateway's agent ids, for error texts.
pub(crate) const AGENT_IDS: &str = "an agent id of OpenClaw has 1 to 64 lower case letters a-z, digits, `_` and `-`, \
                                    and begins with a letter or a digit";

/// True for an id that the gateway uses as it is. It makes ids out of names, so that any other text is the name of
/// another agent there.
pub(crate) fn is_agent_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=64).contains(&id.len())
        && id.starts_with(plain)
        && id.chars().all(|c| plain(c) || c == '-' || c == '_')
}

/// An address with one of the schemes `ws`, `wss`, `http` and `https`, as the HTTP client needs it.
fn http(url: &str) -> api::Result<String> {
    let schemes = [
        ("ws://", "http://"),
        ("wss://", "https://"),
        ("http://", "http://"),
        ("https://", "https://"),
    ];
    let found = schemes
        .into_iter()
        .find_map(|(from, to)| Some(format!("{to}{}", url.strip_prefix(from)?)));
    let found = found.ok_or_else(|| {
        invalid("url (OPENCLAW_URL): an address that begins with ws:// or wss:// was expected")
    })?;
    Ok(found.trim_end_matches('/').to_owned())
}

fn invalid(message: &str) -> AdapterError {
    AdapterError::new("invalid_config", format!("configuration: {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(config: Value) -> api::Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn the_table_goes_before_the_variables() {
        let settings = read(json!({"url": "wss://a/", "OPENCLAW_URL": "ws://b"})).unwrap();
        assert_eq!(settings.url.as_deref(), Some("https://a"));
        let settings = read(json!({"OPENCLAW_URL": "ws://b:1", "OPENCLAW_TOKEN": "t"})).unwrap();
        assert_eq!(settings.url.as_deref(), Some("http://b:1"));
        assert!(settings.token.is_some());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (config, named) in [
            (json!({"url": "localhost:18789"}), "OPENCLAW_URL"),
            (json!({"agent": "Ada Lovelace"}), "agent"),
            (json!({"agents": "main"}), "agents"),
            (json!({"max_concurrent": "many"}), "many"),
        ] {
            let Err(error) = read(config) else {
                panic!("{named} was accepted")
            };
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(named), "{}", error.message);
        }
    }

    #[test]
    fn ids_that_the_gateway_would_change_are_none() {
        let long = "a".repeat(300);
        for id in ["", "a/b", "..", "Ada", "研究", "a:b", "-a", " a", &long] {
            assert!(!is_agent_id(id), "{id}");
        }
        for id in ["main", "a-b_2", "7"] {
            assert!(is_agent_id(id), "{id}");
        }
    }
}
