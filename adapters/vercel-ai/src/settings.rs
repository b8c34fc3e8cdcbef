//! The operator's settings. One object holds the environment variables and the table `[adapters.<id>]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::{AdapterError, Config, Host, Result};
use forge_adapter_openai_client::Prices;
use forge_adapter_transport::http::Limits;
use forge_adapter_transport::retry;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::providers;

/// Path to the models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The providers' own protocols.
    #[default]
    Direct,
    /// Vercel's AI Gateway.
    Gateway,
    /// The `ai` package in a Node process.
    Sidecar,
}

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Api {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// OpenAI's Chat Completions.
    Chat,
    /// Google's `streamGenerateContent`.
    Gemini,
}

/// The table `[adapters.vercel-ai]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    /// Default `provider/model` of dispatches that name none.
    pub(crate) model: Option<String>,
    /// Models to turn to, in order, when retries did not help; as `provider/model`.
    pub(crate) fallback: Vec<String>,
    pub(crate) max_output_tokens: Option<u64>,
    /// Prices by `provider/model`.
    pub(crate) prices: Prices,
    /// Directory of stored conversations; default: in memory.
    pub(crate) session_dir: Option<PathBuf>,
    pub(crate) max_concurrent: Option<u32>,
    pub(crate) connect_seconds: f64,
    /// Timeout between two pieces of an answer, in seconds.
    pub(crate) silence_seconds: f64,
    /// Retries of one model call before its first output.
    pub(crate) model_retries: u32,
    pub(crate) providers: BTreeMap<String, Provider>,
    pub(crate) gateway: Gateway,
    pub(crate) sidecar: Sidecar,
}

/// The table `[adapters.vercel-ai.providers.<name>]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Provider {
    /// Protocol; required for a provider that is not built in.
    pub(crate) api: Option<Api>,
    /// Base address, including `/v1`.
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) headers: BTreeMap<String, String>,
    /// Members merged into every request's body.
    pub(crate) extra: Map<String, Value>,
    /// Mode `sidecar`: the npm package.
    pub(crate) package: Option<String>,
    /// Mode `sidecar`: the package's function that creates the provider.
    pub(crate) factory: Option<String>,
    /// Mode `sidecar`: the provider's method that creates the model; default: the provider itself is called.
    pub(crate) method: Option<String>,
    /// Mode `sidecar`: further options of the factory.
    pub(crate) options: Map<String, Value>,
}

/// The table `[adapters.vercel-ai.gateway]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gateway {
    pub(crate) api: Api,
    pub(crate) base_url: String,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) extra: Map<String, Value>,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            api: Api::Chat,
            base_url: "https://ai-gateway.vercel.sh/v1".to_owned(),
            api_key: None,
            extra: Map::new(),
        }
    }
}

/// The table `[adapters.vercel-ai.sidecar]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sidecar {
    /// Node 22 or newer: a path, or a name looked up in `PATH`.
    pub(crate) node: PathBuf,
    /// Directory whose `node_modules` holds `ai` and the provider packages.
    pub(crate) packages: Option<PathBuf>,
    /// Additional variables of the process.
    pub(crate) env: BTreeMap<String, String>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            node: PathBuf::from("node"),
            packages: None,
            env: BTreeMap::new(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Direct,
            model: None,
            fallback: Vec::new(),
            max_output_tokens: None,
            prices: Prices::new(),
            session_dir: None,
            max_concurrent: None,
            connect_seconds: 10.0,
            silence_seconds: 300.0,
            model_retries: retry::DEFAULT,
            providers: BTreeMap::new(),
            gateway: Gateway::default(),
            sidecar: Sidecar::default(),
        }
    }
}

const NAMES: [&str; 13] = [
    "mode",
    "model",
    "fallback",
    "max_output_tokens",
    "prices",
    "session_dir",
    "max_concurrent",
    "connect_seconds",
    "silence_seconds",
    retry::SETTING,
    "providers",
    "gateway",
    "sidecar",
];

