//! Tells a gateway registry where this bridge is, what its adapters can do and by which token it is
//! called; again and again while it serves, and takes it back when it stops. A registry that is away
//! is waited for and never stops the bridge. Must not know how adapters are loaded.

mod endpoint;
mod entry;
mod schedule;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use forge_net as net;
use forge_net::guard::BadRule;

pub use endpoint::Endpoint;
pub use entry::Gateway;

use entry::Identity;
use schedule::Schedule;
use worker::Worker;

/// `[registration]` of the configuration.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The registry. Nothing is registered without it. Its host may be called wherever it leads.
    pub url: Option<String>,
    /// Sent to the registry as `Authorization: Bearer`.
    #[serde(with = "forge_base::secret")]
    pub token: Option<SecretString>,
    /// What the registry knows this bridge by, the same over restarts and for all instances of a
    /// rolling deploy. Absent: the store's id.
    pub gateway_id: Option<String>,
    /// What people see.
    pub name: String,
    /// `production`, `staging`, `dev` or a word of their own.
    pub environment: String,
    /// Where the registry's side finds this bridge. Absent: the address it listens on.
    pub public_url: Option<String>,
    /// How often the registration is repeated; also the longest wait while the registry is away.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
    /// Of one request.
    #[serde(with = "forge_base::duration")]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: None,
            token: None,
            gateway_id: None,
            name: "forge-bridge".to_owned(),
            environment: "production".to_owned(),
            public_url: None,
            every: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
        }
    }
}

/// What a registrar works with.
pub struct Setup {
    pub endpoint: Endpoint,
    pub store_id: String,
    /// Of this process: a registration is only taken back by the instance that made it.
    pub instance_id: Arc<str>,
    /// Where the bridge listens.
    pub address: SocketAddr,
    /// Every adapter that was named, asked before each round: what an adapter can do may change.
    pub gateways: Box<dyn Fn() -> Vec<Gateway> + Send + Sync>,
    /// SHA-256 of the token by which this bridge is called, in hexadecimal digits; `None` when
    /// nobody is asked for one. A change is registered at once.
    pub token_hash: watch::Receiver<Option<String>>,
    pub config: Config,
}

/// Keeps this bridge's registrations.
pub struct Registrar {
    worker: Worker,
}

/// Why nothing can be registered as configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("registration.url is not an http or https URL without user name and password")]
    MalformedUrl,
    #[error("the host of registration.url cannot be called")]
    Host(#[source] BadRule),
    #[error("registration.public_url is not an http or https URL without user name and password")]
    MalformedPublicUrl,
    #[error("nobody can call {0}; set registration.public_url to where this bridge is found")]
    PublicUrl(SocketAddr),
    #[error("registration.token cannot stand in a header")]
    MalformedToken,
    #[error("registration.{0} is empty; leave it out or give it a value")]
    Empty(&'static str),
    #[error("registration.{0} has to be longer than nothing")]
    NoTime(&'static str),
    #[error("the HTTP client for the registry could not be made")]
    Client(#[source] net::Error),
}

impl Registrar {
    pub fn new(setup: Setup) -> Self {
        let config = &setup.config;
        let identity = Identity {
            gateway_id: config.gateway_id.clone().unwrap_or(setup.store_id),
            name: config.name.clone(),
            environment: config.environment.clone(),
            url: config
                .public_url
                .as_deref()
                .map_or_else(|| format!("http://{}", setup.address), without_slash),
            instance_id: setup.instance_id,
        };
        Self {
            worker: Worker {
                schedule: Schedule::new(config.every),
                standing: BTreeMap::new(),
                endpoint: setup.endpoint,
                identity,
                gateways: setup.gateways,
                token_hash: setup.token_hash,
            },
        }
    }

    /// Registers until the shutdown, then takes the registrations back; ends within a few seconds
    /// of the shutdown whatever the registry does.
    pub async fn run(self, shutdown: CancellationToken) {
        self.worker.run(shutdown).await;
    }
}

fn without_slash(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
