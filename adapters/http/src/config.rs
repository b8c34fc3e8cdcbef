//! Settings of the operator: the server's address, credentials of both sides, and capabilities of the
//! server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{
    self as api, AdapterError, Config, CostTier, LatencyProfile, OutputStrategy,
};
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use crate::signing::Signing;

pub(crate) struct Settings {
    pub(crate) table: Table,
    /// `None`: the adapter loads as `degraded` and reports the missing setting.
    pub(crate) url: Option<Url>,
    pub(crate) health_url: Option<Url>,
    pub(crate) signing: Option<Arc<Signing>>,
}

/// The table `[adapters.<id>]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// URL to which executions are posted.
    url: Option<String>,
    /// URL of the health check; default: `url`.
    health_url: Option<String>,
    /// Sent as `Authorization: Bearer`.
    pub(crate) token: Option<SecretString>,
    /// Secret of Standard Webhooks (`whsec_…`): signs requests and verifies callbacks.
    secret: Option<SecretString>,
    pub(crate) headers: BTreeMap<String, SecretString>,
    pub(crate) callback: Option<Callback>,
    pub(crate) poll_seconds: f64,
    /// Seconds of silence after which a server counts as dead.
    pub(crate) silence_seconds: f64,
    /// Capabilities of the server, which routing uses.
    pub(crate) capabilities: Vec<String>,
    pub(crate) native_tools: Vec<String>,
    pub(crate) output_strategies: Vec<OutputStrategy>,
    pub(crate) options: Vec<String>,
    pub(crate) max_concurrent: u32,
    pub(crate) cost_tier: CostTier,
    pub(crate) latency_profile: LatencyProfile,
}

/// Listener for results that arrive later.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Callback {
    #[serde(default = "loopback")]
    pub(crate) listen: SocketAddr,
    /// URL under which the server reaches the listener; default: `http://` and its bound address.
    pub(crate) public_url: Option<String>,
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Default for Table {
    fn default() -> Self {
        Self {
            url: None,
            health_url: None,
            token: None,
            secret: None,
            headers: BTreeMap::new(),
            callback: None,
            poll_seconds: 1.0,
            silence_seconds: 120.0,
            capabilities: ["streaming", "session_resume"].map(str::to_owned).into(),
            native_tools: Vec::new(),
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            max_concurrent: 16,
            cost_tier: CostTier::Medium,
            latency_profile: LatencyProfile::Variable,
        }
    }
}

impl Settings {
    /// Reads the settings. `instance` is the prefix of the variables: `CUSTOM_URL`, `CUSTOM_TOKEN` and
    /// `CUSTOM_SECRET` for `custom`.
    pub(crate) fn read(config: &Config, instance: &str) -> api::Result<Self> {
        let mut table: Table = config.parse()?;
        let variable = |name: &str| {
            let prefix = instance.to_ascii_uppercase().replace('-', "_");
            config
                .string(&format!("{prefix}_{name}"))
                .map(str::to_owned)
        };
        table.url = table.url.or_else(|| variable("URL"));
        table.token = table
            .token
            .or_else(|| variable("TOKEN").map(SecretString::from));
        table.secret = table
            .secret
            .or_else(|| variable("SECRET").map(SecretString::from));
        let url = table
            .url
            .as_deref()
            .map(|text| address("url", text))
            .transpose()?;
        let health_url = match &table.health_url {
            Some(text) => Some(address("health_url", text)?),
            None => url.clone(),
        };
        let secret = table.secret.as_ref();
        let signing = secret.map(Signing::new).transpose().map_err(|_| {
            invalid(
                "secret",
                "must be base64, with or without `whsec_` before it",
            )
        })?;
        if let Some(callback) = &table.callback {
            if signing.is_none() {
                return Err(invalid(
                    "callback",
                    "needs `secret`: an unsigned result cannot be authenticated",
                ));
            }
            if let Some(url) = &callback.public_url {
                address("callback.public_url", url)?;
            }
        }
        for (name, value) in &table.headers {
            let is_header = HeaderName::from_bytes(name.as_bytes()).is_ok()
                && HeaderValue::from_str(value.expose_secret()).is_ok();
            if !is_header {
                return Err(invalid(
                    "headers",
                    &format!("{name:?} or its value is not valid in an HTTP header"),
                ));
            }
        }
        for (key, seconds) in [
            ("poll_seconds", table.poll_seconds),
            ("silence_seconds", table.silence_seconds),
        ] {
            if !(0.01..=86_400.0).contains(&seconds) {
                return Err(invalid(key, "must be from 0.01 to 86400"));
            }
        }
        Ok(Self {
            table,
            url,
            health_url,
            signing: signing.map(Arc::new),
        })
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        Duration::from_secs_f64(self.table.poll_seconds)
    }
}

fn address(key: &str, text: &str) -> api::Result<Url> {
    let url = Url::parse(text).map_err(|error| invalid(key, &error.to_string()))?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => Ok(url),
        ("http" | "https", _, _) => {
            Err(invalid(key, "holds credentials; use `token` or `headers`"))
        }
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
        Settings::read(&Config::try_from(config).unwrap(), "convex-native")
    }

    #[test]
    fn variables_are_named_like_the_instance() {
        let settings = read(json!({"CONVEX_NATIVE_URL": "http://a/run", "CONVEX_NATIVE_TOKEN": "t", "HTTP_URL": "http://b"})).unwrap();
        assert_eq!(settings.url.unwrap().as_str(), "http://a/run");
        assert_eq!(settings.table.token.unwrap().expose_secret(), "t");
        assert_eq!(settings.health_url.unwrap().as_str(), "http://a/run");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (config, key) in [
            (json!({"url": "ftp://a"}), "url"),
            (json!({"url": "http://u:p@a"}), "url"),
            (json!({"url": "no"}), "url"),
            (json!({"secret": "!"}), "secret"),
            (json!({"callback": {}}), "callback"),
            (json!({"callback": {"port": 1}}), "port"),
            (json!({"headers": {"a b": "c"}}), "headers"),
            (json!({"poll_seconds": 0.0}), "poll_seconds"),
        ] {
            let error = read(config.clone())
                .err()
                .unwrap_or_else(|| panic!("{config} was taken"));
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(key), "{config}: {}", error.message);
        }
    }
}
