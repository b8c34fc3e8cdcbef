//! Reasons why a store cannot be opened, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use forge_base::folder_lock::LockError;

/// Reason why the store cannot be opened. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("there is no store in {folder}; name its folder with BRIDGE_DATA_DIR or `data_dir`")]
    Missing { folder: PathBuf },
    #[error("cannot open {file}")]
    Access { file: PathBuf, source: io::Error },
    #[error("cannot open {file}")]
    Open {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "the disk of {file} is full or failing; free space or check the system log, then start again"
    )]
    Disk {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "{file} is not a store of forge-bridge and was left as it is; name another folder, or move the file away"
    )]
    Foreign { file: PathBuf },
    #[error(
        "{file} is damaged ({reason}) and was left as it is; restore a backup, or move it away with its -wal and -shm files to begin an empty store"
    )]
    Corrupt { file: PathBuf, reason: String },
    #[error(
        "{file} was written by a newer forge-bridge (version {version}, this one supports up to {known}); use that version"
    )]
    Newer {
        file: PathBuf,
        version: i64,
        known: i64,
    },
    #[error(
        "{file} was written by a build before the first release, whose format is no longer supported; move it away with its -wal and -shm files and bridge.journal to begin an empty store"
    )]
    Earlier { file: PathBuf },
    #[error(
        "another process holds a lock on {file} for longer than store.busy_timeout; end it and start again"
    )]
    Busy { file: PathBuf },
    #[error(
        "{file} {state} copied into another database; start with that one as `store.url`, or run `forge-bridge store copy --undo` to work on this file again"
    )]
    Copied { file: PathBuf, state: &'static str },
    #[error("cannot start the store's threads")]
    Thread { source: io::Error },
}

impl OpenError {
    /// Wraps an error of the operating system about this file.
    pub(crate) fn access(file: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| Self::Access {
            file: file.clone(),
            source,
        }
    }
}
