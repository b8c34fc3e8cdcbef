//! External services: settings that depend on the listener, and the handle.

use std::collections::BTreeMap;

use anyhow::Context as _;

use super::Bridge;
use crate::config::Config;
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

/// Reads the services.
pub(super) async fn open(
    config: &Config,
    launcher: Launcher,
    environment: BTreeMap<String, String>,
) -> anyhow::Result<External> {
    let setup = Setup {
        config: config.external.clone(),
        net: config.net.clone(),
        launcher,
        environment,
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
