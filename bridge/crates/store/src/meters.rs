//! Metrics of the store.

use forge_base::metrics::{Counter, Gauge, Histogram};

/// Metrics of one store since it was opened.
#[derive(Debug)]
pub struct Meters {
    /// Time from the first change of a commit until it is synced.
    pub commits: Histogram,
    /// Changes per commit.
    pub batches: Histogram,
    /// Failed commits; each takes all of its changes with it.
    pub failures: Counter,
    /// Length of the write-ahead log.
    pub wal_bytes: Gauge,
    /// Bytes waiting for the writer thread.
    pub queue_bytes: Gauge,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            commits: Histogram::of_short_times(),
            batches: Histogram::of_numbers(),
            failures: Counter::default(),
            wal_bytes: Gauge::default(),
            queue_bytes: Gauge::default(),
        }
    }
}
