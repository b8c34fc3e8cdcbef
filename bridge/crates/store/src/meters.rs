//! What a store counts while it works.

use forge_base::metrics::{Counter, Gauge, Histogram};

/// Of one store, since it was opened.
#[derive(Debug)]
pub struct Meters {
    /// From the first change of a commit to the disk's answer.
    pub commits: Histogram,
    /// Changes that shared a commit.
    pub batches: Histogram,
    /// Commits that failed, with all that was in them.
    pub failures: Counter,
    /// The write-ahead log.
    pub wal_bytes: Gauge,
    /// What waits for the writer.
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
