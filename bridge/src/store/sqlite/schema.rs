//! The file: how it is opened and checked, its tables, and how older ones become the present one.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::folder::OpenError;
use super::wal_file;
use crate::event::LogName;

/// `FgBr`, so that `file` and we can tell it from other databases.
const APPLICATION_ID: i64 = 0x4667_4272;

/// Before this one a reset of the WAL could lose a commit.
const OLDEST_SQLITE: i32 = 3_051_003;

/// How long to wait for a lock of somebody else, such as an operator's `sqlite3`.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// One entry for each version of the file, never changed once released.
const MIGRATIONS: &[&str] = &[
    V1,
    BREAKERS,
    DELAYED_BY_PROVIDER,
    COUNTED,
    LAST_ATTEMPT,
    PROMISED,
];

/// `dispatch.phase`: 0 ready, 1 waits for its time, 2 waits for its session, 3 cancelled in the queue,
/// 4 running, 5 finished. What waits or runs has partial indexes, so their cost does not grow with
/// history. Times are nanoseconds. `seq` and `event.first` are given out by the writer.
const V1: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE sealed (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE dispatch (
  seq INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  phase INTEGER NOT NULL,
  provider TEXT NOT NULL,
  pinned INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL DEFAULT 0,
  events INTEGER NOT NULL,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  session TEXT,
  turn INTEGER,
  recorded_session TEXT,
  spent TEXT,
  accepted_at INTEGER NOT NULL,
  not_before INTEGER,
  start_by INTEGER NOT NULL,
  first_started_at INTEGER,
  started_at INTEGER,
  finished_at INTEGER,
  expires_at INTEGER,
  retention INTEGER,
  error_code TEXT,
  header_key TEXT,
  fingerprint BLOB NOT NULL,
  task_id TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  run_id TEXT,
  trace_id TEXT NOT NULL,
  retry_of BLOB,
  callback_url TEXT,
  callback_origin TEXT
) STRICT;
CREATE UNIQUE INDEX dispatch_id ON dispatch (id);
CREATE UNIQUE INDEX dispatch_header_key ON dispatch (header_key) WHERE header_key IS NOT NULL;
CREATE INDEX dispatch_task ON dispatch (task_id);
CREATE INDEX dispatch_run ON dispatch (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX dispatch_ready ON dispatch (provider, priority DESC, seq) WHERE phase = 0;
CREATE INDEX dispatch_delayed ON dispatch (not_before) WHERE phase = 1;
CREATE INDEX dispatch_start_by ON dispatch (start_by) WHERE phase < 3;
CREATE INDEX dispatch_cancelled ON dispatch (seq) WHERE phase = 3;
CREATE INDEX dispatch_running ON dispatch (epoch) WHERE phase = 4;
CREATE UNIQUE INDEX dispatch_turn ON dispatch (provider, session, turn) WHERE turn IS NOT NULL;
CREATE INDEX dispatch_expires ON dispatch (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE body (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  routing TEXT NOT NULL,
  secrets BLOB,
  request TEXT NOT NULL
) STRICT;
CREATE TABLE result (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  body TEXT NOT NULL
) STRICT;
CREATE TABLE output (
  dispatch INTEGER NOT NULL REFERENCES dispatch ON DELETE CASCADE,
  part INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY (dispatch, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE delivery (
  dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
  id BLOB NOT NULL,
  state INTEGER NOT NULL,
  origin TEXT NOT NULL,
  url TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  since INTEGER NOT NULL,
  due_at INTEGER,
  settled_at INTEGER
) STRICT;
CREATE UNIQUE INDEX delivery_id ON delivery (id);
CREATE INDEX delivery_due ON delivery (origin, due_at) WHERE state = 0;
CREATE INDEX delivery_dead ON delivery (dispatch) WHERE state = 2;
CREATE TABLE attempt (
  delivery INTEGER NOT NULL REFERENCES delivery ON DELETE CASCADE,
  number INTEGER NOT NULL,
  at INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  status INTEGER,
  error TEXT,
  answer TEXT,
  PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  first INTEGER PRIMARY KEY,
  last INTEGER NOT NULL,
  dispatch INTEGER,
  seq INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  provider TEXT NOT NULL,
  unbound_at INTEGER,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX event_dispatch ON event (dispatch, first) WHERE dispatch IS NOT NULL;
CREATE INDEX event_unbound ON event (unbound_at) WHERE unbound_at IS NOT NULL;
";

/// What was owed before has the 72 hours of the default policy.
const BREAKERS: &str = "
ALTER TABLE delivery ADD COLUMN give_up_after INTEGER NOT NULL DEFAULT 259200000000000;
CREATE TABLE breaker (
  origin TEXT PRIMARY KEY,
  opened_at INTEGER NOT NULL,
  until INTEGER NOT NULL,
  times INTEGER NOT NULL,
  reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// A start counts what waits for its time from the index alone, however much that is.
const DELAYED_BY_PROVIDER: &str = "
CREATE INDEX dispatch_delayed_by_provider ON dispatch (provider) WHERE phase = 1;
";

/// A step that is sent again is compared with its request itself. One that was accepted before is not found to be
/// the same.
const COUNTED: &str = "
ALTER TABLE dispatch DROP COLUMN fingerprint;
ALTER TABLE dispatch ADD COLUMN counted_bytes INTEGER NOT NULL DEFAULT 0;
DELETE FROM sealed WHERE name = 'fingerprint-key';
";

/// How the last attempt went stands with its delivery, which mostly is all there is to say; in `attempt` are those
/// before it.
const LAST_ATTEMPT: &str = "
ALTER TABLE delivery ADD COLUMN last_at INTEGER;
ALTER TABLE delivery ADD COLUMN last_duration_ms INTEGER;
ALTER TABLE delivery ADD COLUMN last_status INTEGER;
ALTER TABLE delivery ADD COLUMN last_error TEXT;
ALTER TABLE delivery ADD COLUMN last_answer TEXT;
UPDATE delivery SET (last_at, last_duration_ms, last_status, last_error, last_answer) =
  (SELECT at, duration_ms, status, error, answer FROM attempt
   WHERE attempt.delivery = delivery.dispatch AND attempt.number = delivery.attempts)
WHERE attempts > 0;
DELETE FROM attempt
WHERE number = (SELECT attempts FROM delivery WHERE delivery.dispatch = attempt.delivery);
";

/// The number of the last promise of the journal that is in the tables.
const PROMISED: &str = "
INSERT INTO meta (name, value) VALUES ('promised', 0);
";

/// What the file says about itself.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) store_id: String,
    pub(super) log: LogName,
    pub(super) epoch: u64,
}

/// How the writer's connection is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    pub(super) wal_limit_bytes: u64,
}

/// Opens the file for writing, and makes or migrates it.
pub(super) fn open(file: &Path, tuning: Tuning) -> Result<Connection, OpenError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(OpenError::SqliteTooOld {
            version: rusqlite::version(),
        });
    }
    make_private(file).map_err(|source| OpenError::File {
        file: file.to_owned(),
        source,
    })?;
    let failed = |source| classify(file, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = wal_file::vfs()
        .and_then(|vfs| Connection::open_with_flags_and_vfs(file, flags, vfs))
        .map_err(failed)?;
    let version = inspect(&connection, file)?;
    configure(&connection, tuning).map_err(failed)?;
    migrate(&connection, version).map_err(failed)?;
    Ok(connection)
}

/// Opens the file for reading. It must have been opened for writing before.
pub(super) fn open_reader(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.execute_batch(
        "PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;",
    )?;
    keep_plans(&connection)?;
    Ok(connection)
}

/// Opens the file to carry the WAL into it, and for nothing else.
pub(super) fn open_checkpointer(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(file, flags, wal_file::vfs()?)?;
    connection.busy_timeout(PATIENCE)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA wal_autocheckpoint = 0;
         PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;",
    )?;
    Ok(connection)
}

/// The database and the files beside it take the mode of the database.
fn make_private(file: &Path) -> io::Result<()> {
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)?;
    let mode = open.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        open.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Reads before anything is written: a file that is not ours stays as it is.
pub(super) fn inspect(connection: &Connection, file: &Path) -> Result<usize, OpenError> {
    let failed = |source| classify(file, source);
    let number = |pragma| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id").map_err(failed)?;
    let version = number("PRAGMA user_version").map_err(failed)?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(failed)?;
    let untouched = application == 0 && version == 0 && tables == 0;
    if application != APPLICATION_ID && !untouched {
        return Err(OpenError::Foreign {
            file: file.to_owned(),
        });
    }
    match usize::try_from(version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        Ok(_) | Err(_) => Err(OpenError::Newer {
            file: file.to_owned(),
            version,
            known: MIGRATIONS.len(),
        }),
    }
}

fn configure(connection: &Connection, tuning: Tuning) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
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
        tuning.wal_limit_bytes
    ))?;
    keep_plans(connection)
}

