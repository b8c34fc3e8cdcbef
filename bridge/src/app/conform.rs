//! Conformance checks of a library file, for the command line.

use std::path::Path;

use forge_adapter_api::conformance::{Options, Report, Step};

use forge_plugin_host as plugin;

/// Checks the library against every rule, in this process. Blocks.
pub fn conform(
    path: &Path,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> anyhow::Result<Report> {
    Ok(plugin::conform::conform(path, options, watch)?)
}
