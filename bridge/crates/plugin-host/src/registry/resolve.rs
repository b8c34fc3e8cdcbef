//! Resolves the adapter ids of the configuration to library files. Looks at folders, opens nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::boundary::load_error::LoadError;
use crate::registry::error::Error;
use crate::registry::settings::AdapterTable;

/// An adapter id and the library that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The provider id that the bridge serves.
    pub id: String,
    /// The library's own name.
    pub library: String,
}

/// The ids to load and the library of each. Fails at the first id that is a duplicate or not a valid name.
pub(crate) fn names(
    ids: &[String],
    tables: &BTreeMap<String, AdapterTable>,
) -> Result<Vec<Named>, Error> {
    let tables_and_ids = [tables.keys().collect::<Vec<_>>(), ids.iter().collect()];
    for list in &tables_and_ids {
        // `a-b` and `a_b` would be the same file and the same environment variables.
        let mut seen = BTreeMap::new();
        for &name in list {
            if !is_name(name) {
                return Err(Error::BadName(name.clone()));
            }
            if let Some(first) = seen.insert(stem(name), name) {
                return Err(Error::DuplicateId {
                    first: first.clone(),
                    second: name.clone(),
                });
            }
        }
    }
    ids.iter()
        .map(|id| {
            let library = tables.get(id).and_then(|table| table.library.clone());
            let library = library.unwrap_or_else(|| id.clone());
            if !is_name(&library) {
                return Err(Error::BadName(library));
            }
            Ok(Named {
                id: id.clone(),
                library,
            })
        })
        .collect()
}

/// The file of a library, from the first folder that has one. The outer error is two candidates in one folder.
pub(crate) fn find(
    library: &str,
    folders: &[PathBuf],
) -> Result<Result<PathBuf, LoadError>, Error> {
    let file = format!(
        "libforge_adapter_{}.{}",
        stem(library),
        std::env::consts::DLL_EXTENSION
    );
    let program = format!("forge-adapter-{library}");
    for folder in folders {
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
    let folders: Vec<_> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    Ok(Err(LoadError::NotFound(format!(
        "no {file} in {}, and no program {program}; put one there, or name its folder in \
         BRIDGE_PLUGIN_PATH (adapters are in `plugins` of a release archive, or in target/release after \
         `cargo build --release` in the sources; `cargo install` installs none)",
        folders.join(" or ")
    ))))
}

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
        let named = names(&strings(&["custom", "http"]), &tables).unwrap();
        assert_eq!(named[0].library, "http");
        assert_eq!(named[1].library, "http");
    }

    #[test]
    fn ids_that_are_not_unique_or_no_names_stop_the_start() {
        let none = BTreeMap::new();
        for ids in [["a", "a"], ["a-b", "a_b"]] {
            let line = names(&strings(&ids), &none).unwrap_err().to_string();
            assert!(line.contains(ids[0]) && line.contains(ids[1]), "{line}");
        }
        let long = "x".repeat(65);
        for id in ["", "../a", "a/b", "A", "a b", &long] {
            assert!(names(&strings(&[id]), &none).is_err(), "{id:?}");
        }
        let tables = BTreeMap::from([("a".to_owned(), table("/tmp/x"))]);
        assert!(names(&strings(&["a"]), &tables).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_first_folder_with_a_library_or_a_program_counts_and_two_in_one_do_not() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [one.path().to_owned(), two.path().to_owned()];
        let missing = find("a-b", &folders).unwrap().unwrap_err().to_string();
        for wanted in ["libforge_adapter_a_b.so", "forge-adapter-a-b"] {
            assert!(missing.contains(wanted), "{missing}");
        }

        let second = two.path().join("libforge_adapter_a_b.so");
        std::fs::write(&second, "").unwrap();
        assert_eq!(find("a-b", &folders).unwrap().unwrap(), second);

        let program = one.path().join("forge-adapter-a-b");
        std::fs::write(&program, "").unwrap();
        assert_eq!(find("a-b", &folders).unwrap().unwrap(), program);

        let first = one.path().join("libforge_adapter_a_b.so");
        std::fs::write(&first, "").unwrap();
        let both = find("a-b", &folders).unwrap_err().to_string();
        assert!(
            both.contains("forge-adapter-a-b") && both.contains("a_b.so"),
            "{both}"
        );
    }
}
