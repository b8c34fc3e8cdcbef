//! Metrics of the store.

use std::time::Duration;

use forge_base::metrics::{Counter, Gauge, Histogram};

use crate::progress::ProgressReport;

/// Outcomes of a commit whose answer was lost.
pub const LOST_ANSWERS: [&str; 3] = ["committed", "rolled_back", "unknown"];
/// Tables with a number of dead rows of their own; those of the others are added up.
pub const DEAD_ROWS: [&str; 3] = ["dispatch", "delivery", "other"];

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
    pub progress: ProgressMeters,
    /// Metrics of a store that several nodes can share; zero in other ones.
    pub shared: SharedMeters,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            commits: Histogram::of_short_times(),
            batches: Histogram::of_numbers(),
            failures: Counter::default(),
            wal_bytes: Gauge::default(),
            queue_bytes: Gauge::default(),
            progress: ProgressMeters::default(),
            shared: SharedMeters::default(),
        }
    }
}

/// Ages at the last read of the metrics, in milliseconds; 0: there is none.
#[derive(Debug, Default)]
pub struct ProgressMeters {
    pub oldest_change_ms: Gauge,
    pub work_ms: Gauge,
    pub last_commit_ms: Gauge,
}

impl ProgressMeters {
    pub fn set(&self, report: &ProgressReport) {
        let ms = |age: Duration| age.as_millis() as u64;
        let work = report.work.map(|(_, age)| age);
        self.oldest_change_ms
            .set(ms(report.oldest_change.unwrap_or_default()));
        self.work_ms.set(ms(work.unwrap_or_default()));
        self.last_commit_ms.set(ms(report.last_commit));
    }
}

/// Metrics of a store that several nodes can share. Those of the database are read every 30 s.
#[derive(Debug)]
pub struct SharedMeters {
    /// Milliseconds since the last renewal of the lease was asked for.
    pub lease_age_ms: Gauge,
    /// Time of one poll of what the other nodes have changed.
    pub polls: Histogram,
    /// Commits whose answer was lost, indexed like `LOST_ANSWERS`.
    pub lost_answers: [Counter; LOST_ANSWERS.len()],
    /// Age of the oldest transaction that keeps dead rows from being removed, in milliseconds; 0 if there is none.
    pub oldest_snapshot_ms: Gauge,
    /// Estimated dead rows, indexed like `DEAD_ROWS`.
    pub dead_rows: [Gauge; DEAD_ROWS.len()],
}

impl Default for SharedMeters {
    fn default() -> Self {
        Self {
            lease_age_ms: Gauge::default(),
            polls: Histogram::of_short_times(),
            lost_answers: Default::default(),
            oldest_snapshot_ms: Gauge::default(),
            dead_rows: Default::default(),
        }
    }
}
