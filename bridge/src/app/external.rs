//! External services: settings that depend on the listener, and the handle.

use std::collections::BTreeMap;

use anyhow::Context as _;

use super::Bridge;
use super::check::Findings;
use crate::config::Config;
use forge_base::trace::Spans;
use forge_external::catalog::Catalog;
use forge_external::diagnostic::Diagnostic;
use forge_external::manifest::{Manifest, TransportKind};
use forge_external::{AuthMode, External, Setup};
use forge_process::program::Launcher;

/// Checks the settings; headers that anybody can write are trusted on a loopback address only.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let is_open = config.external.auth == AuthMode::DevHeaders;
    anyhow::ensure!(
        !is_open || config.listen.ip().is_loopback(),
        "external.auth = \"dev-headers\" lets every caller choose its identity, and {} can be reached from other \
         machines; set it to \"token\", or listen on 127.0.0.1",
        config.listen
    );
    External::check(&config.external, &config.net)?;
    Ok(())
}

/// Checks the files of the services. While one has an error, a running bridge keeps the services that it has.
pub(super) fn check_files(config: &Config, findings: &mut Findings) {
    let trust = config.plugin.trust;
    let config = &config.external;
    // Names the file by a path that the reader can open.
    let line = |found: &Diagnostic| {
        let mut line = match &found.file {
            Some(file) => format!("{}: {}", config.root.join(file).display(), found.message),
            None => found.message.clone(),
        };
        if let Some(hint) = found.fix_hint.as_deref().filter(|hint| !hint.is_empty()) {
            line += &format!(". {hint}");
        }
        line
    };
    match Catalog::load(
        &config.root,
        trust,
        config.policies.keys().map(String::as_str),
    ) {
        Ok(catalog) => {
            let found = catalog.diagnostics.iter().map(line);
            findings.warnings.extend(found);
            let is_allowed = |manifest: &Manifest| {
                let own = config.services.get(&manifest.service.name);
                own.is_some_and(|own| own.program)
            };
            let refused = catalog.services().filter_map(|manifest| {
                let service = &manifest.service;
                let is_refused =
                    service.transport == TransportKind::Stdio && !is_allowed(manifest);
                let words = service.words().filter(|_| is_refused)?;
                let name = &service.name;
                Some(format!(
                    "external service {name:?} cannot be called: to start its program {words:?}, set program = true in \
                     [external.services.{name:?}]"
                ))
            });
            findings.warnings.extend(refused);
        }
        Err(found) => findings.problems.extend(found.iter().map(line)),
    }
}

/// Reads the services.
pub(super) async fn open(
    config: &Config,
    launcher: Launcher,
    environment: BTreeMap<String, String>,
    spans: Spans,
) -> anyhow::Result<External> {
    let setup = Setup {
        config: config.external.clone(),
        net: config.net.clone(),
        trust: config.plugin.trust,
        launcher,
        environment,
        spans,
    };
    let opened = tokio::task::spawn_blocking(|| External::new(setup)).await;
    Ok(opened.context("the external services could not be read")??)
}

impl Bridge {
    /// Reads the files of the external services again.
    pub async fn reload_external(&self) {
        let external = self.external.clone();
        let reloaded = tokio::task::spawn_blocking(move || external.reload()).await;
        if let Err(error) = reloaded {
            tracing::error!("the external services could not be read: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_believed_on_a_loopback_address_only() {
        for (auth, listen, accepted) in [
            (AuthMode::DevHeaders, "127.0.0.1:1", true),
            (AuthMode::DevHeaders, "[::1]:1", true),
            (AuthMode::DevHeaders, "0.0.0.0:1", false),
            (AuthMode::Token, "0.0.0.0:1", true),
        ] {
            let mut config = Config {
                listen: listen.parse().unwrap(),
                ..Config::default()
            };
            config.external.auth = auth;
            assert_eq!(check(&config).is_ok(), accepted, "{auth:?} {listen}");
        }
        let mut config = Config::default();
        config.external.allow = vec!["a b".to_owned()];
        let error = check(&config).unwrap_err().to_string();
        assert!(error.contains("external.allow"), "{error}");
    }
}
