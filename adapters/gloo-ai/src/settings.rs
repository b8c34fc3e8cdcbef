//! The operator's settings: address and credentials of the platform, and defaults of requests.

use std::path::PathBuf;

use forge_adapter_api::{AdapterError, Config, ExecutionRequest, Result};
use forge_adapter_transport::retry;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

/// The public platform.
const PLATFORM: &str = "https://platform.ai.gloo.com";

pub(crate) struct Settings {
    pub(crate) table: Table,
    pub(crate) platform: Platform,
    pub(crate) keys: Option<Keys>,
}

/// Credentials; a key takes precedence over client credentials.
pub(crate) enum Keys {
    Key(SecretString),
    Client { id: String, secret: SecretString },
}

/// The table `[adapters.gloo-ai]` without addresses and keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    pub(crate) generation: Generation,
    /// Default model: `auto`, `family:<name>` or a model's id.
    pub(crate) model: String,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) max_concurrent: u32,
    /// Retries of one call before its first output.
    pub(crate) model_retries: u32,
    /// Folder for conversations; default: in memory.
    pub(crate) session_dir: Option<PathBuf>,
    #[serde(flatten)]
    pub(crate) wishes: Wishes,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            generation: Generation::Newer,
            model: "auto".to_owned(),
            max_tokens: None,
            temperature: None,
            max_concurrent: 20,
            model_retries: retry::DEFAULT,
            session_dir: None,
            wishes: Wishes::default(),
        }
    }
}

/// Options that a dispatch can override in `metadata.gloo-ai`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Wishes {
    pub(crate) surface: Option<Surface>,
    pub(crate) tradition: Option<Tradition>,
    #[serde(alias = "ragPublisher")]
    pub(crate) rag_publisher: Option<String>,
    #[serde(alias = "sourcesLimit")]
    pub(crate) sources_limit: Option<u8>,
    #[serde(alias = "includeCitations")]
    pub(crate) include_citations: Option<bool>,
}

/// Names of [`Wishes`] in a dispatch.
const WISHES: [&str; 5] = [
    "surface",
    "tradition",
    "ragPublisher",
    "sourcesLimit",
    "includeCitations",
];

/// Keys of the table.
const KEYS: [&str; 16] = [
    "api_key",
    "base_url",
    "client_id",
    "client_secret",
    "generation",
    "include_citations",
    "max_concurrent",
    "max_tokens",
    "model",
    retry::SETTING,
    "rag_publisher",
    "session_dir",
    "sources_limit",
    "surface",
    "temperature",
    "tradition",
];