/// A statement is prepared once. Without the second line one that compares with a bound value would be
/// planned again for each value.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(128);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn migrate(connection: &Connection, version: usize) -> rusqlite::Result<()> {
    if version == MIGRATIONS.len() {
        return Ok(());
    }
    let transaction = connection.unchecked_transaction()?;
    for step in &MIGRATIONS[version..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    for (name, value) in [
        ("store_id", LogName::random().as_str().to_owned()),
        ("log", LogName::random().as_str().to_owned()),
    ] {
        transaction.execute(
            "INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)",
            params![name, value],
        )?;
    }
    for name in ["epoch", "removed"] {
        transaction.execute(
            "INSERT OR IGNORE INTO meta (name, value) VALUES (?, 0)",
            [name],
        )?;
    }
    transaction.commit()
}

/// What an earlier process wrote and could not sync is read from the system's memory as if it were on the
/// disk. Before anything is promised behind it, it is.
pub(super) fn fold_wal(connection: &Connection, file: &Path) -> Result<(), OpenError> {
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(|source| classify(file, source))
}

/// The number of the last promise that is in the tables.
pub(super) fn promised(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT value FROM meta WHERE name = 'promised'";
    let found = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0))
}

/// Goes into the same transaction as the promises themselves.
pub(super) fn keep_promised(connection: &Connection, number: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE meta SET value = ? WHERE name = 'promised'";
    connection.prepare_cached(sql)?.execute([number]).map(drop)
}

