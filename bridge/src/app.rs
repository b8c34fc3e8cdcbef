//! Stands in for the wiring until it is merged: the door that the command line goes through.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// What the bridge is given besides its configuration.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// The environment that adapters are shown.
    pub environment: BTreeMap<String, String>,
}

impl Options {
    pub fn new(environment: BTreeMap<String, String>) -> Self {
        Self { environment }
    }
}

/// A bridge that runs in this process.
#[derive(Debug)]
pub struct Bridge {
    pub addr: SocketAddr,
}

impl Bridge {
    #[expect(clippy::unused_async, reason = "stands in")]
    pub async fn start(_config: Config, _options: Options) -> anyhow::Result<Self> {
        anyhow::bail!("the bridge is not wired yet")
    }

    #[expect(clippy::unused_async, reason = "stands in")]
    pub async fn stop(self) {}
}

/// Serves until `shutdown`, then drains.
#[expect(clippy::unused_async, reason = "stands in")]
pub async fn serve(
    _config: Config,
    _options: Options,
    _listener: Option<TcpListener>,
    _shutdown: CancellationToken,
) -> anyhow::Result<()> {
    anyhow::bail!("the bridge is not wired yet")
}

/// Examines the settings of every component and loads every configured adapter; what is wrong, one
/// line each. Changes nothing.
#[expect(clippy::unused_async, reason = "stands in")]
pub async fn problems(_config: &Config, _options: &Options) -> anyhow::Result<Vec<String>> {
    Ok(Vec::new())
}

/// What signs callbacks.
#[derive(Debug)]
pub struct SigningSecrets {
    /// Nothing: every destination that has none of its own.
    pub origin: Option<String>,
    /// Whether the bridge made it at its first start.
    pub generated: bool,
    /// More than one during a rotation.
    pub secrets: Vec<SecretString>,
}

/// The signing secrets in force, the default first; it is made when there is none.
#[expect(clippy::unused_async, reason = "stands in")]
pub async fn signing_secrets(_config: &Config) -> anyhow::Result<Vec<SigningSecrets>> {
    anyhow::bail!("the bridge is not wired yet")
}