/// Generation of the platform's paths; both are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Generation {
    /// `/ai/v2/chat/completions`, with `/grounded` appended for grounded answers.
    Older,
    /// `/ai/v2/{guarded|grounded|direct}/chat/completions`.
    Newer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Surface {
    Guarded,
    Grounded,
    Direct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tradition {
    Evangelical,
    Catholic,
    Mainline,
    NotFaithSpecific,
}

/// The platform's root address, without a trailing slash.
#[derive(Clone, Debug)]
pub(crate) struct Platform(String);

impl Platform {
    fn parse(text: &str) -> Result<Self> {
        let explain = |why: &str| {
            invalid(&format!(
                "base_url (GLOO_BASE_URL): {text:?} {why}: set the platform's root, such as {PLATFORM}"
            ))
        };
        let url = Url::parse(text).map_err(|error| explain(&format!("is not a URL ({error})")))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(explain("is not an HTTP address"));
        }
        if url.path().contains("/ai/") || url.query().is_some() || url.fragment().is_some() {
            return Err(explain("has more than a root"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "base_url (GLOO_BASE_URL) contains a user name or a password: use the settings for credentials",
            ));
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }

    pub(crate) fn token(&self) -> String {
        format!("{}/oauth2/token", self.0)
    }

    pub(crate) fn models(&self) -> String {
        format!("{}/platform/v2/models", self.0)
    }

    pub(crate) fn chat(&self, generation: Generation, surface: Surface) -> String {
        let path = match (generation, surface) {
            (Generation::Older, Surface::Guarded | Surface::Direct) => "chat/completions",
            (Generation::Older, Surface::Grounded) => "chat/completions/grounded",
            (Generation::Newer, Surface::Guarded) => "guarded/chat/completions",
            (Generation::Newer, Surface::Grounded) => "grounded/chat/completions",
            (Generation::Newer, Surface::Direct) => "direct/chat/completions",
        };
        format!("{}/ai/v2/{path}", self.0)
    }
}

impl Settings {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let either = |key, variable| config.string(key).or_else(|| config.string(variable));
        let platform = Platform::parse(either("base_url", "GLOO_BASE_URL").unwrap_or(PLATFORM))?;
        let client = (
            either("client_id", "GLOO_CLIENT_ID"),
            either("client_secret", "GLOO_CLIENT_SECRET"),
        );
        let keys = match (either("api_key", "GLOO_API_KEY"), client) {
            (Some(key), _) => Some(Keys::Key(key.trim().into())),
            (None, (Some(id), Some(secret))) => Some(Keys::Client {
                id: id.to_owned(),
                secret: secret.trim().into(),
            }),
            (None, (None, None)) => None,
            (None, _) => {
                return Err(invalid(
                    "client_id (GLOO_CLIENT_ID) and client_secret (GLOO_CLIENT_SECRET) have to be set together",
                ));
            }
        };
        config.refuse_misspelt(&KEYS)?;
        let table: Table = config.parse()?;
        table.check()?;
        Ok(Self {
            table,
            platform,
            keys,
        })
    }

    /// Options of this dispatch, which override those of the table.
    pub(crate) fn wishes(&self, request: &ExecutionRequest) -> Result<Wishes> {
        let defaults = &self.table.wishes;
        let Some(own) = request.metadata.as_ref().and_then(|all| all.get("gloo-ai")) else {
            return Ok(defaults.clone());
        };
        let own = Wishes::of(own).map_err(|error| {
            AdapterError::new(
                "invalid_request",
                format!("metadata.gloo-ai: {}", error.message),
            )
        })?;
        Ok(Wishes {
            surface: own.surface.or(defaults.surface),
            tradition: own.tradition.or(defaults.tradition),
            rag_publisher: own.rag_publisher.or_else(|| defaults.rag_publisher.clone()),
            sources_limit: own.sources_limit.or(defaults.sources_limit),
            include_citations: own.include_citations.or(defaults.include_citations),
        })
    }
}

impl Table {
    fn check(&self) -> Result<()> {
        if self.model.trim().is_empty() {
            return Err(invalid(
                "model is empty: set auto, family:<name> or a model's id",
            ));
        }
        if self.max_concurrent == 0 {
            return Err(invalid("max_concurrent is 0: set at least 1"));
        }
        if self
            .temperature
            .is_some_and(|temperature| !(0.0..=2.0).contains(&temperature))
        {
            return Err(invalid("temperature is not between 0 and 2"));
        }
        self.wishes.check()
    }
}

impl Wishes {
    /// Parses the options of a dispatch; an unknown name is an error.
    fn of(value: &Value) -> Result<Self> {
        let unknown = value
            .as_object()
            .and_then(|members| members.keys().find(|name| !WISHES.contains(&name.as_str())));
        if let Some(name) = unknown {
            return Err(invalid(&format!(
                "{name:?} is not one of {}",
                WISHES.join(", ")
            )));
        }
        let wishes = Self::deserialize(value).map_err(|error| invalid(&error.to_string()))?;
        wishes.check()?;
        Ok(wishes)
    }

    fn check(&self) -> Result<()> {
        match self.sources_limit {
            Some(0 | 11..) => Err(invalid("sources_limit is not between 1 and 10")),
            Some(1..=10) | None => Ok(()),
        }
    }
}

