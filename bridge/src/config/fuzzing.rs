//! Readers that are private to this component, opened to `tests/fuzz`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use super::{Config, DOCUMENTED, Error, Known, read};

/// A file and an environment over the defaults.
pub fn load(
    text: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(Config, Vec<String>), Error> {
    static KNOWN: LazyLock<Known> = LazyLock::new(|| Known::of::<Config>(DOCUMENTED));
    read(&KNOWN, Some((Path::new("file"), text)), environment)
}
