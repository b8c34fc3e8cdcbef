//! Known providers, and the target of a request for `provider/model`.

use std::collections::BTreeMap;

use forge_adapter_api::{AdapterError, Config, Result};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};

use crate::settings::{Api, Mode, Provider, Settings, key};

/// Value of the header `anthropic-version`.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A provider that needs only a key.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    api: Api,
    base_url: &'static str,
    variables: &'static [&'static str],
    package: &'static str,
    factory: &'static str,
    method: Option<&'static str>,
}

pub(crate) const KNOWN: [Known; 4] = [
    Known {
        name: "anthropic",
        api: Api::Messages,
        base_url: "https://api.anthropic.com/v1",
        variables: &["ANTHROPIC_API_KEY"],
        package: "@ai-sdk/anthropic",
        factory: "createAnthropic",
        method: None,
    },
    Known {
        name: "openai",
        api: Api::Responses,
        base_url: "https://api.openai.com/v1",
        variables: &["OPENAI_API_KEY"],
        package: "@ai-sdk/openai",
        factory: "createOpenAI",
        method: None,
    },
    Known {
        name: "openai-chat",
        api: Api::Chat,
        base_url: "https://api.openai.com/v1",
        variables: &["OPENAI_API_KEY"],
        package: "@ai-sdk/openai",
        factory: "createOpenAI",
        method: Some("chat"),
    },
    Known {
        name: "google",
        api: Api::Gemini,
        base_url: "https://generativelanguage.googleapis.com/v1beta",
        variables: &["GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"],
        package: "@ai-sdk/google",
        factory: "createGoogleGenerativeAI",
        method: None,
    },
];

/// Variables with keys, for the adapter's child process.
pub(crate) const VARIABLES: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "GEMINI_API_KEY",
    "AI_GATEWAY_API_KEY",
    "VERCEL_OIDC_TOKEN",
];

/// Adds the known providers, and fills in their defaults where the operator set nothing.
pub(crate) fn complete(providers: &mut BTreeMap<String, Provider>, config: &Config) {
    for known in &KNOWN {
        let own = providers.entry(known.name.to_owned()).or_default();
        own.api.get_or_insert(known.api);
        own.base_url
            .get_or_insert_with(|| known.base_url.to_owned());
        own.package.get_or_insert_with(|| known.package.to_owned());
        own.factory.get_or_insert_with(|| known.factory.to_owned());
        if own.method.is_none() {
            own.method = known.method.map(str::to_owned);
        }
        own.api_key = key(own.api_key.take(), config, known.variables);
    }
}

/// Target of a request.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) api: Api,
    pub(crate) base_url: String,
    pub(crate) key: Option<SecretString>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) extra: Map<String, Value>,
    pub(crate) provider: String,
    pub(crate) model: String,
}

impl Target {
    /// Target of a model. Fails with `invalid_request` if no provider matches, and with `adapter_unavailable` if the
    /// key is missing.
    pub(crate) fn of(settings: &Settings, model: Option<&str>) -> Result<Self> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            let text = "no model: name one as provider/model in the dispatch, or set adapters.vercel-ai.model";
            return Err(AdapterError::new("invalid_request", text));
        };
        if settings.mode == Mode::Gateway {
            return Self::gateway(settings, model);
        }
        let (name, bare) = split(settings, model)?;
        Self::of_provider(settings, name, bare)
    }

    /// Target of a provider's model. Fails with `adapter_unavailable` if the key is missing, or the address: the mode
    /// `sidecar` needs none.
    pub(crate) fn of_provider(settings: &Settings, name: &str, bare: &str) -> Result<Self> {
        let provider = &settings.providers[name];
        let is_known = KNOWN.iter().any(|known| known.name == name);
        let (Some(api), Some(base_url)) = (provider.api, &provider.base_url) else {
            let text = format!("providers.{name} has no api or no base_url");
            return Err(AdapterError::new("adapter_unavailable", text));
        };
        if is_known && provider.api_key.is_none() {
            return Err(AdapterError::new("adapter_unavailable", no_key(name)));
        }
        Ok(Self {
            api,
            base_url: base_url.clone(),
            key: provider.api_key.clone(),
            headers: provider.headers.clone(),
            extra: provider.extra.clone(),
            provider: name.to_owned(),
            model: bare.to_owned(),
        })
    }

    fn gateway(settings: &Settings, model: &str) -> Result<Self> {
        let gateway = &settings.gateway;
        if gateway.api_key.is_none() {
            return Err(AdapterError::new("adapter_unavailable", NO_GATEWAY_KEY));
        }
        Ok(Self {
            api: gateway.api,
            base_url: gateway.base_url.clone(),
            key: gateway.api_key.clone(),
            headers: BTreeMap::new(),
            extra: gateway.extra.clone(),
            provider: "gateway".to_owned(),
            model: model.to_owned(),
        })
    }

    /// True if both have one server and send it the same headers.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        self.base_url == other.base_url && self.header_map().ok() == other.header_map().ok()
    }

    /// Address of a path below `base_url`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url.trim_end_matches('/'))
    }

    /// Headers with the key, and those set by the operator.
    pub(crate) fn header_map(&self) -> Result<HeaderMap> {
        let mut all = HeaderMap::new();
        let key = self.key.as_ref().map(|key| key.expose_secret());
        let bearer = key.map(|key| format!("Bearer {key}"));
        let own: &[(&str, Option<&str>)] = match self.api {
            Api::Messages => &[
                ("anthropic-version", Some(ANTHROPIC_VERSION)),
                ("x-api-key", key),
            ],
            Api::Responses | Api::Chat => &[(AUTHORIZATION.as_str(), bearer.as_deref())],
            Api::Gemini => &[("x-goog-api-key", key)],
        };
        let own = own
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)));
        let operators = self.headers.iter();
        for (name, value) in
            own.chain(operators.map(|(name, value)| (name.as_str(), value.as_str())))
        {
            let invalid = |_| {
                let text = format!(
                    "providers.{}: {name} is not a valid HTTP header, or its value is not",
                    self.provider
                );
                AdapterError::new("invalid_config", text)
            };
            let header = HeaderName::try_from(name).map_err(|_| invalid(()))?;
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid(()))?;
            value.set_sensitive(true);
            all.insert(header, value);
        }
        Ok(all)
    }
}

/// Splits `provider/model`.
pub(crate) fn split<'a>(settings: &Settings, model: &'a str) -> Result<(&'a str, &'a str)> {
    let parts = model.split_once('/').filter(|(_, bare)| !bare.is_empty());
    let Some((name, bare)) = parts.filter(|(name, _)| settings.providers.contains_key(*name))
    else {
        let known: Vec<&str> = settings.providers.keys().map(String::as_str).collect();
        let text = format!(
            "the model {model} is not provider/model with one of these providers: {}; another one needs \
             adapters.vercel-ai.providers.<name>",
            known.join(", ")
        );
        return Err(AdapterError::new("invalid_request", text));
    };
    Ok((name, bare))
}

pub(crate) const NO_GATEWAY_KEY: &str = "there is no key for the AI Gateway: set AI_GATEWAY_API_KEY, \
     VERCEL_OIDC_TOKEN or adapters.vercel-ai.gateway.api_key";

pub(crate) fn no_key(name: &str) -> String {
    let known = KNOWN.iter().find(|known| known.name == name);
    let variable = known.and_then(|known| known.variables.first());
    format!(
        "there is no API key for {name}: set {} or adapters.vercel-ai.providers.{name}.api_key",
        variable.unwrap_or(&"its variable")
    )
}
