//! Registration at a gateway registry: reports this bridge's address, the capabilities of its adapters and
//! the hash of its token, repeats that while the bridge serves, and deregisters at shutdown. An unavailable
//! registry is retried and never stops the bridge. Knows nothing about how adapters are loaded.

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
    /// URL of the registry; absent: nothing is registered. Its host may be called although it is not public.
    pub url: Option<String>,
    /// Bearer token sent to the registry in `Authorization`.
    #[serde(with = "forge_base::secret")]
    pub token: Option<SecretString>,
    /// Identity of this bridge at the registry, the same over restarts and for all instances of a rolling
    /// deploy. Absent: the store's id.
    pub gateway_id: Option<String>,
    /// Display name.
    pub name: String,
    /// Environment: `production`, `staging`, `dev` or any other word.
    pub environment: String,
    /// URL at which clients of the registry reach this bridge. Absent: the address it listens on.
    pub public_url: Option<String>,
    /// Interval between registrations; also the longest wait while the registry is unavailable.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
    /// Timeout of one request.
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

/// Dependencies of a registrar.
pub struct Setup {
    pub endpoint: Endpoint,
    pub store_id: String,
    /// Id of this process. Only the instance that made a registration removes it.
    pub instance_id: Arc<str>,
    /// Address on which the bridge listens.
    pub address: SocketAddr,
    /// Returns all configured adapters. Called before each round, since their capabilities can change.
    pub gateways: Box<dyn Fn() -> Vec<Gateway> + Send + Sync>,
    /// SHA-256 of the token for calls to this bridge, as hex; `None` if no token is required. A change
    /// triggers a registration at once.
    pub token_hash: watch::Receiver<Option<String>>,
    pub config: Config,
}

/// Task that keeps this bridge registered.
pub struct Registrar {
    worker: Worker,
}

/// Errors in the registration settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("registration.url is not an http or https URL without user name and password")]
    MalformedUrl,
    #[error("the host of registration.url cannot be called")]
    Host(#[source] BadRule),
    #[error("registration.public_url is not an http or https URL without user name and password")]
    MalformedPublicUrl,
    #[error(
        "{0} is not an address that others can call; set registration.public_url to the URL of this bridge"
    )]
    PublicUrl(SocketAddr),
    #[error("registration.token is empty or contains characters that a header does not allow")]
    MalformedToken,
    #[error("registration.{0} is empty; leave it out or give it a value")]
    Empty(&'static str),
    #[error("registration.{0} must be longer than 0")]
    NoTime(&'static str),
    #[error("the HTTP client for the registry could not be created")]
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

    /// Registers until the shutdown, then deregisters; ends within a few seconds of the shutdown even if the
    /// registry hangs.
    pub async fn run(self, shutdown: CancellationToken) {
        self.worker.run(shutdown).await;
    }
}

fn without_slash(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
