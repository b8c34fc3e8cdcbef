//! Opening a store: its folder is locked for this process, the file is made durable, and the next epoch begins.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::Sqlite;
use super::engine::{self, Engine, FolderLock, Settings, connection};
use super::open_error::OpenError;
use super::published::{Committed, Published};
use super::tables::counters::Counters;
use super::tables::schema::{self, Content};
use super::tables::seal;
use forge_base::failpoint;
use forge_store::Config;

/// Name of the file in the store's folder.
pub(super) const FILE: &str = "bridge.db";

impl Sqlite {
    /// Named sealed value of the store in this folder, which another process can be using; `None` if there is no
    /// store or no such value.
    pub fn peek_sealed(data_dir: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        let file = data_dir.join(FILE);
        if !file.exists() {
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
        let lock = FolderLock::take(data_dir)?;
        let file = data_dir.join(FILE);
        let settings = Settings {
            file: file.clone(),
            readers: config.readers,
            wal_limit_bytes: config.wal_limit_bytes,
            busy_timeout: config.busy_timeout,
            queue_ops: config.queue_ops,
            queue_bytes: config.queue_bytes,
        };
        let connection = prepare(&settings)?;
        failpoint::point("store.opened");
        let identity = schema::boot(&connection, &file)?;
        engine::sync_folder(&file).map_err(|source| OpenError::Access {
            file: file.clone(),
            source,
        })?;
        failpoint::point("store.booted");
        let counters =
            Counters::load(&connection).map_err(|source| schema::classify(&file, source))?;
        let published = Arc::new(Published::new(identity));
        let mut committed = Committed::new(counters, Arc::clone(&published));
        engine::TransactionState::committed(&mut committed);
        let engine = Engine::start(settings, lock, connection, committed)
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            engine: Arc::new(engine),
            published,
            recent_events: Arc::default(),
            served: Arc::default(),
        })
    }
}

/// The writer's connection to a file that is a store of this version, with a WAL that survives a power cut.
fn prepare(settings: &Settings) -> Result<Connection, OpenError> {
    let file = &settings.file;
    connection::make_private(file).map_err(|source| OpenError::Access {
        file: file.clone(),
        source,
    })?;
    let failed = |source| schema::classify(file, source);
    let opened = connection::open(file).map_err(failed)?;
    let content = schema::inspect(&opened, file)?;
    connection::configure(&opened, settings).map_err(failed)?;
    if content == Content::Empty {
        schema::create(&opened).map_err(failed)?;
    }
    engine::make_durable(&opened, file).map_err(failed)?;
    Ok(opened)
}
