//! Settings of the operator: the program, its command line and environment, and the format of its output.
//! None of them comes from a request.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::{self as api, AdapterError, Config, CostTier};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use crate::argv::{Placeholder, Template};
use crate::rules::{Pointers, Rule};

pub(crate) struct Settings {
    pub(crate) table: Table,
    pub(crate) argv: Template,
    /// Variables of the program besides the inherited ones.
    pub(crate) env: BTreeMap<String, SecretString>,
    pub(crate) exit_codes: BTreeMap<i32, String>,
}

/// The table `[adapters.command]`.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// The program: a path, or a name to look for in `PATH`.
    pub(crate) program: Option<PathBuf>,
    /// Its arguments; see [`Template`].
    pub(crate) args: Vec<Element>,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) output: Output,
    /// Interpretation of JSON values, with `json_lines` and `json`.
    pub(crate) rules: Vec<Rule>,
    /// Prefix of a line of JSON that contains the usage and is not output, with `text`.
    pub(crate) usage_line: Option<String>,
    /// Pointers into the file `{usage_file}` or the usage line.
    pub(crate) usage: Pointers,
    /// Error codes by exit code; others are `adapter_error`.
    pub(crate) exit_codes: BTreeMap<String, String>,
    /// Variables for the program.
    pub(crate) env: BTreeMap<String, SecretString>,
    /// Names of the bridge's variables that are passed on to the program.
    pub(crate) pass_env: Vec<String>,
    /// Time between SIGTERM and SIGKILL of a cancelled program, in seconds.
    pub(crate) kill_after_seconds: f64,
    pub(crate) line_bytes: usize,
    pub(crate) output_bytes: usize,
    pub(crate) max_concurrent: u32,
    pub(crate) cost_tier: CostTier,
}

