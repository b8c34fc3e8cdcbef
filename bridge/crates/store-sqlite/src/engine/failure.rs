//! A failure of the file or the disk: after it nothing is written before the file is reopened.

use std::time::Duration;

use super::connection;

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
    /// The files were removed or replaced: what is written to the open ones is found by no later start.
    Moved,
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

    pub(super) fn locked(busy_timeout: Duration) -> Self {
        Self {
            reason: format!(
                "another process holds a write lock on the database file for longer than store.busy_timeout ({busy_timeout:?})"
            ),
            kind: FailureKind::Lock,
        }
    }

    pub(super) fn moved() -> Self {
        let reason = "its files were removed or replaced while the bridge was running";
        Self {
            reason: reason.to_owned(),
            kind: FailureKind::Moved,
        }
    }
}
