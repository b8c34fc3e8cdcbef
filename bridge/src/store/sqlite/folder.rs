//! The folder that a store lives in: opening it for this process alone, or saying why that cannot be.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::{Semaphore, watch};

use super::ahead::{self, Ahead};
use super::checkpoint::Checkpointer;
use super::desk::Desk;
use super::ledger::Ledger;
use super::lock::Lock;
use super::op::Failure;
use super::readers::Readers;
use super::schema::{self, Tuning};
use super::shared::{InTables, Published, Shared};
use super::tail::Tail;
use super::writer::{Writer, Written};
use super::{Sqlite, seal};
use crate::crash;
use crate::store::Config;

/// The file in the store's folder.
pub(super) const FILE: &str = "bridge.db";

/// Why the store cannot be opened. Nothing was changed then.
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
        "{} is on {kind}, a network file system, where a store may be damaged; put it on a local disk",
        folder.display()
    )]
    NetworkFileSystem { folder: PathBuf, kind: &'static str },
    #[error(
        "another bridge (process {holder}) uses the store in {}; stop it or name another folder",
        folder.display()
    )]
    Locked { folder: PathBuf, holder: String },
    #[error("cannot open {}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("cannot open {}", file.display())]
    Open {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "the disk below {} is full or fails; make room, or look into the system's log, and start again",
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
        "{} was written by a newer forge-bridge (version {version}, this one knows up to {known}); use that one",
        file.display()
    )]
    Newer {
        file: PathBuf,
        version: i64,
        known: usize,
    },
    #[error("the SQLite that is linked is {version}; at least 3.51.3 is needed")]
    SqliteTooOld { version: &'static str },
    #[error("cannot start the store's threads")]
    Thread { source: io::Error },
}

impl Sqlite {
    /// A named sealed value of the store in this folder, which another process may be using; `None`
    /// where there is no store or no such value.
    pub fn peek_sealed(data_dir: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        let file = data_dir.join(FILE);
        if !file.exists() {
            return Ok(None);
        }
        schema::open_reader(&file)
            .and_then(|connection| seal::named(&connection, name))
            .map_err(|source| OpenError::Open { file, source })
    }

    /// Opens the store in this folder, or makes one; it belongs to this process until it is closed.
    pub fn open(config: &Config, data_dir: &Path) -> Result<Self, OpenError> {
        let held = Lock::take(data_dir)?;
        let file = data_dir.join(FILE);
        let tuning = Tuning {
            wal_limit_bytes: config.wal_limit_bytes,
        };
        let connection = schema::open(&file, tuning)?;
        schema::fold_wal(&connection, &file)?;
        crash::point("store.opened");
        let last = redo(&connection, &file)?;
        crash::point("store.redone");
        let identity = schema::boot(&connection, &file)?;
        crash::point("store.booted");
        let mut ledger =
            Ledger::load(&connection).map_err(|source| schema::classify(&file, source))?;
        let thread = |source| OpenError::Thread { source };
        let checkpointer = Checkpointer::start(&file).map_err(thread)?;
        let readers = Readers::start(&file, config.readers).map_err(thread)?;
        let shared = Arc::new(Shared {
            file: file.clone(),
            store_id: identity.store_id,
            log: identity.log,
            epoch: identity.epoch,
            readers,
            status: Mutex::new(Ok(())),
            published: Mutex::new(Published::default()),
            removed: AtomicU64::new(0),
            last_event: AtomicU64::new(0),
            issued: watch::Sender::new(0),
            promised: AtomicU64::new(last),
            wanted: AtomicU64::new(last),
            in_tables: watch::Sender::new(InTables {
                number: last,
                stuck: false,
            }),
            tail: Tail::default(),
            meters: Arc::default(),
        });
        shared.publish(&mut ledger);
        let ahead = Ahead::open(&file, Arc::clone(&shared), ledger.numbers, last)
            .map_err(|source| schema::classify(&file, source))?;
        let writer = Writer {
            tuning,
            shared: Arc::clone(&shared),
            connection,
            ledger,
            lock: held,
            written: Written::default(),
            checkpointer,
        };
        let desk = Desk::open(ahead, writer).map_err(thread)?;
        let queue_bytes = u32::try_from(config.queue_bytes).unwrap_or(u32::MAX).max(1);
        let bytes = queue_bytes as usize;
        Ok(Self {
            shared,
            desk: Arc::new(desk),
            ops: Arc::new(Semaphore::new(
                config.queue_ops.clamp(1, Semaphore::MAX_PERMITS),
            )),
            bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))),
            queue_bytes,
            served: Arc::default(),
        })
    }
}

/// What was promised before a crash goes into the tables. The number of the last promise.
fn redo(connection: &Connection, file: &Path) -> Result<u64, OpenError> {
    let identity = match schema::is_restored(connection) {
        Ok(true) => Ok(None),
        Ok(false) => schema::identity(connection),
        Err(error) => Err(error),
    };
    let redone = match identity {
        Ok(Some(identity)) => ahead::journaled(connection, file, &identity)
            .map_err(Failure::Sql)
            .and_then(|left| ahead::redo(connection, &identity, left)),
        Ok(None) => schema::promised(connection).map_err(Failure::Sql),
        Err(error) => Err(Failure::Sql(error)),
    };
    redone.map_err(|failure| match failure {
        Failure::Sql(error) => schema::classify(file, error),
        Failure::Refused(error) => OpenError::Corrupt {
            file: file.to_owned(),
            reason: format!("a promise does not fit the tables: {error}"),
        },
    })
}