fn invalid(message: &str) -> AdapterError {
    AdapterError::new("invalid_config", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (config, said) in [
            (json!({"base_url": "platform"}), "is not a URL"),
            (json!({"GLOO_BASE_URL": "ftp://a"}), "not an HTTP address"),
            (json!({"base_url": "https://a/ai/v2"}), "platform's root"),
            (
                json!({"base_url": "https://me:pw@a"}),
                "use the settings for credentials",
            ),
            (json!({"GLOO_CLIENT_ID": "id"}), "GLOO_CLIENT_SECRET"),
            (json!({"generation": "first"}), "older"),
            (json!({"surface": "open"}), "guarded"),
            (json!({"tradition": "none"}), "not_faith_specific"),
            (json!({"sources_limit": 11}), "between 1 and 10"),
            (json!({"temperature": 2.5}), "between 0 and 2"),
            (json!({"model": " "}), "family:<name>"),
            (json!({"max_concurrent": 0}), "at least 1"),
            (json!({"tradidion": "catholic"}), "did you mean tradition"),
        ] {
            let error = read(config.clone()).err().unwrap();
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(said), "{config}: {}", error.message);
            assert!(!error.message.contains("pw"), "{}", error.message);
        }
    }

    #[test]
    fn the_table_goes_before_variables_and_a_key_before_a_client() {
        let settings = read(json!({
            "GLOO_BASE_URL": "http://a", "base_url": "http://b/gloo/", "GLOO_API_KEY": "k",
            "GLOO_CLIENT_ID": "i", "GLOO_CLIENT_SECRET": "s",
        }))
        .unwrap();
        assert!(matches!(settings.keys, Some(Keys::Key(_))));
        let chat = |generation, surface| settings.platform.chat(generation, surface);
        assert_eq!(
            [
                chat(Generation::Newer, Surface::Guarded),
                chat(Generation::Newer, Surface::Grounded),
                chat(Generation::Newer, Surface::Direct),
                chat(Generation::Older, Surface::Guarded),
                chat(Generation::Older, Surface::Grounded),
            ],
            [
                "http://b/gloo/ai/v2/guarded/chat/completions",
                "http://b/gloo/ai/v2/grounded/chat/completions",
                "http://b/gloo/ai/v2/direct/chat/completions",
                "http://b/gloo/ai/v2/chat/completions",
                "http://b/gloo/ai/v2/chat/completions/grounded",
            ]
        );
        let keys = |config| read(config).unwrap().keys;
        let client = json!({"GLOO_CLIENT_ID": "i", "GLOO_CLIENT_SECRET": "s"});
        assert!(matches!(keys(client), Some(Keys::Client { .. })));
        assert!(keys(json!({"GLOO_API_KEY": ""})).is_none());
    }

    #[test]
    fn a_dispatch_decides_before_the_table_and_names_nothing_unknown() {
        let settings = read(json!({"tradition": "catholic", "sources_limit": 2})).unwrap();
        let wishes = |own: Value| {
            let mut request = ExecutionRequest::sample("m");
            request.metadata = Some(json!({"gloo-ai": own}));
            settings.wishes(&request)
        };
        let own =
            wishes(json!({"surface": "grounded", "sourcesLimit": 5, "includeCitations": true}))
                .unwrap();
        assert_eq!(
            own,
            Wishes {
                surface: Some(Surface::Grounded),
                tradition: Some(Tradition::Catholic),
                rag_publisher: None,
                sources_limit: Some(5),
                include_citations: Some(true),
            }
        );
        for (own, said) in [
            (json!({"sources": 5}), "sourcesLimit"),
            (json!({"sourcesLimit": 50}), "between 1 and 10"),
            (json!({"tradition": "x"}), "mainline"),
        ] {
            let error = wishes(own).unwrap_err();
            assert_eq!(error.code, "invalid_request");
            assert!(error.message.contains(said), "{}", error.message);
        }
    }
}
