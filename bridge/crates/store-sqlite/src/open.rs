//! Opening a store: its folder is locked for this process, the file is made durable, and the next epoch begins.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::Sqlite;
use super::engine::{self, Engine, FolderLock, Settings, TransactionState as _, connection};
use super::open_error::OpenError;
use super::published::{Committed, Published};
use super::tables::counters::Counters;
use super::tables::{schema, seal};
use forge_base::failpoint;
use forge_store::Config;

/// Name of the file in the store's folder, and of a new one that is not complete.
pub(super) const FILE: &str = "bridge.db";
const DRAFT: &str = "bridge.db-new";

impl Sqlite {
    /// Named sealed value of the store in this folder, which another process can be using; `None` if there is no
    /// store or no such value.
    pub fn peek_sealed(data_dir: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        let file = data_dir.join(FILE);
        if !is_present(&file)? {
            return Ok(None);
        }
        connection::open_reader(&file, Config::default().busy_timeout)
            .and_then(|connection| seal::named(&connection, name))
            .map_err(|source| OpenError::Open { file, source })
    }

    /// Opens the store in this folder, or creates one; it belongs to this process until it is closed.
    pub fn open(config: &Config, data_dir: &Path) -> Result<Self, OpenError> {
        if connection::sqlite_is_too_old() {
            return Err(OpenError::SqliteTooOld {
                version: rusqlite::version(),
            });
        }
        let mut lock = FolderLock::take(data_dir)?;
        let file = data_dir.join(FILE);
        let access = |source| OpenError::Access {
            file: data_dir.join(FILE),
            source,
        };
        let failed = |source| schema::classify(&data_dir.join(FILE), source);
        if !is_present(&file)? {
            create(&file)?;
        }
        connection::make_private(&file).map_err(access)?;
        // A WAL beside a file whose name a power cut can still take back would look like the remains of a store.
        engine::sync_folder(&file).map_err(access)?;
        lock.watch(&file).map_err(access)?;

        let settings = Settings {
            file: file.clone(),
            readers: config.readers,
            wal_limit_bytes: config.wal_limit_bytes,
            busy_timeout: config.busy_timeout,
            queue_bytes: config.queue_bytes,
        };
        let opened = connection::open(&file).map_err(failed)?;
        schema::inspect(&opened, &file)?;
        connection::configure(&opened, &settings).map_err(failed)?;
        engine::make_durable(&opened, &file).map_err(failed)?;
        failpoint::point("store.opened");
        let identity = schema::boot(&opened, &file)?;
        engine::sync_folder(&file).map_err(access)?;
        failpoint::point("store.booted");
        let counters = Counters::load(&opened).map_err(failed)?;
        let published = Arc::new(Published::new(identity));
        let mut committed = Committed::new(counters, Arc::clone(&published));
        committed.committed();
        let engine = Engine::start(settings, lock, opened, committed)
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            engine: Arc::new(engine),
            published,
            recent_events: Arc::default(),
            served: Arc::default(),
        })
    }
}

/// True if there is a database file. An empty one was never written by a bridge, nor was a WAL without its database: they
/// are what is left of a store. SQLite is not asked, because it removes a WAL that it finds beside an empty file.
pub(super) fn is_present(file: &Path) -> Result<bool, OpenError> {
    let length = |path: &Path| match fs::metadata(path) {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Access {
            file: path.to_owned(),
            source,
        }),
    };
    let reason = match (length(file)?, length(&engine::wal_file(file))?) {
        (Some(0), _) => "it is empty",
        (None, Some(1..)) => "it is missing, but its -wal file is there",
        (found, _) => return Ok(found.is_some()),
    };
    Err(OpenError::Corrupt {
        file: file.to_owned(),
        reason: reason.to_owned(),
    })
}

/// Creates an empty store under another name, so that a file of its name is always complete.
fn create(file: &Path) -> Result<(), OpenError> {
    let access = |source| OpenError::Access {
        file: file.to_owned(),
        source,
    };
    let draft = file.with_file_name(DRAFT);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(access(error)),
        Ok(()) | Err(_) => {}
    }
    connection::make_private(&draft).map_err(access)?;
    let created = connection::open(&draft).and_then(|connection| {
        schema::create(&connection)?;
        connection.close().map_err(|(_, error)| error)
    });
    created.map_err(|source| schema::classify(file, source))?;
    fs::rename(&draft, file).map_err(access)
}
