//! Differences between the adapters that use this crate.

use std::path::PathBuf;

use forge_adapter_api::Config;

use crate::config::{Table, listed};

/// Properties of the adapter that its operator does not set.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Prefix of the variables that set the program, its arguments and the forwarded variables, such as `ACP_PROGRAM`.
    pub prefix: &'static str,
    /// The program, if the operator names none.
    pub program: Option<&'static str>,
    /// Its arguments, if the operator names none.
    pub args: &'static [&'static str],
    /// Names of the program's tools for the profile, if the operator names none; separated by spaces.
    pub native_tools: &'static str,
    /// Variables of the bridge that are forwarded besides those that the operator names.
    pub forward: &'static [&'static str],
    /// Names of settings that the adapter itself reads.
    pub settings: &'static [&'static str],
    /// Advice for a missing program, such as "install the agent".
    pub install: &'static str,
}

impl Default for Preset {
    fn default() -> Self {
        Self {
            prefix: "ACP",
            program: None,
            args: &[],
            native_tools: "",
            forward: &[],
            settings: &[],
            install: "install the agent",
        }
    }
}

impl Preset {
    /// Fills in what the table leaves open: from variables, else from the preset.
    pub(crate) fn complete(&self, table: &mut Table, config: &Config) {
        let variable = |name: &str| config.string(&format!("{}_{name}", self.prefix));
        if table.program.is_none() {
            let program = variable("PROGRAM").or(self.program);
            table.program = program.map(PathBuf::from);
        }
        let fill = |list: &mut Vec<String>, others: Vec<String>| {
            if list.is_empty() {
                *list = others;
            }
        };
        fill(&mut table.args, listed(variable("ARGS")));
        fill(&mut table.args, owned(self.args));
        let tools = self.native_tools.split_whitespace();
        fill(&mut table.native_tools, tools.map(str::to_owned).collect());
        fill(&mut table.forward, listed(variable("FORWARD")));
        table.forward.extend(owned(self.forward));
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Settings;

    #[test]
    fn an_adapter_for_one_program_has_its_own_variables_and_defaults() {
        let preset = Preset {
            prefix: "MARMOT",
            program: Some("marmot"),
            args: &["acp"],
            forward: &["MARMOT_HOME"],
            settings: &["burrow"],
            ..Preset::default()
        };
        let read = |config: Value| Settings::read(&Config::try_from(config).unwrap(), preset);
        let settings =
            read(json!({"ACP_PROGRAM": "x", "ACP_ARGS": "y", "MARMOT_HOME": "/m"})).unwrap();
        assert_eq!(settings.table.program, Some(PathBuf::from("marmot")));
        assert_eq!(settings.table.args, ["acp"]);
        assert_eq!(settings.env["MARMOT_HOME"], "/m");
        let settings = read(json!({"MARMOT_PROGRAM": "/bin/marmot", "args": ["serve"]})).unwrap();
        assert_eq!(settings.table.program, Some(PathBuf::from("/bin/marmot")));
        assert_eq!(settings.table.args, ["serve"]);
        let misspelt = read(json!({"burow": 1})).err().expect("it is refused");
        assert!(misspelt.message.contains("burrow"), "{}", misspelt.message);
    }
}
