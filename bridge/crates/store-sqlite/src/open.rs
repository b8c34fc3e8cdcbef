//! Opening a store: its folder is locked for this process, the file is made durable, and the next epoch begins.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::Sqlite;
use super::engine::wal::{self, Mode};
use super::engine::{Engine, connection};
use super::open_error::OpenError;
use super::tables::counters::{Counters, Published, Totals};
use super::tables::{copied, schema};
use forge_base::failpoint;
use forge_base::folder_lock::{FolderLock, sync_name};
use forge_store::Config;
use forge_store::node::Node;

/// Name of the file in the store's folder, and of a new one that is not complete.
pub(super) const FILE: &str = "bridge.db";
const DRAFT: &str = "bridge.db-new";

impl Sqlite {
    /// Opens the store in this folder, or creates one; it belongs to this process until it is closed.
    pub fn open(config: &Config, data_dir: &Path) -> Result<Self, OpenError> {
        let mut lock = FolderLock::take(data_dir)?;
        let file = data_dir.join(FILE);
        let (path, access) = (file.clone(), OpenError::access(&file));
        let failed = |source| schema::classify(&path, source);
        if !is_present(&file)? {
            create(&file)?;
        }
        let opened = open_file(config, &file, &mut lock)?;
        if let Some(is_complete) = copied::mark(&opened).map_err(failed)? {
            return Err(OpenError::Copied {
                file,
                state: if is_complete { "was" } else { "is being" },
            });
        }
        failpoint::point("store.opened");
        schema::migrate(&opened).map_err(failed)?;
        let identity = schema::boot(&opened, &file)?;
        sync_name(&file).map_err(&access)?;
        failpoint::point("store.booted");
        let totals = Totals::load(&opened).map_err(failed)?;
        let node = Arc::new(Node::alone(identity.store_id.clone(), identity.epoch));
        let published = Arc::new(Published::new(identity, totals));
        let counters = Counters::new(Arc::clone(&published));
        let engine = Engine::start(file, config.clone(), lock, opened, counters)
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self {
            engine: Arc::new(engine),
            published,
            recent_events: Arc::default(),
            node,
            served: Arc::default(),
        })
    }
}

/// Opens a file that exists for writing, behind what an earlier process has left.
pub(super) fn open_file(
    config: &Config,
    file: &Path,
    lock: &mut FolderLock,
) -> Result<Connection, OpenError> {
    let access = OpenError::access(file);
    let failed = |source| schema::classify(file, source);
    connection::make_private(file).map_err(&access)?;
    // A WAL beside a file whose name a power cut can still take back would look like the remains of a store.
    sync_name(file).map_err(&access)?;
    lock.watch(file).map_err(&access)?;

    let opened = connection::open(file).map_err(failed)?;
    schema::inspect(&opened, file)?;
    connection::configure(&opened, config).map_err(failed)?;
    // A killed process leaves frames in the page cache that it never synced. They must survive a power cut before
    // anything is written behind them; with a reader in another process not all are copied.
    let frames = wal::checkpoint(&opened, Mode::Passive).map_err(failed)?;
    if !frames.is_all_in_file() {
        wal::sync(file).map_err(&access)?;
    }
    Ok(opened)
}

/// True if there is a database file. An empty one was never written by a bridge, nor was a WAL without its database: they
/// are what is left of a store. SQLite is not asked, because it removes a WAL that it finds beside an empty file.
pub(super) fn is_present(file: &Path) -> Result<bool, OpenError> {
    let length = |path: &Path| match fs::metadata(path) {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::access(path)(error)),
    };
    let reason = match (length(file)?, length(&wal::wal_file(file))?) {
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
    let access = OpenError::access(file);
    let draft = file.with_file_name(DRAFT);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(access(error)),
        Ok(()) | Err(_) => {}
    }
    connection::make_private(&draft).map_err(&access)?;
    let created = connection::open(&draft).and_then(|connection| {
        schema::create(&connection)?;
        connection.close().map_err(|(_, error)| error)
    });
    created.map_err(|source| schema::classify(file, source))?;
    fs::rename(&draft, file).map_err(access)
}
