//! Environment variables that an adapter is given: never the bridge's secrets, and in a process of its own only those
//! that are its own. Pure.

use std::collections::BTreeMap;

/// Variables that every process of an adapter gets besides its own, for finding programs, folders and the locale.
const EVERYWHERE: [&str; 6] = ["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ"];

/// Variables of the bridge's environment, and the rule for one adapter.
#[derive(Clone)]
pub(crate) struct Environment {
    /// Id of the adapter.
    pub id: String,
    /// The bridge's variables.
    pub variables: BTreeMap<String, String>,
    /// Names that the adapter's table lists.
    pub listed: Vec<String>,
}

impl Environment {
    /// The environment of the adapter's process. `named` are the variables that the library asks for.
    pub(crate) fn of_process(&self, named: &[String]) -> BTreeMap<String, String> {
        let variables = self.variables.iter().filter(|(name, _)| {
            EVERYWHERE.contains(&name.as_str()) || self.is_its_own(name, named)
        });
        variables
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// True if the variable is the adapter's: `acme-ai` owns `ACME_AI_…`, those that its library asks for and those
    /// that its table lists.
    pub(crate) fn is_its_own(&self, name: &str, named: &[String]) -> bool {
        let prefix = format!("{}_", self.id.replace('-', "_").to_uppercase());
        let is_in = |names: &[String]| names.iter().any(|other| other == name);
        !is_ours(name) && (name.starts_with(&prefix) || is_in(named) || is_in(&self.listed))
    }
}

/// True for the bridge's own secrets, recognised by words in their names, for the password of its database, and for the
/// tables of adapters.
pub(crate) fn is_ours(name: &str) -> bool {
    const SECRET: [&str; 10] = [
        "KEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "STORE", "BEARER", "MCP", "OTLP",
    ];
    let is_secret = |rest: &str| {
        rest.starts_with("ADAPTERS_") || rest.split('_').any(|word| SECRET.contains(&word))
    };
    name == "PGPASSWORD" || name.strip_prefix("BRIDGE_").is_some_and(is_secret)
}
