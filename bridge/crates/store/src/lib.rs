//! Durable record of dispatches, attempts, deliveries, runs and events. The trait `Store` uses domain terms and batches, so
//! that another database is another folder behind it. Independent of HTTP, of adapters and of the content of requests
//! and results.
#![forbid(unsafe_code)]

#[cfg(feature = "model")]
pub mod contract;
pub mod copy;
pub mod destination;
pub mod durability;
pub mod event_batch;
#[cfg(feature = "model")]
pub mod memory;
pub mod meters;
pub mod node;
pub mod progress;
pub mod recent_events;
pub mod record;
pub mod retry;
pub mod roles;
pub mod rules;
pub mod runs;
pub mod sealed;
pub mod signals;
pub mod spending;
pub mod ticket;
pub mod transition;

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use forge_base::id::DispatchId;

pub use roles::Store;

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Database: `postgres://user@host/database`. Absent or `sqlite:` is a file in `data_dir`. Can hold a password.
    #[serde(with = "forge_base::secret")]
    pub url: Option<SecretString>,
    /// File with the password of the database, used if `url` has none.
    pub password_file: Option<PathBuf>,
    /// Value of the variable PGPASSWORD, used if there is no other password; no setting.
    #[serde(skip)]
    pub password: Option<SecretString>,
    /// Read connections, besides the one for writing.
    pub readers: usize,
    /// Length of the write-ahead log above which it is truncated, even if that delays writers.
    pub wal_limit_bytes: u64,
    /// Longest wait for a write lock that another process holds. After it, changes are refused until the lock is
    /// released.
    #[serde(with = "forge_base::duration")]
    pub busy_timeout: Duration,
    /// Bound of the write queue.
    pub queue_bytes: usize,
    /// Time after which the work of a bridge on PostgreSQL that does not answer is taken over.
    #[serde(with = "forge_base::duration")]
    pub lease: Duration,
    /// Standstill of the writer after which the store is offline and changes are refused.
    #[serde(with = "forge_base::duration")]
    pub stall: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: None,
            password_file: None,
            password: None,
            readers: 3,
            wal_limit_bytes: 64 << 20,
            busy_timeout: Duration::from_secs(10),
            queue_bytes: 64 << 20,
            lease: Duration::from_secs(30),
            stall: Duration::from_secs(10),
        }
    }
}

/// Reason why the store did not carry out a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The disk, the file or the database failed; the change is not durable, and no other one can be until the store
    /// recovers.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A row is damaged or was written by a newer version; other rows are unaffected.
    #[error("a record cannot be read: {0}")]
    Unreadable(String),
    /// The claim names an attempt or epoch that is no longer the current one.
    #[error("the claim on {0} is no longer current")]
    Stale(DispatchId),
    /// No such record.
    #[error("no such record")]
    NotFound,
    /// The record is not in a state that allows this.
    #[error("{0}")]
    InvalidState(&'static str),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
