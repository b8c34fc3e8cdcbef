//! What the operator decides: the program and what it may do. One object holds the environment variables
//! and the table `[adapters.<id>]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forge_adapter_api::{self as api, AdapterError, Config};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The members of [`Table`].
const NAMES: [&str; 12] = [
    "program",
    "args",
    "dir",
    "model",
    "max_concurrent",
    "permission",
    "allowed_tools",
    "disallowed_tools",
    "usage",
    "native_tools",
    "forward",
    "env",
];

pub(crate) struct Settings {
    pub(crate) table: Table,
    /// The program's whole environment besides what every child inherits.
    pub(crate) env: BTreeMap<String, String>,
}

/// The table `[adapters.<id>]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// The agent: a path, or a name to look for in `PATH`.
    #[serde(alias = "ACP_PROGRAM")]
    pub(crate) program: Option<PathBuf>,
    /// What makes it speak the protocol, such as `acp`.
    #[serde(alias = "ACP_ARGS", deserialize_with = "words")]
    pub(crate) args: Vec<String>,
    /// Where dispatches without a workspace run; else in a folder that goes with the run.
    pub(crate) dir: Option<PathBuf>,
    /// For dispatches that name no model; else the agent's own default.
    pub(crate) model: Option<String>,
    pub(crate) max_concurrent: u32,
    /// What happens to a call that no rule decides.
    pub(crate) permission: Permission,
    /// Kinds of calls that need no decision.
    #[serde(deserialize_with = "words")]
    pub(crate) allowed_tools: Vec<ToolKind>,
    /// Kinds of calls that are denied, whatever else is said.
    #[serde(deserialize_with = "words")]
    pub(crate) disallowed_tools: Vec<ToolKind>,
    /// What the agent's token counts count.
    pub(crate) usage: UsageScope,
    /// Tools that the agent brings, for the profile.
    #[serde(deserialize_with = "words")]
    pub(crate) native_tools: Vec<String>,
    /// Names of the bridge's variables that reach the program.
    #[serde(alias = "ACP_FORWARD", deserialize_with = "words")]
    pub(crate) forward: Vec<String>,
    /// Further variables for the program.
    pub(crate) env: BTreeMap<String, String>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            program: None,
            args: Vec::new(),
            dir: None,
            model: None,
            // Each run is a process of some hundred megabytes.
            max_concurrent: 4,
            permission: Permission::Deny,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            usage: UsageScope::Auto,
            native_tools: Vec::new(),
            forward: Vec::new(),
            env: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Permission {
    /// Files below the dispatch's workspace excepted.
    Deny,
    Allow,
}

/// What the protocol calls the kind of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolKind {
    Read,
    Edit,
    Delete,
    Move,
    Search,
    Execute,
    Think,
    Fetch,
    SwitchMode,
    Other,
}

/// What the token counts at the end of a turn count; agents differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UsageScope {
    /// What is known of the agent; of an unknown one, only counts that mean the same in every reading.
    Auto,
    /// All calls of the model in this turn.
    Turn,
    /// All since the process started.
    Process,
    /// All since the session began.
    Session,
    /// The last call of the model.
    LastCall,
    /// Nothing that is worth reporting.
    None,
}

impl Settings {
    pub(crate) fn read(config: &Config) -> api::Result<Self> {
        config.refuse_misspelt(&NAMES)?;
        let table: Table = config.parse()?;
        let mut env = BTreeMap::new();
        for name in &table.forward {
            // Absent is not wrong: the agent says what it misses.
            if let Some(value) = config.string(name) {
                env.insert(name.clone(), value.to_owned());
            }
        }
        env.extend(table.env.clone());
        if let Some(name) = env.keys().find(|name| !is_name(name)) {
            let text = format!(
                "env: {name:?} is no name of a variable; take letters, digits and `_`, or leave it out"
            );
            return Err(AdapterError::new("invalid_config", text));
        }
        Ok(Self { table, env })
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// A list, or, from a variable, its words between commas.
fn words<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = match Value::deserialize(deserializer)? {
        Value::String(text) => text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(Value::from)
            .collect(),
        list => list,
    };
    serde_json::from_value(list).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> api::Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn nothing_is_allowed_and_nothing_is_passed_on_unless_said() {
        let settings = read(json!({"OPENAI_API_KEY": "k", "LD_PRELOAD": "x"})).unwrap();
        assert_eq!(settings.table.permission, Permission::Deny);
        assert_eq!(settings.table.program, None);
        assert!(settings.env.is_empty());
    }

    #[test]
    fn variables_that_are_named_reach_the_program_and_the_table_goes_before_them() {
        let settings = read(json!({
            "OPENAI_API_KEY": "k", "MODE": "a", "forward": ["OPENAI_API_KEY", "MODE", "ABSENT"],
            "env": {"MODE": "b"},
        }))
        .unwrap();
        let env: Vec<_> = settings.env.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        assert_eq!(env, [("MODE", "b"), ("OPENAI_API_KEY", "k")]);
    }

    #[test]
    fn a_variable_gives_lists_as_text() {
        let settings = read(json!({
            "ACP_PROGRAM": "hermes", "ACP_ARGS": "acp", "allowed_tools": "read, execute",
        }))
        .unwrap();
        assert_eq!(settings.table.program, Some(PathBuf::from("hermes")));
        assert_eq!(settings.table.args, ["acp"]);
        let kinds = [ToolKind::Read, ToolKind::Execute];
        assert_eq!(settings.table.allowed_tools, kinds);
    }

    #[test]
    fn what_cannot_be_meant_is_invalid() {
        for config in [
            json!({"permission": "sometimes"}),
            json!({"allowed_tools": ["bash"]}),
            json!({"usage": "all"}),
            json!({"disalowed_tools": ["execute"]}),
            json!({"env": {"A=B": "x"}}),
        ] {
            let error = read(config.clone()).err().expect("it is refused");
            assert_eq!(error.code, "invalid_config", "{config}");
        }
    }
}
