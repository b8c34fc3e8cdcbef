//! Payload of `initialize`: the environment without the bridge's own variables, overlaid by the adapter's table. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::instance::environment::{Environment, is_ours};
use crate::instance::isolation::Isolation;

/// `[adapters.<id>]` of the configuration.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct AdapterTable {
    /// Name of the library that serves this id. Default: `http` for `custom` and `convex-native`, else the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Limit of concurrent executions, also passed to the adapter. The limit that its profile then declares is never
    /// exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// Process that the library runs in. A program always has a process of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// User of the programs that the adapter starts, by name or as `uid:gid`. Default: `process.user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Limit of the data of the adapter's process, in bytes; each process that it starts has the same limit. No effect
    /// on a library in the bridge's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Place of the runtime's sessions, if several bridges share the store.
    #[serde(skip_serializing_if = "Sessions::is_own")]
    pub sessions: Sessions,
    /// All other keys: the adapter's own settings, passed to it.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

/// Place of the sessions of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sessions {
    /// On the machine of the bridge: dispatches of a session run on the bridge that ran the last one.
    #[default]
    Own,
    /// In one place for all bridges.
    Shared,
}

impl Sessions {
    fn is_own(&self) -> bool {
        *self == Self::Own
    }
}

/// Prints only the keys of `own`: its values can be secrets.
impl fmt::Debug for AdapterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterTable")
            .field("library", &self.library)
            .field("max_concurrent", &self.max_concurrent)
            .field("isolation", &self.isolation)
            .field("user", &self.user)
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("sessions", &self.sessions)
            .field("own", &self.own.keys().collect::<Vec<_>>())
            .finish()
    }
}

impl AdapterTable {
    /// Names of the variables that the adapter's process is given besides its own.
    pub(crate) fn listed_variables(&self) -> Vec<String> {
        let names = self.own.get(ENV).and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        names.map(str::to_owned).collect()
    }
}

/// Configuration sources of one adapter.
#[derive(Clone)]
pub(crate) struct Settings {
    pub environment: Environment,
    pub table: AdapterTable,
    /// True if the adapter has a process of its own.
    pub apart: bool,
}

impl Settings {
    /// The payload of `initialize`. `named` are the variables that the library asks for.
    pub(crate) fn object(&self, named: &[String]) -> Map<String, Value> {
        let variables = self
            .environment
            .variables
            .iter()
            .filter(|(name, _)| match self.apart {
                true => self.environment.is_its_own(name, named),
                false => !is_ours(name),
            });
        let mut object: Map<String, Value> = variables
            .map(|(name, value)| (name.clone(), Value::String(value.clone())))
            .collect();
        let own = self.table.own.iter();
        object.extend(
            own.filter(|(name, value)| !is_list_of_names(name, value))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        // Enforced by the bridge; an adapter that has the setting may use it in full.
        object.extend(
            self.table
                .max_concurrent
                .map(|most| ("max_concurrent".to_owned(), most.into())),
        );
        object
    }
}

/// Key in an adapter's table: a list of names is for the bridge, a table of variables for the adapter.
const ENV: &str = "env";

fn is_list_of_names(name: &str, value: &Value) -> bool {
    name == ENV && value.is_array()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::collections::BTreeMap;

    use super::*;

    fn environment(variables: BTreeMap<String, String>, table: &AdapterTable) -> Environment {
        Environment {
            id: "acme-ai".to_owned(),
            variables,
            listed: table.listed_variables(),
        }
    }

    #[test]
    fn the_table_overlays_the_environment_and_our_secrets_stay_here() {
        let env = [
            ("ACME_AI_API_KEY", "sk-1"),
            ("BRIDGE_SECRET_KEY", "s"),
            ("BRIDGE_TOKENS", "s"),
            ("BRIDGE_CALLBACK_SECRET", "s"),
            ("BRIDGE_STORE", "postgres://u:p@h"),
            ("PGPASSWORD", "s"),
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
            "url": "http://x", "nested": {"a": 1}, "max_concurrent": 2});
        assert_eq!(
            (table.library.as_deref(), table.max_concurrent),
            (Some("http"), Some(2))
        );
        let settings = Settings {
            environment: environment(env, &table),
            table,
            apart: false,
        };
        assert_eq!(Value::Object(settings.object(&[])), expected);
    }

    #[test]
    fn a_process_sees_its_own_variables_and_those_that_are_named() {
        let env = [
            ("ACME_AI_API_KEY", "sk-1"),
            ("ACME_OTHER", "not its own"),
            ("OPENAI_API_KEY", "named by the library"),
            ("HTTPS_PROXY", "named by the table"),
            ("BRIDGE_SECRET_KEY", "named, and refused all the same"),
            ("PGPASSWORD", "named, and refused all the same"),
            ("AWS_SECRET_ACCESS_KEY", "of another program"),
            ("PATH", "/bin"),
        ];
        let env = env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let table = json!({"isolation": "process", "env": ["HTTPS_PROXY", "BRIDGE_SECRET_KEY", "PGPASSWORD"]});
        let table = serde_json::from_value(table).unwrap();
        let settings = Settings {
            environment: environment(env, &table),
            table,
            apart: true,
        };
        let named = ["OPENAI_API_KEY".to_owned()];
        let names: Vec<_> = settings
            .object(&named)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["ACME_AI_API_KEY", "HTTPS_PROXY", "OPENAI_API_KEY"]);
        let names: Vec<_> = settings.environment.of_process(&[]).into_keys().collect();
        assert_eq!(names, ["ACME_AI_API_KEY", "HTTPS_PROXY", "PATH"]);
    }

    #[test]
    fn the_values_of_a_table_are_not_printed() {
        let table: AdapterTable = serde_json::from_value(json!({"api_key": "sk-1"})).unwrap();
        let text = format!("{table:?}");
        assert!(text.contains("api_key") && !text.contains("sk-1"), "{text}");
    }
}