/// Whether this is a copy that was put in the place of a store, and not yet opened there.
pub(super) fn is_restored(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM meta WHERE name = 'restored'";
    connection.query_row(sql, [], |row| row.get(0))
}

/// The next boot on this copy begins another history.
pub(super) fn mark_restored(copy: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('restored', 1)";
    copy.execute(sql, []).map(drop)
}

/// Takes the next epoch; under new names when the file is a copy of another store.
pub(super) fn boot(connection: &Connection, file: &Path) -> Result<Identity, OpenError> {
    let next = || {
        let boot = connection.unchecked_transaction()?;
        if boot.execute("DELETE FROM meta WHERE name = 'restored'", [])? > 0 {
            for name in ["store_id", "log"] {
                boot.execute(
                    "UPDATE meta SET value = ? WHERE name = ?",
                    params![LogName::random().as_str(), name],
                )?;
            }
        }
        boot.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'", [])?;
        let identity = identity(&boot)?;
        boot.commit()?;
        Ok(identity)
    };
    next()
        .map_err(|source| classify(file, source))?
        .ok_or_else(|| OpenError::Corrupt {
            file: file.to_owned(),
            reason: "its name and epoch are missing".to_owned(),
        })
}

pub(super) fn identity(connection: &Connection) -> rusqlite::Result<Option<Identity>> {
    connection
        .query_row(
            "SELECT (SELECT value FROM meta WHERE name = 'store_id'),
                    (SELECT value FROM meta WHERE name = 'log'),
                    (SELECT value FROM meta WHERE name = 'epoch')
             WHERE (SELECT count(*) FROM meta WHERE name IN ('store_id', 'log', 'epoch')) = 3",
            [],
            |row| {
                Ok(Identity {
                    store_id: row.get(0)?,
                    log: LogName::from_stored(row.get(1)?),
                    epoch: row.get(2)?,
                })
            },
        )
        .optional()
}

/// Writes and syncs something: opening alone says nothing of a full disk.
pub(super) fn try_to_write(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta (name, value) VALUES ('tried', 1)
               ON CONFLICT DO UPDATE SET value = value + 1";
    connection.execute(sql, []).map(drop)
}

/// Whether what stands in the file cannot be right.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
    )
}

pub(super) fn classify(file: &Path, source: rusqlite::Error) -> OpenError {
    let file = file.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => OpenError::Disk { file, source },
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { file },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Corrupt {
            file,
            reason: source.to_string(),
        },
        Some(_) | None => OpenError::Open { file, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_of_an_older_file_moves_to_its_delivery() {
        let file = Connection::open_in_memory().unwrap();
        let at = MIGRATIONS.iter().position(|step| *step == LAST_ATTEMPT);
        let before = &MIGRATIONS[..at.unwrap()];
        for step in before {
            file.execute_batch(step).unwrap();
        }
        file.execute_batch(
            "INSERT INTO dispatch (seq, id, phase, provider, pinned, priority, events, accepted_at, start_by, task_id,
               agent_id, trace_id)
             SELECT value, randomblob(16), 5, 'echo', 0, 0, 3, 0, 0, 't', 'a', 'r' FROM json_each('[1, 2]');
             INSERT INTO delivery (dispatch, id, state, origin, url, attempts, created_at, since)
             VALUES (1, x'01', 1, 'o', 'u', 2, 0, 0), (2, x'02', 0, 'o', 'u', 0, 0, 0);
             INSERT INTO attempt (delivery, number, at, duration_ms, status, error, answer)
             VALUES (1, 1, 7, 70, 500, NULL, 'no'), (1, 2, 8, 80, NULL, 'gone', NULL);",
        )
        .unwrap();
        migrate(&file, before.len()).unwrap();
        let rows = |sql: &str| -> Vec<String> {
            let mut statement = file.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        assert_eq!(
            rows(
                "SELECT json_array(dispatch, last_at, last_duration_ms, last_status, last_error, last_answer)
                 FROM delivery ORDER BY dispatch"
            ),
            [r#"[1,8,80,null,"gone",null]"#, "[2,null,null,null,null,null]"]
        );
        assert_eq!(
            rows("SELECT json_array(delivery, number, at, answer) FROM attempt"),
            [r#"[1,1,7,"no"]"#]
        );
    }
}
