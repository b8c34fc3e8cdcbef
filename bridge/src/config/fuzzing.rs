//! Readers that are private to this component, opened to `tests/fuzz`.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Config, DOCUMENTED, Error, read};

/// A file and an environment over the defaults.
pub fn load(
    text: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(Config, Vec<String>), Error> {
    read(DOCUMENTED, Some((Path::new("file"), text)), environment)
}
