//! Connections to the database file. All of them leave the WAL in place when they are closed: only the writer's
//! orderly close checkpoints it into the file.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use forge_store::Config;

// Before version 3.51.3 of SQLite, which is compiled in, a reset of the WAL can lose a commit.
const _: () = assert!(rusqlite::ffi::SQLITE_VERSION_NUMBER >= 3_051_003);

/// SQLite's default page size.
pub(crate) const PAGE_BYTES: u64 = 4096;

const STATEMENTS: usize = 128;

/// Creates the file for its owner only, or removes the rights of others from it. SQLite gives the files beside it the
/// same mode. Call this before this process opens the first connection: POSIX drops all locks of a process on a file
/// when it closes any descriptor of it.
pub(crate) fn make_private(file: &Path) -> io::Result<()> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mode = fs::metadata(file)?.permissions().mode();
            match mode & 0o077 {
                0 => Ok(()),
                _ => fs::set_permissions(file, Permissions::from_mode(0o600)),
            }
        }
        created => created.map(drop),
    }
}

/// Opens an existing file for writing; `configure` follows after its content has been inspected.
pub(crate) fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    keep_wal(Connection::open_with_flags(file, flags)?)
}

/// Sets up the writer's connection.
pub(crate) fn configure(connection: &Connection, config: &Config) -> rusqlite::Result<()> {
    connection.busy_timeout(config.busy_timeout)?;
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA fullfsync = ON;
         PRAGMA foreign_keys = ON;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = {};
         PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -8192;
         PRAGMA trusted_schema = OFF;",
        config.wal_limit_bytes
    ))?;
    keep_plans(connection)
}

/// Opens the file for reading. It must have been opened for writing before.
pub(crate) fn open_reader(file: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = keep_wal(Connection::open_with_flags(file, flags)?)?;
    connection.busy_timeout(busy_timeout)?;
    connection.execute_batch(
        "PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;",
    )?;
    keep_plans(&connection)?;
    Ok(connection)
}

/// Opens the file only for checkpoints of the WAL.
pub(super) fn open_checkpointer(file: &Path) -> rusqlite::Result<Connection> {
    let connection = open(file)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA wal_autocheckpoint = 0;
         PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;",
    )?;
    Ok(connection)
}

/// Makes closing this connection leave the WAL as it is, even if it is the last one. The checkpoint that SQLite would
/// make then trusts a backfill mark that a failed sync has made wrong.
fn keep_wal(connection: Connection) -> rusqlite::Result<Connection> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Checkpoints the WAL into the file and removes it, if this is the last connection.
pub(super) fn close_orderly(connection: Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    connection.close().map_err(|(_, error)| error)
}

/// Statements are prepared once. Without the stability of plans a statement that compares with a bound value would be
/// planned again for each value.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// True if the file's content cannot be right.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
    )
}

/// True if one statement failed because of its values, rather than the disk or the file.
pub(super) fn is_of_the_values(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        None | Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig)
    )
}

/// True if another process holds a lock for longer than the busy timeout.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}
