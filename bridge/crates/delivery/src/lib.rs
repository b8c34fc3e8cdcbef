//! Owes every finished dispatch its callback and pays it: takes what is due from the store's outbox,
//! sends it signed, settles each attempt, at least once and with the same id each time. Must not know
//! how a result comes about.
#![forbid(unsafe_code)]

mod attempt;
pub mod breaker;
mod destinations;
mod expiry;
mod in_flight;
pub mod meters;
mod redact;
pub mod send;
pub mod sign;
#[cfg(test)]
pub(crate) mod tests;
mod trace;
pub mod verdict;
mod worker;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::sync::CancellationToken;

use forge_base::reloadable::Reloadable;
use forge_base::time::Clock;
use forge_base::trace::Spans;
use forge_base::vault::{self, Vault};
use forge_net::Client;
use forge_store::{self as store, Store};

pub use destinations::{Destination, State};

use in_flight::InFlight;
use meters::Meters;
use sign::Signer;

/// How callbacks are delivered.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Hosts and networks that may be called although they are not public, in the words of
    /// `net::guard::Guard::new`.
    pub allow: Vec<String>,
    /// Attempts under way at once.
    pub concurrency: NonZeroUsize,
    /// Attempts under way at once to one scheme, host and port.
    pub per_origin: NonZeroUsize,
    /// When a scheme, host and port is left alone for a while.
    pub breaker: breaker::Config,
    /// Of one attempt.
    #[serde(with = "forge_base::duration")]
    pub timeout: Duration,
    /// Sign every callback whose origin has no secrets of its own; several during rotation. Without
    /// any, one is generated at the first start.
    #[serde(with = "forge_base::secret::list")]
    pub secrets: Vec<SecretString>,
    /// By origin, such as `https://example.com`.
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

/// What one receiver knows us by.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Origin {
    /// Sign its callbacks; several during rotation.
    #[serde(with = "forge_base::secret::list")]
    pub secrets: Vec<SecretString>,
    /// Sent as `Authorization: Bearer` unless the dispatch gave its own.
    #[serde(with = "forge_base::secret")]
    pub bearer: Option<SecretString>,
}

/// What a deliverer works with.
pub struct Setup {
    pub store: Arc<dyn Store>,
    pub client: Client,
    pub signer: Signer,
    pub vault: Vault,
    pub clock: Clock,
    pub config: Config,
    /// How long a dispatch is kept after its delivery has ended.
    pub retention: Reloadable<Duration>,
    pub spans: Spans,
}

/// The outbox's worker. Cheap to clone.
#[derive(Clone)]
pub struct Deliverer {
    shared: Arc<Shared>,
}

struct Shared {
    setup: Setup,
    meters: Meters,
    in_flight: InFlight,
    wake: Notify,
    /// Something waits in `flights` and may have room.
    room: Notify,
    /// How often the worker has looked for what is due.
    rounds: watch::Sender<u64>,
    /// Whether the breakers that an earlier process stored have been read.
    restored: OnceCell<()>,
    /// Gives up what is still under way.
    abandon: CancellationToken,
}

/// Why a deliverer could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{place} is not a signing secret: it takes whsec_ and the base64 of 24 to 64 bytes")]
    MalformedSecret { place: String },
    #[error("callback.origins.{0:?} is not an origin such as https://example.com")]
    MalformedOrigin(String),
    #[error("the bearer token of callback.origins.{0:?} cannot stand in a header")]
    MalformedToken(String),
    #[error("the default signing secret could not be read from the store")]
    ReadSecret(#[source] store::Error),
    #[error(
        "the default signing secret in the store cannot be opened; bring back the key that this store was made with (secret.key_file or BRIDGE_SECRET_KEY)"
    )]
    UnsealSecret(#[source] vault::Error),
}
