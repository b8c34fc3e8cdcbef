//! Checks the configured adapters by their names and files alone; no code of theirs runs.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::Config;
use super::named;
use super::resolve::{Named, SearchPath};
use super::settings::AdapterTable;
use super::spec::{locate, pinned};
use crate::boundary::load_error::chain;
use crate::boundary::trust::{self, FileRules};
use crate::instance::backend::is_program;

/// Findings about the configured adapters, one line each.
#[derive(Debug, Default)]
pub struct Inspection {
    /// Errors that keep every adapter from starting.
    pub settings: Vec<String>,
    /// Adapters whose file is missing or refused.
    pub files: Vec<String>,
    pub warnings: Vec<String>,
}

/// Looks at the file of each adapter as a start would.
pub fn inspect(config: &Config, tables: &BTreeMap<String, AdapterTable>) -> Inspection {
    let mut inspection = Inspection::default();
    let (named, errors) = named(config, tables);
    let lines = errors.iter().map(|error| chain(error));
    inspection.settings.extend(lines);
    let path = match SearchPath::new(&config.path) {
        Ok(path) => path,
        Err(error) => {
            inspection.settings.push(chain(&error));
            return inspection;
        }
    };
    inspection.warnings.extend(path.warnings());
    for Named { id, library } in named {
        let refused = |error: &dyn std::error::Error| format!("{id}: {}", chain(error));
        match locate(&library, config, &path) {
            Err(error) => inspection.settings.push(chain(&error)),
            Ok(Err(error)) => inspection.files.push(refused(&error)),
            Ok(Ok(file)) => {
                let checked = check(&file, &library, config);
                inspection
                    .files
                    .extend(checked.err().map(|error| refused(&error)));
            }
        }
    }
    inspection
}

fn check(file: &Path, library: &str, config: &Config) -> Result<(), crate::LoadError> {
    let rules = FileRules {
        trust: config.trust,
        digest: pinned(library, config),
    };
    match is_program(file) {
        true => trust::vet_program(file, rules).map(drop),
        false => trust::inspect(file, rules),
    }
}
