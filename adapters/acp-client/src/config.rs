//! The operator's settings: the program and its permissions. One object holds the environment variables and the table
//! `[adapters.<id>]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forge_adapter_api::{self as api, AdapterError, Config};
use jiff::SignedDuration;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::preset::Preset;

/// Names of the members of [`Table`].
const NAMES: [&str; 15] = [
    "program",
    "args",
    "dir",
    "model",
    "mode",
    "max_concurrent",
    "permission",
    "allowed_tools",
    "disallowed_tools",
    "usage",
    "native_tools",
    "forward",
    "env",
    "warm",
    "warm_idle",
];

/// Most warm processes.
const MOST_WARM: usize = 8;
/// Bounds of `warm_idle`.
const SHORTEST_IDLE: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_IDLE: SignedDuration = SignedDuration::from_hours(24);

pub(crate) struct Settings {
    pub(crate) preset: Preset,
    pub(crate) table: Table,
    /// Variables for the program, in addition to those inherited by every child.
    pub(crate) env: BTreeMap<String, String>,
}

/// The table `[adapters.<id>]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// The agent program: a path, or a name looked up in `PATH`.
    pub(crate) program: Option<PathBuf>,
    /// Arguments that start the agent in protocol mode, such as `acp`.
    #[serde(deserialize_with = "words")]
    pub(crate) args: Vec<String>,
    /// Working directory of dispatches without a workspace; default: a temporary directory removed after the run.
    pub(crate) dir: Option<PathBuf>,
    /// Model of dispatches that name none; default: the agent's own.
    pub(crate) model: Option<String>,
    /// Mode of every session; default: the one in which the agent asks before it acts.
    pub(crate) mode: Option<String>,
    pub(crate) max_concurrent: u32,
    /// Decision on a call that no rule covers.
    pub(crate) permission: Permission,
    /// Kinds of calls that are allowed without further checks.
    #[serde(deserialize_with = "words")]
    pub(crate) allowed_tools: Vec<ToolKind>,
    /// Kinds of calls that are always denied, before any other rule.
    #[serde(deserialize_with = "words")]
    pub(crate) disallowed_tools: Vec<ToolKind>,
    /// Scope of the agent's token counts.
    pub(crate) usage: UsageScope,
    /// Tools built into the agent, listed in the profile.
    #[serde(deserialize_with = "words")]
    pub(crate) native_tools: Vec<String>,
    /// Names of the bridge's variables that are forwarded to the program.
    #[serde(deserialize_with = "words")]
    pub(crate) forward: Vec<String>,
    /// Further variables for the program.
    pub(crate) env: BTreeMap<String, String>,
    /// Number of processes that wait for the next runs.
    pub(crate) warm: usize,
    /// Time after which a waiting process ends.
    pub(crate) warm_idle: SignedDuration,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            program: None,
            args: Vec::new(),
            dir: None,
            model: None,
            mode: None,
            // A run is a process of some hundred megabytes.
            max_concurrent: 4,
            permission: Permission::Deny,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            usage: UsageScope::Auto,
            native_tools: Vec::new(),
            forward: Vec::new(),
            env: BTreeMap::new(),
            // A waiting process costs the memory of an agent, some hundred megabytes.
            warm: 0,
            warm_idle: SignedDuration::from_mins(5),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Permission {
    /// Denies, except for files below the dispatch's workspace.
    Deny,
    Allow,
}

/// Kind of a tool call, as defined by the protocol.
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

/// Scope of the token counts at the end of a turn; agents differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UsageScope {
    /// The agent's known scope; for an unknown agent, only counts that are the same in every scope.
    Auto,
    /// All model calls of the turn.
    Turn,
    /// All model calls since the process started.
    Process,
    /// All model calls since the session began.
    Session,
    /// The last model call.
    LastCall,
    /// Counts are not reported.
    None,
}

impl Settings {
    pub(crate) fn read(config: &Config, preset: Preset) -> api::Result<Self> {
        config.refuse_misspelt(&[&NAMES[..], preset.settings].concat())?;
        let mut table: Table = config.parse()?;
        preset.complete(&mut table, config);
        let mut env = BTreeMap::new();
        for name in &table.forward {
            // A missing variable is no error here: the agent reports what it lacks.
            if let Some(value) = config.string(name) {
                env.insert(name.clone(), value.to_owned());
            }
        }
        env.extend(table.env.clone());
        if let Some(name) = env.keys().find(|name| !is_name(name)) {
            let text = format!(
                "env: {name:?} is not a valid variable name; use letters, digits and `_`, or remove it"
            );
            return Err(AdapterError::new("invalid_config", text));
        }
        check_warm(&table)?;
        Ok(Self { preset, table, env })
    }
}

fn check_warm(table: &Table) -> api::Result<()> {
    let text = match (table.warm, table.warm_idle) {
        (warm, _) if warm > MOST_WARM => {
            format!("warm: {warm} is too many; use 0 to {MOST_WARM} processes")
        }
        (_, idle) if !(SHORTEST_IDLE..=LONGEST_IDLE).contains(&idle) => {
            format!("warm_idle: {idle:#} is out of bounds; use a time from \"1s\" to \"24h\"")
        }
        (_, _) => return Ok(()),
    };
    Err(AdapterError::new("invalid_config", text))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Comma-separated words of a variable.
pub(crate) fn listed(text: Option<&str>) -> Vec<String> {
    let words = text.unwrap_or_default().split(',').map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Parses a list, or the comma-separated words of a variable.
fn words<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = match Value::deserialize(deserializer)? {
        Value::String(text) => listed(Some(&text)).into_iter().map(Value::from).collect(),
        list => list,
    };
    serde_json::from_value(list).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> api::Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap(), Preset::default())
    }

    #[test]
    fn nothing_is_allowed_and_nothing_is_passed_on_unless_said() {
        let settings = read(json!({"OPENAI_API_KEY": "k", "LD_PRELOAD": "x"})).unwrap();
        assert_eq!(settings.table.permission, Permission::Deny);
        assert_eq!(settings.table.program, None);
        assert!(settings.env.is_empty());
        assert_eq!(settings.table.warm, 0);
    }

    #[test]
    fn warm_processes_are_a_number_and_a_time() {
        let table = read(json!({"warm": 1, "warm_idle": "5m"})).unwrap().table;
        assert_eq!((table.warm, table.warm_idle.as_secs()), (1, 300));
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
            json!({"warm": 9}),
            json!({"warm": -1}),
            json!({"warm_idle": "5 sheep"}),
            json!({"warm_idle": "25h"}),
            json!({"warm_idle": "-5m"}),
            json!({"warm_idel": "5m"}),
        ] {
            let error = read(config.clone()).err().expect("it is refused");
            assert_eq!(error.code, "invalid_config", "{config}");
        }
    }
}
