//! Configuration of an adapter.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{AdapterError, Result};

/// A JSON object: the environment variables, overlaid by the table `[adapters.<id>]` of the
/// bridge's configuration. Never printed: it holds keys.
#[derive(Clone, Default, PartialEq)]
pub struct Config(Map<String, Value>);

impl Config {
    /// The value under this name, unchanged.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The text under this name. An empty text counts as missing, like an environment variable that is set
    /// to nothing.
    pub fn string(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    }

    /// Deserializes the whole object. Give the fields of `T` defaults and do not deny unknown ones: the
    /// object holds many names that are not the adapter's.
    ///
    /// Fails with `invalid_config`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_value(Value::Object(self.0.clone())).map_err(|error| invalid(&error))
    }

    /// Deserializes one member; `None` when it is absent or null.
    ///
    /// Fails with `invalid_config` and names the member.
    pub fn parse_member<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|error| {
                AdapterError::new("invalid_config", format!("configuration: {name}: {error}"))
            }),
        }
    }

    /// Rejects a name that is similar to one of `settings` but equal to none, so that a misspelt setting is
    /// not silently ignored. A dissimilar name, or one with upper case letters, is accepted, because the
    /// object also holds environment variables.
    ///
    /// Fails with `invalid_config` and names the likely setting.
    pub fn refuse_misspelt(&self, settings: &[&str]) -> Result<()> {
        let meant = |name: &str| {
            let like = |known: &&&str| strsim::normalized_damerau_levenshtein(name, known) > 0.75;
            let ours = settings.contains(&name) || name.contains(|c: char| c.is_ascii_uppercase());
            settings.iter().find(like).filter(|_| !ours)
        };
        match self.0.keys().find_map(|name| Some((name, meant(name)?))) {
            Some((name, meant)) => Err(AdapterError::new(
                "invalid_config",
                format!("configuration: {name}: no such setting; did you mean {meant}?"),
            )),
            None => Ok(()),
        }
    }
}

fn invalid(error: &serde_json::Error) -> AdapterError {
    AdapterError::new("invalid_config", format!("configuration: {error}"))
}

impl TryFrom<Value> for Config {
    type Error = AdapterError;

    fn try_from(value: Value) -> Result<Self> {
        match value {
            Value::Object(members) => Ok(Self(members)),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(AdapterError::new(
                "invalid_config",
                "configuration: a JSON object was expected",
            )),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Config")
            .field(&self.0.keys().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    fn config() -> Config {
        Config::try_from(json!({"ACME_KEY": "s3cret", "EMPTY": "", "retries": 3, "url": 7}))
            .unwrap()
    }

    #[test]
    fn an_empty_text_counts_as_missing() {
        let config = config();
        assert_eq!(config.string("ACME_KEY"), Some("s3cret"));
        assert_eq!(config.string("EMPTY"), None);
        assert_eq!(config.string("ABSENT"), None);
    }

    #[test]
    fn debug_shows_names_and_never_values() {
        let shown = format!("{:?}", config());
        assert!(shown.contains("ACME_KEY"));
        assert!(!shown.contains("s3cret"));
    }

    #[test]
    fn a_wrong_type_is_invalid_config_and_says_where() {
        #[derive(Debug, Deserialize)]
        struct Mine {
            #[expect(dead_code, reason = "only its type matters")]
            url: String,
        }
        let error = config().parse::<Mine>().unwrap_err();
        assert_eq!(error.code, "invalid_config");
        let error = config().parse_member::<String>("url").unwrap_err();
        assert!(error.message.contains("url"), "{}", error.message);
        assert_eq!(config().parse_member::<u32>("retries"), Ok(Some(3)));
        assert_eq!(config().parse_member::<u32>("absent"), Ok(None));
    }

    #[test]
    fn a_misspelt_setting_is_refused_and_a_foreign_name_is_not() {
        let read = |name: &str| {
            let config = Config::try_from(serde_json::json!({ name: 1 })).unwrap();
            config.refuse_misspelt(&["base_url", "max_turns"])
        };
        for name in ["base_url", "BASE_URLS", "http_proxy", "_", "max"] {
            assert_eq!(read(name), Ok(()), "{name}");
        }
        for (name, meant) in [("baseurl", "base_url"), ("max_turn", "max_turns")] {
            let error = read(name).unwrap_err();
            assert!(error.message.contains(meant), "{}", error.message);
        }
    }
}
