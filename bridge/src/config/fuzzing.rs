//! Readers that are private to this component, opened to `tests/fuzz`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use super::{Config, DOCUMENTED, Error, Known, layers, read};

static KNOWN: LazyLock<Known> = LazyLock::new(|| Known::of::<Config>(DOCUMENTED));

/// What may be set, each once.
pub fn keys() -> BTreeSet<&'static str> {
    KNOWN.keys.iter().map(String::as_str).collect()
}

/// What sets a key in the environment.
pub fn variable(key: &str) -> String {
    layers::variable(key)
}

/// A file and an environment over the defaults.
pub fn load(
    text: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(Config, Vec<String>), Error> {
    read(&KNOWN, Some((Path::new("file"), text)), environment)
}