/// An argument, or a group of them that is left out when a placeholder in it has no value.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Element {
    One(String),
    Group(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stdin {
    Prompt,
    /// The whole `ExecutionRequest` as one line of JSON.
    Request,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Output {
    /// The whole output is the answer.
    Text,
    /// A single JSON value.
    Json,
    /// JSON values, one per line.
    JsonLines,
    /// Lines of the bridge's own JSON: events, then one `ExecutionResult`.
    Bridge,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            program: None,
            args: Vec::new(),
            stdin: None,
            output: Output::Text,
            rules: Vec::new(),
            usage_line: None,
            usage: Pointers::default(),
            exit_codes: BTreeMap::new(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            kill_after_seconds: 5.0,
            line_bytes: 4 << 20,
            output_bytes: 16 << 20,
            max_concurrent: 4,
            cost_tier: CostTier::Low,
        }
    }
}

impl Settings {
    pub(crate) fn read(config: &Config) -> api::Result<Self> {
        let mut table: Table = config.parse()?;
        if table.program.is_none() {
            table.program = config.string("COMMAND_PROGRAM").map(PathBuf::from);
        }
        let argv =
            Template::parse(&table.args).map_err(|error| invalid("args", &error.to_string()))?;
        if !(0.0..=600.0).contains(&table.kill_after_seconds) {
            return Err(invalid("kill_after_seconds", "must be from 0 to 600"));
        }
        match (table.output, table.rules.is_empty()) {
            (Output::Json | Output::JsonLines, true) => {
                return Err(invalid(
                    "rules",
                    "`json` and `json_lines` output need at least one rule that locates the answer",
                ));
            }
            (Output::Text | Output::Bridge, false) => {
                return Err(invalid(
                    "rules",
                    "only `json` and `json_lines` output can have rules",
                ));
            }
            (Output::Json | Output::JsonLines, false) | (Output::Text | Output::Bridge, true) => {}
        }
        table
            .usage
            .check()
            .map_err(|error| invalid("usage", &error))?;
        for rule in &table.rules {
            rule.check().map_err(|error| invalid("rules", &error))?;
        }
        let mut exit_codes = BTreeMap::new();
        for (code, name) in &table.exit_codes {
            let code: i32 = code
                .parse()
                .map_err(|_| invalid("exit_codes", &format!("{code:?} is not an exit code")))?;
            exit_codes.insert(code, name.clone());
        }
        let passed = table
            .pass_env
            .iter()
            .filter_map(|name| Some((name.clone(), SecretString::from(config.string(name)?))));
        let mut env: BTreeMap<String, SecretString> = passed.collect();
        env.extend(table.env.clone());
        Ok(Self {
            table,
            argv,
            env,
            exit_codes,
        })
    }

    /// Content of stdin: as configured, else the prompt unless it is an argument.
    pub(crate) fn stdin(&self) -> Stdin {
        match (self.table.stdin, self.argv.has(Placeholder::Prompt)) {
            (Some(stdin), _) => stdin,
            (None, true) => Stdin::Nothing,
            (None, false) => Stdin::Prompt,
        }
    }

    pub(crate) fn kill_after(&self) -> Duration {
        Duration::from_secs_f64(self.table.kill_after_seconds)
    }

    /// Removes the values of the program's variables from a text, because they can be secret.
    pub(crate) fn redacted(&self, text: &str) -> String {
        self.env
            .values()
            .map(|value| value.expose_secret())
            // Shorter values are not secrets and would match in every text.
            .filter(|value| value.len() >= 8)
            .fold(text.to_owned(), |text, value| {
                text.replace(value, "[REDACTED]")
            })
    }

    /// True if the usage of every run can be read.
    pub(crate) fn counts_usage(&self) -> bool {
        let told = |pointers: &Pointers| {
            pointers.input_tokens.is_some() && pointers.output_tokens.is_some()
        };
        let read = self.argv.has(Placeholder::UsageFile) || self.table.usage_line.is_some();
        (read && told(&self.table.usage)) || self.table.rules.iter().any(|rule| told(&rule.usage))
    }

    /// Names of `pass_env` that are not set.
    pub(crate) fn missing_env(&self) -> Vec<&str> {
        let names = self.table.pass_env.iter().map(String::as_str);
        names.filter(|name| !self.env.contains_key(*name)).collect()
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
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn the_prompt_goes_to_stdin_unless_it_is_an_argument() {
        for (config, stdin) in [
            (json!({}), Stdin::Prompt),
            (json!({"args": ["-z", "{prompt}"]}), Stdin::Nothing),
            (
                json!({"args": ["--", "{prompt}"], "stdin": "request"}),
                Stdin::Request,
            ),
        ] {
            assert_eq!(read(config).unwrap().stdin(), stdin);
        }
    }

    #[test]
    fn the_first_example_of_the_readme_gives_the_prompt_on_stdin() {
        let readme = include_str!("../README.md");
        let args = readme.lines().find_map(|line| line.strip_prefix("args = "));
        let args: Value = serde_json::from_str(args.unwrap()).unwrap();
        let settings = read(json!({ "args": args })).unwrap();
        assert_eq!(settings.stdin(), Stdin::Prompt, "{args}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (config, key) in [
            (json!({"args": ["{promt}"]}), "args"),
            (json!({"args": [["{prompt}{model}"]]}), "args"),
            (json!({"kill_after_seconds": -1.0}), "kill_after_seconds"),
            (json!({"output": "json"}), "rules"),
            (json!({"rules": [{"output": "/a"}]}), "rules"),
            (
                json!({"output": "json", "rules": [{"output": "a"}]}),
                "rules",
            ),
            (
                json!({"output": "json", "rules": [{"outptu": "/a"}]}),
                "outptu",
            ),
            (json!({"usage": {"input_tokens": "a"}}), "usage"),
            (json!({"exit_codes": {"two": "x"}}), "exit_codes"),
            (json!({"output": "xml"}), "xml"),
        ] {
            let error = read(config.clone())
                .err()
                .unwrap_or_else(|| panic!("{config} was taken"));
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(key), "{config}: {}", error.message);
        }
    }

    #[test]
    fn only_named_variables_are_passed_and_their_values_stay_out_of_texts() {
        let settings = read(json!({"A_KEY": "s3cret-value", "B": "no", "pass_env": ["A_KEY", "C"], "env": {"D": "1"}})).unwrap();
        let names: Vec<&str> = settings.env.keys().map(String::as_str).collect();
        assert_eq!(names, ["A_KEY", "D"]);
        assert_eq!(settings.missing_env(), ["C"]);
        assert_eq!(
            settings.redacted("bad key s3cret-value 1"),
            "bad key [REDACTED] 1"
        );
    }
}
