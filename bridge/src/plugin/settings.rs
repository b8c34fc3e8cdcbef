//! The object that `initialize` receives: the environment without the bridge's own part, overlaid by the
//! adapter's table. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `[adapters.<id>]` of the configuration.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct AdapterTable {
    /// The library that serves this id, where it is not named like it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Lowers what the adapter's profile declares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Everything else is the adapter's own and given to it.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

/// The values may be secrets.
impl fmt::Debug for AdapterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterTable")
            .field("library", &self.library)
            .field("max_concurrent", &self.max_concurrent)
            .field("own", &self.own.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// The configuration object of one adapter.
pub(super) fn object(env: &BTreeMap<String, String>, table: &AdapterTable) -> Map<String, Value> {
    let mut object: Map<String, Value> = env
        .iter()
        .filter(|(name, _)| !is_ours(name))
        .map(|(name, value)| (name.clone(), Value::String(value.clone())))
        .collect();
    object.extend(
        table
            .own
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    object
}

/// The bridge's own secrets, by the words in their names, and the tables of other adapters.
fn is_ours(name: &str) -> bool {
    const SECRET: [&str; 9] = [
        "KEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "STORE", "BEARER", "MCP",
    ];
    name.strip_prefix("BRIDGE_").is_some_and(|rest| {
        rest.starts_with("ADAPTERS_") || rest.split('_').any(|word| SECRET.contains(&word))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_overlays_the_environment_and_our_secrets_stay_here() {
        let env = [
            ("ACME_AI_API_KEY", "sk-1"),
            ("BRIDGE_SECRET_KEY", "s"),
            ("BRIDGE_TOKENS", "s"),
            ("BRIDGE_CALLBACK_SECRET", "s"),
            ("BRIDGE_STORE", "postgres://u:p@h"),
            ("BRIDGE_ADAPTERS_OTHER_API_KEY", "s"),
            ("BRIDGE_MCP_SERVERS_FILES_ENV_A", "s"),
            ("BRIDGE_ADAPTERS", "acme-ai"),
            ("url", "from env"),
        ];
        let env = env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let table: AdapterTable = serde_json::from_value(json!({
            "library": "http", "max_concurrent": 2, "url": "http://x", "nested": {"a": 1}
        }))
        .unwrap();
        let expected = json!({"ACME_AI_API_KEY": "sk-1", "BRIDGE_ADAPTERS": "acme-ai",
            "url": "http://x", "nested": {"a": 1}});
        assert_eq!(Value::Object(object(&env, &table)), expected);
        assert_eq!(
            (table.library.as_deref(), table.max_concurrent),
            (Some("http"), Some(2))
        );
    }

    #[test]
    fn the_values_of_a_table_are_not_printed() {
        let table: AdapterTable = serde_json::from_value(json!({"api_key": "sk-1"})).unwrap();
        let text = format!("{table:?}");
        assert!(text.contains("api_key") && !text.contains("sk-1"), "{text}");
    }
}
