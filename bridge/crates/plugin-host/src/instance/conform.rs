//! Conformance checks of an adapter file. A library is called in this process, as the bridge does; a program is run as
//! a child and exchanges lines.

use std::path::Path;

use forge_adapter_api::conformance::{Options, Report, Step};
use forge_adapter_api::folder::TempFolder;

use crate::boundary::load;
use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::LoadedImages;
use crate::boundary::trust::{FileRules, Rules, Trust};
use crate::instance::backend::is_program;
use crate::instance::process;

/// Checks the adapter against every rule. Blocks. A faulty library can end this process.
pub fn conform(
    path: &Path,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<Report, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let path = std::path::absolute(path).map_err(failed)?;
    let copies = TempFolder::create("bridge").map_err(failed)?;
    let rules = Rules {
        file: FileRules {
            trust: Trust::Warn,
            digest: None,
        },
        copies: copies.path(),
        images: &LoadedImages::default(),
    };
    let provider = provider(&path).ok_or_else(|| {
        LoadError::NotFound(format!(
            "{} is not named libforge_adapter_<name>.{} or forge-adapter-<name>, which the \
             bridge looks for",
            path.display(),
            std::env::consts::DLL_EXTENSION
        ))
    })?;
    if is_program(&path) {
        return process::conform::conform(&path, &provider, &rules, options, watch);
    }
    load::conform(&path, &provider, &rules, options, watch)
}

/// The name that the adapter in this file must declare.
fn provider(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    if let Some(program) = name.strip_prefix("forge-adapter-") {
        return (!program.is_empty()).then(|| program.to_owned());
    }
    let stem = name.strip_prefix("libforge_adapter_")?;
    let stem = stem.strip_suffix(std::env::consts::DLL_EXTENSION)?;
    let stem = stem.strip_suffix('.')?;
    (!stem.is_empty()).then(|| stem.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_called_as_its_file() {
        let named = |file: &str| provider(&Path::new("/x").join(file));
        let end = std::env::consts::DLL_EXTENSION;
        let wanted = Some("acme-ai".to_owned());
        assert_eq!(named(&format!("libforge_adapter_acme_ai.{end}")), wanted);
        assert_eq!(named("forge-adapter-acme-ai"), wanted);
        for other in [
            "acme.so".to_owned(),
            "forge-adapter-".to_owned(),
            format!("libforge_adapter_.{end}"),
            "libforge_adapter_a".to_owned(),
        ] {
            assert_eq!(named(&other), None, "{other}");
        }
    }
}
