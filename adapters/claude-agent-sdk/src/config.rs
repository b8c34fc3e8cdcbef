//! The operator's settings: the program, its credentials and its permissions. One object holds the environment
//! variables and the table `[adapters.claude-agent-sdk]`, so the program's own variables can be set in either.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forge_adapter_api::{self as api, Config};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Variables forwarded to the program if set; any other needs `env`.
pub(crate) const FORWARDED: [&str; 34] = [
    "HOME",
    "PATH",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_MODEL",
    "ANTHROPIC_VERTEX_PROJECT_ID",
    "AWS_ACCESS_KEY_ID",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "CLAUDE_CODE_MAX_RETRIES",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CONFIG_DIR",
    "CLOUD_ML_REGION",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "CLAUDE_CODE_CERT_STORE",
    "CLAUDE_CODE_CLIENT_CERT",
    "CLAUDE_CODE_CLIENT_KEY",
];

/// Credentials, one of which is sufficient.
const CREDENTIALS: [&str; 5] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
];

/// Variables of every run; they restrict the program to the task.
const FIXED: [(&str, &str); 6] = [
    ("CLAUDE_CODE_ENTRYPOINT", "sdk-forge-bridge"),
    ("CLAUDE_CODE_SDK_READS_SESSION_STATE", "1"),
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("DISABLE_ERROR_REPORTING", "1"),
    ("DISABLE_TELEMETRY", "1"),
];

pub(crate) struct Settings {
    pub(crate) table: Table,
    /// The program's variables, in addition to those inherited by every child.
    pub(crate) env: BTreeMap<String, String>,
}

/// The table `[adapters.claude-agent-sdk]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// The `claude` program: a path, or a name looked up in `PATH`.
    #[serde(alias = "CLAUDE_AGENT_SDK_PROGRAM")]
    pub(crate) program: PathBuf,
    /// Address of the model API; takes precedence over the program's own `ANTHROPIC_BASE_URL`.
    pub(crate) model_url: Option<String>,
    /// Model of dispatches that name none; default: the program's own.
    pub(crate) model: Option<String>,
    pub(crate) max_concurrent: u32,
    #[serde(deserialize_with = "number")]
    pub(crate) max_turns: Option<u32>,
    /// The tools available to the agent; default: the program's own set.
    #[serde(deserialize_with = "some_words")]
    pub(crate) tools: Option<Vec<String>>,
    /// Rules in the program's own syntax, such as `Bash(git status:*)`, for calls that are always allowed.
    #[serde(deserialize_with = "words")]
    pub(crate) allowed_tools: Vec<String>,
    #[serde(deserialize_with = "words")]
    pub(crate) disallowed_tools: Vec<String>,
    /// Decision on a call that no rule covers.
    pub(crate) permission: Permission,
    /// `default`, `acceptEdits`, `plan`, `dontAsk` or `bypassPermissions`.
    pub(crate) permission_mode: Option<String>,
    /// Settings files that the program reads, with their instructions (CLAUDE.md), skills, commands, hooks and
    /// permissions; default: none.
    #[serde(deserialize_with = "sources")]
    pub(crate) setting_sources: Vec<Source>,
    /// Report the program's hooks to the local agent of signals, whose rules can block them.
    pub(crate) signals: bool,
    /// Return the files that the tool `Write` wrote below the workspace as output files.
    pub(crate) output_files: bool,
    /// Relation of a dispatch's system prompt to the program's own.
    pub(crate) system_prompt: SystemPrompt,
    /// Subagents by name, in the program's own format: `description`, `prompt`, `tools`, `model`.
    pub(crate) agents: BTreeMap<String, Value>,
    /// Additional variables for the program.
    pub(crate) env: BTreeMap<String, String>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            program: PathBuf::from("claude"),
            model_url: None,
            model: None,
            // A run is a process of some hundred megabytes.
            max_concurrent: 4,
            max_turns: None,
            tools: None,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            permission: Permission::Deny,
            permission_mode: None,
            setting_sources: Vec::new(),
            signals: false,
            output_files: true,
            system_prompt: SystemPrompt::Replace,
            agents: BTreeMap::new(),
            env: BTreeMap::new(),
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

