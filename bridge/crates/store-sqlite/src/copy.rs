//! A stopped store as the source of a copy. From the first row of a copy on, no bridge opens it: two that own the same
//! work would both do it.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use forge_store::copy::{Head, Row, Source, Table};
use forge_store::{Config, Error, Result};

use super::Sqlite;
use super::open::{FILE, is_present, open_file};
use super::open_error::OpenError;
use super::tables::{copied, schema};
use forge_base::folder_lock::FolderLock;

/// A store that is copied, locked for this process.
pub struct CopiedStore {
    connection: Connection,
    _lock: FolderLock,
}

impl CopiedStore {
    /// Opens the store in this folder. It starts again afterwards, unless the copy has begun.
    pub fn open(config: &Config, data_dir: &Path) -> Result<Self, OpenError> {
        let (_, connection, lock) = open_present(config, data_dir)?;
        Ok(Self {
            connection,
            _lock: lock,
        })
    }
}

impl Sqlite {
    /// Lets a store that was copied start again. False if it was not.
    pub fn undo_copy(config: &Config, data_dir: &Path) -> Result<bool, OpenError> {
        let (file, connection, _lock) = open_present(config, data_dir)?;
        let undone = copied::mark(&connection).and_then(|mark| match mark {
            None => Ok(false),
            Some(_) => copied::remove_mark(&connection).map(|()| true),
        });
        undone.map_err(|source| schema::classify(&file, source))
    }
}

fn open_present(
    config: &Config,
    data_dir: &Path,
) -> Result<(PathBuf, Connection, FolderLock), OpenError> {
    let file = data_dir.join(FILE);
    if !is_present(&file)? {
        let folder = data_dir.to_owned();
        return Err(OpenError::Missing { folder });
    }
    let mut lock = FolderLock::take(data_dir)?;
    let connection = open_file(config, &file, &mut lock)?;
    schema::migrate(&connection).map_err(|source| schema::classify(&file, source))?;
    Ok((file, connection, lock))
}

impl Source for CopiedStore {
    fn head(&self) -> Result<Head> {
        let head = copied::head(&self.connection);
        head.map_err(|error| Error::Unreadable(error.to_string()))
    }

    fn read(&self, table: &Table, each: &mut dyn FnMut(Row) -> bool) -> Result<()> {
        copied::read(&self.connection, table, each)
    }

    fn begin(&self) -> Result<()> {
        let marked = copied::mark(&self.connection).and_then(|mark| match mark {
            None => copied::set_mark(&self.connection, false),
            Some(_) => Ok(()),
        });
        marked.map_err(|error| Error::Unavailable(error.to_string()))
    }

    fn complete(&self) -> Result<()> {
        let marked = copied::set_mark(&self.connection, true);
        marked.map_err(|error| Error::Unavailable(error.to_string()))
    }
}