impl Settings {
    /// Reads and validates the settings. An `invalid_config` error names the setting and a valid value.
    pub(crate) fn read(config: &Config) -> Result<Self> {
        config.refuse_misspelt(&NAMES)?;
        let mut settings: Self = config.parse()?;
        if config.get("mode").is_none()
            && let Some(mode) = config.parse_member("VERCEL_AI_MODE")?
        {
            settings.mode = mode;
        }
        settings.model = settings
            .model
            .or_else(|| config.string("VERCEL_AI_MODEL").map(str::to_owned));
        if settings.sidecar.packages.is_none() {
            settings.sidecar.packages = config.string("VERCEL_AI_PACKAGES").map(PathBuf::from);
        }
        settings.gateway.api_key = key(
            settings.gateway.api_key,
            config,
            &["AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"],
        );
        providers::complete(&mut settings.providers, config);
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<()> {
        let urls = self
            .providers
            .iter()
            .filter_map(|(name, provider)| {
                Some((
                    format!("providers.{name}.base_url"),
                    provider.base_url.as_ref()?,
                ))
            })
            .chain([("gateway.base_url".to_owned(), &self.gateway.base_url)]);
        for (name, url) in urls {
            if !Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
                return Err(at(
                    &name,
                    "an address such as https://api.example.org/v1 was expected",
                ));
            }
        }
        if self.mode != Mode::Sidecar
            && let Some((name, _)) = self
                .providers
                .iter()
                .find(|(_, provider)| provider.api.is_none() || provider.base_url.is_none())
        {
            return Err(at(
                &format!("providers.{name}"),
                "a provider that is not built in needs api (messages, responses, chat, gemini) and base_url",
            ));
        }
        if self.mode != Mode::Gateway {
            for model in &self.fallback {
                providers::split(self, model).map_err(|error| at("fallback", &error.message))?;
            }
        }
        if self.gateway.api == Api::Gemini {
            return Err(at(
                "gateway.api",
                "the gateway supports chat, responses and messages",
            ));
        }
        if let Some((model, _)) = self.prices.iter().find(|(_, price)| !price.is_sane()) {
            return Err(at(
                "prices",
                &format!("{model}: a price is a number of at least 0, per million tokens"),
            ));
        }
        for (name, seconds) in [
            ("connect_seconds", self.connect_seconds),
            ("silence_seconds", self.silence_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return Err(at(
                    name,
                    &format!("{seconds} is not between 0 and 86400 seconds"),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn limits(&self, host: &Host) -> Limits {
        Limits {
            connect: Duration::from_secs_f64(self.connect_seconds),
            silence: self.silence(),
            ..Limits::within(host.limits())
        }
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_secs_f64(self.silence_seconds)
    }
}

/// The table's key, else the first variable that is set.
pub(crate) fn key(
    own: Option<SecretString>,
    config: &Config,
    variables: &[&str],
) -> Option<SecretString> {
    own.or_else(|| {
        let text = variables.iter().find_map(|name| config.string(name))?;
        Some(SecretString::from(text.trim().to_owned()))
    })
}

fn at(name: &str, text: &str) -> AdapterError {
    AdapterError::new(
        "invalid_config",
        format!("adapters.vercel-ai.{name}: {text}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn what_cannot_be_meant_is_refused_where_it_stands() {
        for (config, said) in [
            (json!({"provider": {}}), "did you mean providers"),
            (json!({"mode": "native"}), "unknown variant"),
            (json!({"VERCEL_AI_MODE": "native"}), "VERCEL_AI_MODE"),
            (
                json!({"providers": {"acme": {}}}),
                "providers.acme: a provider that is not built in",
            ),
            (
                json!({"providers": {"openai": {"base_url": "x"}}}),
                "providers.openai.base_url",
            ),
            (
                json!({"providers": {"openai": {"key": "x"}}}),
                "unknown field",
            ),
            (json!({"gateway": {"api": "gemini"}}), "gateway.api"),
            (
                json!({"fallback": ["gpt-4.1"]}),
                "fallback: the model gpt-4.1",
            ),
            (
                json!({"prices": {"m": {"input": -1.0, "output": 1.0}}}),
                "prices: m",
            ),
            (json!({"silence_seconds": 0.0}), "silence_seconds: 0 is not"),
        ] {
            let error = read(config.clone()).unwrap_err();
            assert_eq!(error.code, "invalid_config", "{config}");
            assert!(error.message.contains(said), "{config}: {}", error.message);
        }
    }

    #[test]
    fn variables_stand_behind_the_table_and_keys_are_not_printed() {
        let settings = read(json!({
            "VERCEL_AI_MODE": "gateway", "AI_GATEWAY_API_KEY": "s3cret", "OPENAI_API_KEY": "s3cret",
        }))
        .unwrap();
        assert_eq!(settings.mode, Mode::Gateway);
        assert!(settings.gateway.api_key.is_some());
        assert!(settings.providers["openai-chat"].api_key.is_some());
        assert!(settings.providers["anthropic"].api_key.is_none());
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
