//! Resolves the adapter ids of the configuration to library files. Looks at folders, opens no library.

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::DLL_EXTENSION;
use std::io;
use std::path::{Path, PathBuf};

use forge_base::ownership::{self, LastLink, Objection};
use forge_base::spelling::nearest;

use crate::boundary::load_error::LoadError;
use crate::registry::error::Error;
use crate::registry::settings::AdapterTable;

/// Id of the adapter that is part of the bridge.
pub(crate) const EXTERNAL: &str = "external";

/// An adapter id and the library that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The provider id that the bridge serves.
    pub id: String,
    /// The library's own name.
    pub library: String,
}

/// The ids to load with the library of each, and every id that is a duplicate or not a valid name.
pub(crate) fn names(
    ids: &[String],
    tables: &BTreeMap<String, AdapterTable>,
) -> (Vec<Named>, Vec<Error>) {
    let mut errors = Vec::new();
    let tables_and_ids = [tables.keys().collect::<Vec<_>>(), ids.iter().collect()];
    for list in &tables_and_ids {
        // `a-b` and `a_b` would be the same file and the same environment variables.
        let mut seen = BTreeMap::new();
        for &name in list {
            if !is_name(name) {
                errors.push(Error::BadName(name.clone()));
            } else if name == EXTERNAL {
                errors.push(Error::Reserved(name.clone()));
            } else if let Some(first) = seen.insert(stem(name), name) {
                errors.push(Error::DuplicateId {
                    first: first.clone(),
                    second: name.clone(),
                });
            }
        }
    }
    let mut named = Vec::new();
    for id in ids {
        let library = tables.get(id).and_then(|table| table.library.clone());
        if let Some(library) = library.as_ref().filter(|library| !is_name(library)) {
            errors.push(Error::BadName(library.clone()));
        }
        named.push(Named {
            id: id.clone(),
            library: library.unwrap_or_else(|| default_library(id).to_owned()),
        });
    }
    (named, errors)
}

/// Library of an id whose table names none: the id, except for two runtimes that the library `http` serves.
fn default_library(id: &str) -> &str {
    match id {
        "custom" | "convex-native" => "http",
        id => id,
    }
}

/// Folders searched for libraries and programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchPath {
    /// Absolute, in order.
    folders: Vec<PathBuf>,
    /// Configured folders that are not searched: relative ones that another user can change.
    refused: Vec<String>,
}

impl SearchPath {
    /// The configured folders, `plugins` beside the binary (the layout of a release), the binary's folder. A relative
    /// folder depends on where the bridge was started, so it counts only if no other user can exchange it.
    pub(crate) fn new(configured: &[PathBuf]) -> Result<Self, Error> {
        let mut path = Self::default();
        for folder in configured {
            let absolute = std::path::absolute(folder).map_err(|source| Error::PluginPath {
                path: folder.clone(),
                source,
            })?;
            match objection(folder, &absolute) {
                Some(why) => path.refused.push(why),
                None => path.folders.push(absolute),
            }
        }
        // Without a known path of the binary there is no folder beside it.
        if let Ok(binary) = std::env::current_exe()
            && let Some(beside) = binary.parent()
        {
            path.folders
                .extend([beside.join("plugins"), beside.to_owned()]);
        }
        Ok(path)
    }

    /// Folders that are not searched, with the reasons.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let refused = self.refused.iter();
        refused.map(|why| format!("plugin.path: not searched, because {why}"))
    }

    /// The file of a library, from the first folder that has one. The outer error is two candidates in one folder.
    pub(crate) fn find(&self, library: &str) -> Result<Result<PathBuf, LoadError>, Error> {
        let file = format!("{LIBRARY}{}.{DLL_EXTENSION}", stem(library));
        let program = format!("{PROGRAM}{library}");
        for folder in &self.folders {
            let shared = Some(folder.join(&file)).filter(|path| exists(path));
            let executable = Some(folder.join(&program)).filter(|path| exists(path));
            match (shared, executable) {
                (Some(first), Some(second)) => {
                    return Err(Error::DuplicateFile {
                        id: library.to_owned(),
                        first,
                        second,
                    });
                }
                (Some(path), None) | (None, Some(path)) => return Ok(Ok(path)),
                (None, None) => {}
            }
        }
        Ok(Err(LoadError::NotFound(
            self.not_found(library, &file, &program),
        )))
    }

    fn not_found(&self, library: &str, file: &str, program: &str) -> String {
        let folders = self.folders.iter();
        let folders: Vec<_> = folders.map(|folder| folder.display().to_string()).collect();
        let folders = folders.join(" or ");
        let present = self.present();
        let near = nearest(library, present.iter().map(String::as_str));
        let advice = match near {
            Some(name) => format!("did you mean {name}?"),
            None => "put one there, or name its folder in BRIDGE_PLUGIN_PATH (adapters are in `plugins` of a release archive, \
                     or in target/release after `cargo build --release` in the sources; `cargo install` installs none)"
                .to_owned(),
        };
        let refused: String = self.warnings().map(|line| format!("; {line}")).collect();
        format!("no {file} in {folders}, and no program {program}; {advice}{refused}")
    }

    /// Names of the libraries and programs in the folders.
    fn present(&self) -> BTreeSet<String> {
        let entries = self
            .folders
            .iter()
            .filter_map(|folder| folder.read_dir().ok());
        let files = entries.flatten().flatten().map(|entry| entry.file_name());
        files
            .filter_map(|file| {
                let file = file.to_str()?;
                let library = file.strip_prefix(LIBRARY).and_then(|rest| {
                    let stem = rest.strip_suffix(DLL_EXTENSION)?.strip_suffix('.')?;
                    Some(stem.replace('_', "-"))
                });
                library.or_else(|| file.strip_prefix(PROGRAM).map(str::to_owned))
            })
            .collect()
    }
}

