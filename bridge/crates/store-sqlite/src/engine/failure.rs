//! A failure of the file or the disk: after it nothing is written before the file is reopened.

use std::time::{Duration, Instant};

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

use super::connection;

const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct StoreFailure {
    /// Is part of answers to callers, so it names no path.
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The file's content is wrong: nothing more is written, to avoid further loss.
    Damage,
    /// Another process holds the write lock; nothing was written.
    Lock,
    /// A sync failed: pages that were written before it can be missing from the disk, and no later sync writes them.
    Sync,
    Other,
}

impl StoreFailure {
    pub(super) fn new(error: &rusqlite::Error) -> Self {
        let extended = error.sqlite_error().map(|error| error.extended_code);
        if connection::is_damage(error) {
            let reason = format!("the database file is damaged ({error})");
            return Self {
                reason,
                kind: FailureKind::Damage,
            };
        }
        Self {
            reason: error.to_string(),
            kind: match extended {
                Some(rusqlite::ffi::SQLITE_IOERR_FSYNC) => FailureKind::Sync,
                Some(_) | None => FailureKind::Other,
            },
        }
    }
}

/// Delays before attempts to reopen the file: none at first, then doubling up to 5 s.
pub(super) struct ReopenSchedule {
    delays: ExponentialBackoff,
}

impl ReopenSchedule {
    pub(super) fn new() -> Self {
        let delays = ExponentialBackoffBuilder::new()
            .with_initial_interval(FIRST_DELAY)
            .with_max_interval(LONGEST_DELAY)
            .with_max_elapsed_time(None)
            .build();
        Self { delays }
    }

    pub(super) fn next_attempt(&mut self) -> Instant {
        Instant::now() + self.delays.next_backoff().unwrap_or(LONGEST_DELAY)
    }
}
