//! Names and folders of profiles. A profile is an agent of Hermes: its settings, instructions, skills and sessions.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use forge_adapter_api::{AdapterError, Host, Result};

use crate::management::invalid;

/// The profile that every installation has.
pub(crate) const DEFAULT: &str = "default";

/// The allowed form of a profile's name, for error texts.
pub(crate) const FORM: &str =
    "use 1 to 64 of a-z, 0-9, `_` and `-`, beginning with a letter or digit";

/// True if Hermes keeps this name unchanged.
pub(crate) fn is_name(name: &str) -> bool {
    is_name_with(name, b"_-")
}

/// True for 1 to 64 letters, digits and `marks`, none of which comes first.
pub(crate) fn is_name_with(name: &str, marks: &[u8]) -> bool {
    let begins = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= 64
        && bytes.first().is_some_and(begins)
        && bytes
            .iter()
            .all(|byte| begins(byte) || marks.contains(byte))
}

/// Refuses an agent id that Hermes would change or refuse.
pub(crate) fn check(agent_id: &str) -> Result<()> {
    match is_name(agent_id) {
        true => Ok(()),
        false => Err(invalid(format!(
            "agentId: {agent_id:?} is not the name of a profile; {FORM}"
        ))),
    }
}

/// Folder that holds the profiles of an installation; `None` if no home is known.
pub(crate) fn folder(host: &Host, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let home = env.get("HOME").map(PathBuf::from);
    let home = home
        .or_else(|| host.user().map(|user| user.home.clone()))
        .or_else(std::env::home_dir);
    let native = home.map(|home| home.join(".hermes"));
    let configured = env.get("HERMES_HOME").map(PathBuf::from);
    Some(root(native.as_deref(), configured)?.join("profiles"))
}

/// Finds the installation's folder as Hermes does: `HERMES_HOME` can also be the folder of one of its profiles.
fn root(native: Option<&Path>, configured: Option<PathBuf>) -> Option<PathBuf> {
    match (native, configured) {
        (Some(native), Some(path)) if path.starts_with(native) => Some(native.to_owned()),
        (_, Some(path)) => match path.parent() {
            Some(parent) if parent.ends_with("profiles") => parent.parent().map(Path::to_owned),
            Some(_) | None => Some(path),
        },
        (native, None) => native.map(Path::to_owned),
    }
}

/// Names of all profiles of an installation.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>> {
    let unreadable = |error: io::Error| {
        let text = format!("cannot read the profiles in {}: {error}", folder.display());
        AdapterError::new("adapter_unavailable", text)
    };
    let entries = match folder.read_dir() {
        Ok(entries) => entries
            .collect::<io::Result<Vec<_>>>()
            .map_err(unreadable)?,
        // Hermes makes it with the first profile beside the default one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(unreadable(error)),
    };
    let folders = entries.iter().filter(|entry| entry.path().is_dir());
    let named = folders.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = named
        .filter(|name| is_name(name) && name != DEFAULT)
        .collect();
    names.sort();
    names.insert(0, DEFAULT.to_owned());
    Ok(names)
}

/// Returns the profile that runs the dispatches of an agent: the one of its name, else `fallback`. Fails with
/// `invalid_request` if neither is set.
pub(crate) fn of_agent(agent_id: &str, folder: Option<&Path>, fallback: &str) -> Result<String> {
    let exists = |folder: &Path| match folder.join(agent_id).metadata() {
        Ok(metadata) => metadata.is_dir(),
        // Hermes itself reports a profile that it cannot read.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    let named = is_name(agent_id) && (agent_id == DEFAULT || folder.is_some_and(exists));
    match (named, fallback) {
        (true, _) => Ok(agent_id.to_owned()),
        (false, "") => Err(invalid(format!(
            "agentId: there is no profile {agent_id:?}; create it with `hermes profile create`, or through the bridge, \
             or set `agent` to the profile for such ids"
        ))),
        (false, fallback) => Ok(fallback.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_hermes_would_change_are_refused() {
        let long = "a".repeat(65);
        for (name, kept) in [
            ("ada", true),
            ("0_a-b", true),
            ("default", true),
            (&long[1..], true),
            (&long[..], false),
            ("Ada", false),
            ("-p", false),
            ("..", false),
            ("a/b", false),
            ("a b", false),
            ("ünï", false),
            ("阿达", false),
            ("", false),
        ] {
            assert_eq!(is_name(name), kept, "{name}");
            assert_eq!(check(name).is_ok(), kept, "{name}");
        }
    }

    #[test]
    fn profiles_are_below_the_installation_and_not_below_a_profile() {
        let native = Path::new("/home/a/.hermes");
        for (configured, expected) in [
            (None, "/home/a/.hermes"),
            (Some("/home/a/.hermes/profiles/ada"), "/home/a/.hermes"),
            (Some("/opt/data"), "/opt/data"),
            (Some("/opt/data/profiles/ada"), "/opt/data"),
        ] {
            let found = root(Some(native), configured.map(PathBuf::from));
            assert_eq!(found.as_deref(), Some(Path::new(expected)));
        }
    }

    #[test]
    fn an_agent_without_a_profile_runs_on_the_configured_one_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(names(&folder.path().join("none")).unwrap(), ["default"]);
        std::fs::create_dir(folder.path().join("ada")).unwrap();
        std::fs::create_dir(folder.path().join("No Name")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(names(folder.path()).unwrap(), ["default", "ada"]);
        assert!(names(&folder.path().join("file")).is_err());
        let of = |agent, fallback| of_agent(agent, Some(folder.path()), fallback);
        assert_eq!(of("ada", "default").unwrap(), "ada");
        assert_eq!(of("bob", "ada").unwrap(), "ada");
        assert_eq!(of("default", "").unwrap(), "default");
        for agent in ["bob", "Bob/..", ".."] {
            assert_eq!(of(agent, "").unwrap_err().code, "invalid_request");
        }
        assert_eq!(of_agent("ada", None, "default").unwrap(), "default");
    }
}
