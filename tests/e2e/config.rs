//! The files in `config/` as used by operators: each example loads, and the program reports errors in one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forge_bridge::config::{File, Sources};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config")
}

fn load(file: &Path) -> Result<Vec<String>, String> {
    let sources = Sources {
        file: File::At(file.to_owned()),
        environment: BTreeMap::from([("HOME".to_owned(), "/home/a".to_owned())]),
    };
    match sources.load() {
        Ok(loaded) => Ok(loaded.warnings),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn the_documented_file_loads_as_it_is() {
    assert_eq!(load(&folder().join("forge-bridge.toml")), Ok(Vec::new()));
}

#[test]
fn every_example_loads_without_a_warning() {
    let mut seen = 0;
    for entry in fs::read_dir(folder().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        // A file that an example names.
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            continue;
        }
        assert_eq!(load(&path), Ok(Vec::new()), "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 3);
}