/// Reason why a relative folder is not searched. One that does not exist is named when a library is not found.
fn objection(folder: &Path, absolute: &Path) -> Option<String> {
    if folder.is_absolute() {
        return None;
    }
    match ownership::open(absolute, LastLink::Follow) {
        Ok(checked) => checked.objections.first().map(Objection::to_string),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("{} cannot be opened: {error}", absolute.display())),
    }
}

/// Beginning of the file name of a library, and of a program.
const LIBRARY: &str = "libforge_adapter_";
const PROGRAM: &str = "forge-adapter-";

/// True for a broken symbolic link too: it is refused later, by name.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn stem(name: &str) -> String {
    name.replace('-', "_")
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(library: &str) -> AdapterTable {
        AdapterTable {
            library: Some(library.to_owned()),
            ..AdapterTable::default()
        }
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_table_serves_a_library_under_another_id() {
        let tables = BTreeMap::from([("custom".to_owned(), table("http"))]);
        let (named, errors) = names(&strings(&["custom", "http"]), &tables);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(named[0].library, "http");
        assert_eq!(named[1].library, "http");
    }

    #[test]
    fn two_ids_are_served_by_http_unless_a_table_names_a_library() {
        let tables = BTreeMap::from([
            ("custom".to_owned(), table("custom")),
            ("convex-native".to_owned(), AdapterTable::default()),
        ]);
        for (id, without, with) in [
            ("custom", "http", "custom"),
            ("convex-native", "http", "http"),
            ("echo", "echo", "echo"),
        ] {
            for (tables, library) in [(&BTreeMap::new(), without), (&tables, with)] {
                let (named, errors) = names(&strings(&[id]), tables);
                assert!(errors.is_empty(), "{errors:?}");
                assert_eq!((&*named[0].id, &*named[0].library), (id, library));
            }
        }
    }

    #[test]
    fn ids_that_are_not_unique_or_no_names_stop_the_start() {
        let none = BTreeMap::new();
        let wrong = |ids: &[&str], tables: &BTreeMap<String, AdapterTable>| {
            let (_, errors) = names(&strings(ids), tables);
            let lines = errors.iter().map(Error::to_string);
            lines.collect::<Vec<_>>()
        };
        for ids in [["a", "a"], ["a-b", "a_b"]] {
            let lines = wrong(&ids, &none);
            assert_eq!(lines.len(), 1);
            assert!(
                lines[0].contains(ids[0]) && lines[0].contains(ids[1]),
                "{lines:?}"
            );
        }
        let long = "x".repeat(65);
        for id in ["", "../a", "a/b", "A", "a b", &long] {
            assert_eq!(wrong(&[id], &none).len(), 1, "{id:?}");
        }
        let reserved = wrong(&["external"], &none);
        assert!(reserved[0].contains("is reserved"), "{reserved:?}");
        let tables = BTreeMap::from([("a".to_owned(), table("/tmp/x"))]);
        assert_eq!(wrong(&["a"], &tables).len(), 1);
        assert_eq!(
            wrong(&["a", "B", "C", "a"], &tables).len(),
            5,
            "all at once"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_first_folder_with_a_library_or_a_program_counts_and_two_in_one_do_not() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = SearchPath {
            folders: vec![one.path().to_owned(), two.path().to_owned()],
            refused: Vec::new(),
        };
        let find = |library| path.find(library);
        let missing = find("a-b").unwrap().unwrap_err().to_string();
        for wanted in ["libforge_adapter_a_b.so", "forge-adapter-a-b"] {
            assert!(missing.contains(wanted), "{missing}");
        }

        let second = two.path().join("libforge_adapter_a_b.so");
        std::fs::write(&second, "").unwrap();
        assert_eq!(find("a-b").unwrap().unwrap(), second);

        let program = one.path().join("forge-adapter-a-b");
        std::fs::write(&program, "").unwrap();
        assert_eq!(find("a-b").unwrap().unwrap(), program);

        let first = one.path().join("libforge_adapter_a_b.so");
        std::fs::write(&first, "").unwrap();
        let both = find("a-b").unwrap_err().to_string();
        assert!(
            both.contains("forge-adapter-a-b") && both.contains("a_b.so"),
            "{both}"
        );
    }

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest_adapter() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "libforge_adapter_echo.so",
            "libforge_adapter_claude_agent_sdk.so",
            "forge-adapter-acme-ai",
            "echo",
        ] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let path = SearchPath::new(&[folder.path().to_owned()]).unwrap();
        for (wrong, meant) in [
            ("ehco", "echo"),
            ("claude-agent-skd", "claude-agent-sdk"),
            ("acme-al", "acme-ai"),
        ] {
            let line = path.find(wrong).unwrap().unwrap_err().to_string();
            assert!(line.contains(&format!("did you mean {meant}?")), "{line}");
        }
        let line = path.find("quite-another").unwrap().unwrap_err().to_string();
        assert!(!line.contains("did you mean"), "{line}");
    }
}
