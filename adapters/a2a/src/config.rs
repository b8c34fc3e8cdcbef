//! The operator's settings: the agent's address and the credentials sent to it.

use std::collections::BTreeMap;
use std::time::Duration;

use forge_adapter_api::{self as api, AdapterError, Config};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{RequestBuilder, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use crate::card::Version;

pub(crate) struct Settings {
    pub(crate) table: Table,
    /// Address of the agent's card; `None`: the adapter loads, and its health says that the address is missing.
    pub(crate) card_url: Option<Url>,
    pub(crate) endpoint: Option<Url>,
}

/// The table `[adapters.a2a]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// Address of the agent; its card is at `.well-known/agent-card.json` below, unless this ends in `.json`.
    url: Option<String>,
    /// Address for messages, in place of the card's; required if the card points to another origin.
    endpoint: Option<String>,
    token: Option<SecretString>,
    api_key: Option<SecretString>,
    api_key_header: String,
    headers: BTreeMap<String, SecretString>,
    pub(crate) version: Wanted,
    pub(crate) poll_seconds: f64,
    pub(crate) silence_seconds: f64,
    /// Time for which an agent that cannot be reached is asked again for a task that it runs.
    pub(crate) patience_seconds: f64,
    /// Extensions of the protocol that the agent is told to use, by their URI.
    pub(crate) extensions: Vec<String>,
    pub(crate) max_concurrent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Wanted {
    /// The newest version that both sides support.
    #[serde(rename = "auto")]
    Auto,
    #[serde(rename = "1.0")]
    One,
    #[serde(rename = "0.3")]
    Old,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            url: None,
            endpoint: None,
            token: None,
            api_key: None,
            api_key_header: "x-api-key".to_owned(),
            headers: BTreeMap::new(),
            version: Wanted::Auto,
            poll_seconds: 1.0,
            silence_seconds: 120.0,
            patience_seconds: 600.0,
            extensions: Vec::new(),
            max_concurrent: 16,
        }
    }
}

impl Settings {
    /// Reads the settings. `instance` is the prefix of the variables: `A2A_URL`, `A2A_TOKEN` and `A2A_API_KEY` for
    /// `a2a`.
    pub(crate) fn read(config: &Config, instance: &str) -> api::Result<Self> {
        let mut table: Table = config.parse()?;
        let variable = |name: &str| {
            let prefix = instance.to_ascii_uppercase().replace('-', "_");
            config
                .string(&format!("{prefix}_{name}"))
                .map(str::to_owned)
        };
        let url = table.url.take().or_else(|| variable("URL"));
        table.token = table
            .token
            .or_else(|| variable("TOKEN").map(SecretString::from));
        table.api_key = table
            .api_key
            .or_else(|| variable("API_KEY").map(SecretString::from));
        let card_url = url
            .map(|text| address("url", &text).map(card))
            .transpose()?;
        let endpoint = table
            .endpoint
            .take()
            .map(|text| address("endpoint", &text))
            .transpose()?;
        let names = table
            .headers
            .iter()
            .map(|(name, value)| (name, value.expose_secret()));
        let key = table
            .api_key
            .as_ref()
            .map(|key| (&table.api_key_header, key.expose_secret()));
        for (name, value) in names.chain(key) {
            if HeaderName::from_bytes(name.as_bytes()).is_err()
                || HeaderValue::from_str(value).is_err()
            {
                return Err(invalid(
                    "headers",
                    &format!("{name:?} or its value is not valid in an HTTP header"),
                ));
            }
        }
        let uri =
            |text: &str| Url::parse(text).is_ok() && text.is_ascii() && !text.contains([',', ' ']);
        if let Some(odd) = table.extensions.iter().find(|text| !uri(text)) {
            return Err(invalid("extensions", &format!("{odd:?} is no URI")));
        }
        for (key, seconds) in [
            ("poll_seconds", table.poll_seconds),
            ("silence_seconds", table.silence_seconds),
            ("patience_seconds", table.patience_seconds),
        ] {
            if !(0.01..=86_400.0).contains(&seconds) {
                return Err(invalid(key, "must be from 0.01 to 86400"));
            }
        }
        Ok(Self {
            table,
            card_url,
            endpoint,
        })
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        Duration::from_secs_f64(self.table.poll_seconds)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.table.patience_seconds)
    }

    /// Adds the header with the extensions, if there are any.
    pub(crate) fn with_extensions(
        &self,
        request: RequestBuilder,
        version: Version,
    ) -> RequestBuilder {
        let name = match version {
            Version::One => "a2a-extensions",
            Version::Old => "x-a2a-extensions",
        };
        match self.table.extensions.as_slice() {
            [] => request,
            all => request.header(name, all.join(", ")),
        }
    }

    pub(crate) fn with_credentials(&self, request: RequestBuilder) -> RequestBuilder {
        let headers = self.table.headers.iter();
        let mut request = headers.fold(request, |request, (name, value)| {
            request.header(name, value.expose_secret())
        });
        if let Some(key) = &self.table.api_key {
            request = request.header(&self.table.api_key_header, key.expose_secret());
        }
        match &self.table.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }
}

fn card(mut url: Url) -> Url {
    if !url.path().ends_with(".json") {
        let path = format!(
            "{}/.well-known/agent-card.json",
            url.path().trim_end_matches('/')
        );
        url.set_path(&path);
    }
    url
}

fn address(key: &str, text: &str) -> api::Result<Url> {
    let url = Url::parse(text).map_err(|error| invalid(key, &error.to_string()))?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => Ok(url),
        ("http" | "https", _, _) => Err(invalid(
            key,
            "holds credentials; use `token`, `api_key` or `headers`",
        )),
        (_, _, _) => Err(invalid(key, "must begin with http:// or https://")),
    }
}

fn invalid(key: &str, what: &str) -> AdapterError {
    AdapterError::new("invalid_config", format!("configuration: {key}: {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(config: Value) -> api::Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap(), "a2a")
    }

    #[test]
    fn the_card_is_below_the_agents_address() {
        for (url, card) in [
            ("http://a", "http://a/.well-known/agent-card.json"),
            ("http://a/x/", "http://a/x/.well-known/agent-card.json"),
            (
                "http://a/.well-known/agent-card.json?assistant_id=1",
                "http://a/.well-known/agent-card.json?assistant_id=1",
            ),
        ] {
            assert_eq!(
                read(json!({"A2A_URL": url}))
                    .unwrap()
                    .card_url
                    .unwrap()
                    .as_str(),
                card
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (config, key) in [
            (json!({"url": "ftp://a"}), "url"),
            (json!({"endpoint": "http://u:p@a"}), "endpoint"),
            (json!({"version": "2.0"}), "2.0"),
            (json!({"headers": {"a b": "c"}}), "headers"),
            (json!({"poll_seconds": 0.0}), "poll_seconds"),
            (json!({"extensions": ["a, b"]}), "extensions"),
        ] {
            let error = read(config.clone())
                .err()
                .unwrap_or_else(|| panic!("{config} was taken"));
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(key), "{config}: {}", error.message);
        }
    }
}
