//! Reasons why a store cannot be opened, each with its remedy.

use std::io;
use std::path::PathBuf;

/// Reason why the store cannot be opened. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use {} as the store's folder", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error(
        "there is no store in {}; name its folder with BRIDGE_DATA_DIR or `data_dir`",
        folder.display()
    )]
    Missing { folder: PathBuf },
    #[error(
        "{} is on {kind}, a network file system, where a store can be damaged; put it on a local disk",
        folder.display()
    )]
    NetworkFileSystem { folder: PathBuf, kind: &'static str },
    #[error(
        "another bridge (process {holder}) uses the store in {}; stop it or name another folder",
        folder.display()
    )]
    Locked { folder: PathBuf, holder: String },
    #[error("cannot open {}", file.display())]
    Access { file: PathBuf, source: io::Error },
    #[error("cannot open {}", file.display())]
    Open {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "the disk of {} is full or failing; free space or check the system log, then start again",
        file.display()
    )]
    Disk {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "{} is not a store of forge-bridge and was left as it is; name another folder, or move the file away",
        file.display()
    )]
    Foreign { file: PathBuf },
    #[error(
        "{} is damaged ({reason}) and was left as it is; restore a backup, or move it away with its -wal and -shm files to begin an empty store",
        file.display()
    )]
    Corrupt { file: PathBuf, reason: String },
    #[error(
        "{} was written by a newer forge-bridge (version {version}, this one supports up to {known}); use that version",
        file.display()
    )]
    Newer {
        file: PathBuf,
        version: i64,
        known: i64,
    },
    #[error(
        "{} was written by a build before the first release, whose format is no longer supported; move it away with its -wal and -shm files and bridge.journal to begin an empty store",
        file.display()
    )]
    Earlier { file: PathBuf },
    #[error(
        "another process holds a lock on {} for longer than store.busy_timeout; end it and start again",
        file.display()
    )]
    Busy { file: PathBuf },
    #[error("the linked SQLite is version {version}; 3.51.3 or later is required")]
    SqliteTooOld { version: &'static str },
    #[error("cannot start the store's threads")]
    Thread { source: io::Error },
}
