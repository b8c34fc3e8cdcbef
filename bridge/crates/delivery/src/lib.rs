//! Delivers the callback of every finished dispatch: reads due deliveries from the store's outbox, sends each
//! one signed, and settles each attempt. At least once, with the same delivery id each time. Knows nothing
//! about how a result is produced.
#![forbid(unsafe_code)]

mod attempt;
mod destinations;
mod expiry;
mod in_flight;
pub mod meters;
mod operator;
mod redact;
pub mod send;
pub mod sign;
mod slots;
#[cfg(test)]
pub(crate) mod tests;
mod trace;
pub mod verdict;
mod worker;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::sync::CancellationToken;

use forge_base::reloadable::Reloadable;
use forge_base::time::Clock;
use forge_base::trace::Spans;
use forge_base::vault::{self, Vault};
use forge_net::{Client, breaker};
use forge_store as store;
use forge_store::roles::Outbox;

pub use destinations::{Destination, State};

use in_flight::InFlight;
use meters::Meters;
use sign::Signer;

/// Settings of callback delivery (`[callback]`).
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Hosts and networks that callbacks may reach although they are not public; syntax of
    /// `net::guard::Guard::new`.
    pub allow: Vec<String>,
    /// Maximum number of concurrent attempts, over all receivers.
    pub concurrency: NonZeroUsize,
    /// Maximum number of concurrent attempts to one origin (scheme, host and port).
    pub per_origin: NonZeroUsize,
    /// Circuit breaker of each origin.
    pub breaker: breaker::Config,
    /// Timeout of one attempt.
    #[serde(with = "forge_base::duration")]
    pub timeout: Duration,
    /// Secrets that sign callbacks to origins without their own; several during a rotation. If empty, one is
    /// generated at the first start.
    #[serde(with = "forge_base::secret::list")]
    pub secrets: Vec<SecretString>,
    /// Settings per origin; the key is an origin such as `https://example.com`.
    pub origins: BTreeMap<String, Origin>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            concurrency: NonZeroUsize::new(256).expect("256 is not 0"),
            per_origin: NonZeroUsize::new(32).expect("32 is not 0"),
            breaker: breaker::Config::default(),
            timeout: Duration::from_secs(30),
            secrets: Vec::new(),
            origins: BTreeMap::new(),
        }
    }
}

/// Credentials for one receiver.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Origin {
    /// Secrets that sign callbacks to this origin; several during a rotation.
    #[serde(with = "forge_base::secret::list")]
    pub secrets: Vec<SecretString>,
    /// Bearer token sent in `Authorization`, unless the dispatch has its own.
    #[serde(with = "forge_base::secret")]
    pub bearer: Option<SecretString>,
}

/// Dependencies of a deliverer.
pub struct Setup {
    pub store: Arc<dyn Outbox>,
    pub client: Client,
    pub signer: Signer,
    pub vault: Vault,
    pub clock: Clock,
    pub config: Config,
    /// Retention of a dispatch after its delivery has ended.
    pub retention: Reloadable<Duration>,
    pub spans: Spans,
}

/// Outbox worker. Cheap to clone.
#[derive(Clone)]
pub struct Deliverer {
    shared: Arc<Shared>,
}

struct Shared {
    setup: Setup,
    meters: Meters,
    in_flight: InFlight,
    wake: Notify,
    /// Notified when a waiting delivery in `in_flight` might have a free slot.
    room: Notify,
    /// Number of completed rounds of the worker.
    rounds: watch::Sender<u64>,
    /// Set once the breakers stored by an earlier process have been read.
    restored: OnceCell<()>,
    /// False until the times of the store are compared with the clock, again after it was set.
    follows_clock: AtomicBool,
    /// Cancels the attempts that are still in flight.
    abandon: Mutex<CancellationToken>,
}

impl Shared {
    fn abandon(&self) -> MutexGuard<'_, CancellationToken> {
        self.abandon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Errors of deliverer setup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{place} is not a signing secret: expected whsec_ and the base64 of 24 to 64 bytes")]
    MalformedSecret { place: String },
    #[error("callback.origins.{0:?} is not an origin such as https://example.com")]
    MalformedOrigin(String),
    #[error(
        "the bearer token of callback.origins.{0:?} contains characters that a header does not allow"
    )]
    MalformedToken(String),
    #[error("the default signing secret could not be read from the store")]
    ReadSecret(#[source] store::Error),
    #[error(
        "the default signing secret in the store cannot be decrypted: restore the key that this store was created with (secret.key_file or BRIDGE_SECRET_KEY)"
    )]
    UnsealSecret(#[source] vault::Error),
}
