//! Private parsers of this component, exposed to `tests/fuzz`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use super::{Config, DOCUMENTED, Error, Known, layers, read};

static KNOWN: LazyLock<Known> = LazyLock::new(|| Known::of::<Config>(DOCUMENTED));

/// All keys of the configuration.
pub fn keys() -> BTreeSet<&'static str> {
    KNOWN.keys.iter().map(String::as_str).collect()
}

/// Environment variable of a key.
pub fn variable(key: &str) -> String {
    layers::variable(key)
}

/// Loads a file and an environment over the defaults.
pub fn load(
    text: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(Config, Vec<String>), Error> {
    read(&KNOWN, Some((Path::new("file"), text)), environment)
}