/// Owner of a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    User,
    Project,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SystemPrompt {
    Replace,
    Append,
}

impl Table {
    /// Value of `--setting-sources`.
    pub(crate) fn sources(&self) -> String {
        let names: Vec<&str> = self
            .setting_sources
            .iter()
            .map(|source| match source {
                Source::User => "user",
                Source::Project => "project",
                Source::Local => "local",
            })
            .collect();
        names.join(",")
    }
}

fn sources<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Source>, D::Error> {
    let names = words(deserializer)?.into_iter().map(Value::from).collect();
    serde_json::from_value(Value::Array(names)).map_err(D::Error::custom)
}

/// Parses a list, or the comma-separated words of a variable; commas within parentheses belong to a rule.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(split(&text)),
        list => serde_json::from_value(list).map_err(D::Error::custom),
    }
}

/// Parses a number, or a variable's text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.trim().parse().map(Some).map_err(D::Error::custom),
        value => serde_json::from_value(value).map_err(D::Error::custom),
    }
}

fn some_words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    words(deserializer).map(Some)
}

fn split(text: &str) -> Vec<String> {
    let mut depth = 0_u32;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(|word| word.trim().to_owned())
    .filter(|word| !word.is_empty())
    .collect()
}

impl Settings {
    pub(crate) fn read(config: &Config) -> api::Result<Self> {
        let table: Table = config.parse()?;
        let mut env: BTreeMap<String, String> = FORWARDED
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), config.string(name)?.to_owned())))
            .collect();
        env.extend(
            table
                .model_url
                .clone()
                .map(|url| ("ANTHROPIC_BASE_URL".to_owned(), url)),
        );
        env.extend(FIXED.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(table.env.clone());
        Ok(Self { table, env })
    }

    pub(crate) fn has_credentials(&self) -> bool {
        CREDENTIALS.iter().any(|name| self.env.contains_key(*name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> Settings {
        Settings::read(&Config::try_from(config).unwrap()).unwrap()
    }

    #[test]
    fn only_the_programs_own_variables_are_passed_on() {
        let settings = read(json!({
            "ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "o", "CLAUDECODE": "1", "LD_PRELOAD": "x",
            "env": {"WANTED": "1"},
        }));
        let names: Vec<&str> = settings.env.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "ANTHROPIC_API_KEY",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
                "CLAUDE_CODE_ENTRYPOINT",
                "CLAUDE_CODE_SDK_READS_SESSION_STATE",
                "DISABLE_AUTOUPDATER",
                "DISABLE_ERROR_REPORTING",
                "DISABLE_TELEMETRY",
                "WANTED",
            ]
        );
        assert!(settings.has_credentials());
    }

    #[test]
    fn the_tables_model_url_goes_before_the_variable() {
        let settings = read(json!({"ANTHROPIC_BASE_URL": "http://a", "model_url": "http://b"}));
        assert_eq!(settings.env["ANTHROPIC_BASE_URL"], "http://b");
    }

    #[test]
    fn a_variable_gives_lists_and_numbers_as_text() {
        assert_eq!(read(json!({"max_turns": "3"})).table.max_turns, Some(3));
        assert_eq!(read(json!({"max_turns": 3})).table.max_turns, Some(3));
        let settings = read(json!({"allowed_tools": "Bash(a,b), Read,", "tools": ["Bash"]}));
        assert_eq!(settings.table.allowed_tools, ["Bash(a,b)", "Read"]);
        assert_eq!(settings.table.tools, Some(vec!["Bash".to_owned()]));
        assert!(settings.table.disallowed_tools.is_empty());
    }

    #[test]
    fn nothing_is_allowed_unless_said() {
        let settings = read(json!({}));
        assert_eq!(settings.table.permission, Permission::Deny);
        assert_eq!(settings.table.program, PathBuf::from("claude"));
        assert!(!settings.has_credentials());
        let settings =
            read(json!({"permission": "allow", "CLAUDE_AGENT_SDK_PROGRAM": "/opt/claude"}));
        assert_eq!(settings.table.permission, Permission::Allow);
        assert_eq!(settings.table.program, PathBuf::from("/opt/claude"));
    }
}
