//! A failure of the file or the disk: after it nothing is written before the file is reopened.

use std::time::Duration;

use super::connection;

/// The text is part of answers to callers, so it names no path.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreFailure {
    /// The file's content is wrong: nothing more is written, to avoid further loss.
    #[error("the database file is damaged ({0})")]
    Damage(rusqlite::Error),
    /// No later start finds anything that is written to the open files.
    #[error("its files were removed or replaced while the bridge was running")]
    Moved,
    /// The WAL or its shared memory is at its path no more. Committed changes that were not copied into the database
    /// file are found by no later start.
    #[error("its write-ahead log was removed or replaced while the bridge was running")]
    WalMoved {
        /// All committed changes are in the database file.
        is_saved: bool,
    },
    /// Nothing was written.
    #[error(
        "another process holds a write lock on the database file for longer than store.busy_timeout ({0:?})"
    )]
    Lock(Duration),
    /// Pages that were written before the sync can be missing from the disk, and no later sync writes them.
    #[error(transparent)]
    Sync(rusqlite::Error),
    #[error(transparent)]
    Other(rusqlite::Error),
}

impl From<rusqlite::Error> for StoreFailure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error().map(|error| error.extended_code) {
            _ if connection::is_damage(&error) => Self::Damage(error),
            Some(rusqlite::ffi::SQLITE_IOERR_FSYNC) => Self::Sync(error),
            Some(_) | None => Self::Other(error),
        }
    }
}
