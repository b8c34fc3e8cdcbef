//! Settings of the operator, read from environment variables and the table `[adapters.<id>]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::{AdapterError, Config, Host, Result};
use forge_adapter_transport::http::Limits;
use forge_adapter_transport::retry;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::Dialect;
use crate::ask::Structured;
use crate::prices::Prices;

/// The table `[adapters.<id>]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// Base URL, including `/v1`.
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<SecretString>,
    /// Model for dispatches that name none.
    pub(crate) model: Option<String>,
    /// Models to turn to, in order, when retries did not help.
    pub(crate) fallback: Vec<String>,
    /// Headers of every request.
    pub(crate) headers: BTreeMap<String, String>,
    /// Members of every request's body.
    pub(crate) extra: Map<String, Value>,
    pub(crate) stream: Switch,
    pub(crate) tools: Switch,
    pub(crate) structured: Structured,
    pub(crate) prices: Prices,
    /// Folder for conversations; default: in memory.
    pub(crate) session_dir: Option<PathBuf>,
    /// Path below `base_url` that the health check requests; empty: no request is made.
    pub(crate) health_path: Option<String>,
    pub(crate) connect_seconds: f64,
    /// Longest silence of the server.
    pub(crate) silence_seconds: f64,
    /// Retries of one call before its first output.
    pub(crate) model_retries: u32,
}

/// A switch; default: on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    #[default]
    On,
    Off,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            base_url: None,
            api_key: None,
            model: None,
            fallback: Vec::new(),
            headers: BTreeMap::new(),
            extra: Map::new(),
            stream: Switch::On,
            tools: Switch::On,
            structured: Structured::default(),
            prices: Prices::new(),
            session_dir: None,
            health_path: None,
            connect_seconds: 10.0,
            silence_seconds: 300.0,
            model_retries: retry::DEFAULT,
        }
    }
}

const NAMES: [&str; 15] = [
    "base_url",
    "api_key",
    "model",
    "fallback",
    "headers",
    "extra",
    "stream",
    "tools",
    "structured",
    "prices",
    "session_dir",
    "health_path",
    "connect_seconds",
    "silence_seconds",
    retry::SETTING,
];

impl Settings {
    /// Reads the settings. Fails with `invalid_config`, naming the setting and the expected value.
    pub(crate) fn read<D: Dialect>(config: &Config) -> Result<Self> {
        let at = |name: &str, text: String| {
            AdapterError::new(
                "invalid_config",
                format!("adapters.{}.{name}: {text}", D::NAME),
            )
        };
        config.refuse_misspelt(&NAMES)?;
        let mut settings: Self = config.parse()?;
        let variable = |names: &[&str]| names.iter().find_map(|name| config.string(name));
        let table = config.string("base_url").map(str::to_owned);
        settings.base_url = table
            .or_else(|| variable(D::URLS).map(str::to_owned))
            .or_else(|| D::BASE_URL.map(str::to_owned));
        let key = config.string("api_key").or_else(|| variable(D::KEYS));
        settings.api_key = key.map(|key| SecretString::from(key.trim().to_owned()));
        if let Some(url) = &settings.base_url
            && !Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
        {
            let text = "an address such as https://api.example.org/v1 was expected".to_owned();
            return Err(at("base_url", text));
        }
        if let Some((model, _)) = settings.prices.iter().find(|(_, price)| !price.is_sane()) {
            let text = format!("{model}: a price is a number of at least 0, per million tokens");
            return Err(at("prices", text));
        }
        for (name, seconds) in [
            ("connect_seconds", settings.connect_seconds),
            ("silence_seconds", settings.silence_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return Err(at(
                    name,
                    format!("{seconds} is not between 0 and 86400 seconds"),
                ));
            }
        }
        Ok(settings)
    }

    pub(crate) fn limits(&self, host: &Host) -> Limits {
        Limits {
            connect: Duration::from_secs_f64(self.connect_seconds),
            silence: Duration::from_secs_f64(self.silence_seconds),
            ..Limits::within(host.limits())
        }
    }

    pub(crate) fn health_path<D: Dialect>(&self) -> &str {
        self.health_path.as_deref().unwrap_or(D::HEALTH_PATH)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;
    use serde_json::json;

    use super::*;

    struct Acme;

    impl Dialect for Acme {
        const NAME: &'static str = "acme";
        const VERSION: &'static str = "1";
        const KEYS: &'static [&'static str] = &["ACME_API_KEY", "OTHER_KEY"];
        const URLS: &'static [&'static str] = &["ACME_BASE_URL"];
        const ENV: &'static [&'static str] = &["ACME_API_KEY", "OTHER_KEY", "ACME_BASE_URL"];
    }

    fn read(config: Value) -> Result<Settings> {
        Settings::read::<Acme>(&Config::try_from(config).unwrap())
    }

    #[test]
    fn the_table_goes_before_the_environment() {
        for (config, url, key) in [
            (
                json!({"ACME_BASE_URL": "http://a/v1", "OTHER_KEY": "k", "http_proxy": "p"}),
                "http://a/v1",
                "k",
            ),
            (
                json!({"ACME_BASE_URL": "http://a", "base_url": "http://b", "ACME_API_KEY": "e", "api_key": "t"}),
                "http://b",
                "t",
            ),
            (
                json!({"ACME_BASE_URL": "http://a", "base_url": "", "ACME_API_KEY": "e", "api_key": ""}),
                "http://a",
                "e",
            ),
        ] {
            let settings = read(config).unwrap();
            assert_eq!(settings.base_url.as_deref(), Some(url));
            assert_eq!(settings.api_key.unwrap().expose_secret(), key);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_where_it_stands() {
        for (config, said) in [
            (
                json!({"baseurl": "http://a"}),
                "configuration: baseurl: no such setting; did you mean base_url?",
            ),
            (json!({"session_dirs": "x"}), "did you mean session_dir?"),
            (json!({"base_url": "ftp://a"}), "an address such as"),
            (json!({"base_url": "nowhere"}), "an address such as"),
            (
                json!({"prices": {"m": {"input": -1.0, "output": 1.0}}}),
                "prices: m: a price is",
            ),
            (
                json!({"prices": {"m": {"input": 1.0, "output": 1.0, "cached": 1.0}}}),
                "unknown field",
            ),
            (json!({"silence_seconds": 0.0}), "silence_seconds: 0 is not"),
            (json!({"structured": "perhaps"}), "unknown variant"),
        ] {
            let error = read(config.clone()).unwrap_err();
            assert_eq!(error.code, "invalid_config", "{config}");
            assert!(error.message.contains(said), "{config}: {}", error.message);
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let shown = format!("{:?}", read(json!({"api_key": "s3cret"})).unwrap());
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
