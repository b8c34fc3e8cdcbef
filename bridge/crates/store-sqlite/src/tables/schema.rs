//! Schema: identity and version of the file, creation of its tables, and the epoch of this boot.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, params};

use super::rows;
use crate::engine::connection::is_damage;
use crate::open_error::OpenError;
use forge_base::event::LogName;

/// `FgBS`: distinguishes a store from other SQLite databases, also for `file`.
const APPLICATION_ID: i64 = 0x4667_4253;

/// Application id of builds before the first release.
const EARLIER_APPLICATION_ID: i64 = 0x4667_4272;

const SCHEMA: &str = concat!(
    include_str!("schema.sql"),
    include_str!("runs.sql"),
    include_str!("spending.sql")
);
const VERSION: i64 = 6;
/// Changes that make a file of each version one of the next, from version 1 on.
const MIGRATIONS: [&str; VERSION as usize - 1] = [
    "CREATE TABLE decision (
       dispatch INTEGER PRIMARY KEY REFERENCES dispatch ON DELETE CASCADE,
       approved INTEGER NOT NULL,
       at INTEGER NOT NULL,
       author TEXT NOT NULL,
       reason TEXT
     ) STRICT;
     CREATE INDEX decision_approved ON decision (approved, dispatch);
     CREATE INDEX dispatch_held ON dispatch (seq) WHERE phase = -1;",
    include_str!("to_version_3.sql"),
    concat!(
        "ALTER TABLE event ADD COLUMN run INTEGER;",
        include_str!("runs.sql")
    ),
    include_str!("spending.sql"),
    "ALTER TABLE dispatch ADD COLUMN key_owner TEXT;
     DROP INDEX dispatch_header_key;
     CREATE UNIQUE INDEX dispatch_header_key ON dispatch (header_key, key_owner) WHERE header_key IS NOT NULL;
     DROP INDEX dispatch_task;
     CREATE INDEX dispatch_task ON dispatch (task_id, key_owner);",
];

/// Identity of a store, as the file holds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store_id: String,
    pub(crate) log: LogName,
    pub(crate) epoch: u64,
}

/// Refuses a file that is not a store of a known version. Reads only: such a file stays as it is.
pub(crate) fn inspect(connection: &Connection, file: &Path) -> Result<(), OpenError> {
    let failed = |source| classify(file, source);
    let number = |pragma| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id").map_err(failed)?;
    let version = number("PRAGMA user_version").map_err(failed)?;
    let file = file.to_owned();
    match application {
        APPLICATION_ID if (1..=VERSION).contains(&version) => Ok(()),
        APPLICATION_ID => Err(OpenError::Newer {
            file,
            version,
            known: VERSION,
        }),
        EARLIER_APPLICATION_ID => Err(OpenError::Earlier { file }),
        _ => Err(OpenError::Foreign { file }),
    }
}

/// Creates the tables of a new store.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    let insert = "INSERT INTO meta (name, value) VALUES (?, ?)";
    for name in ["store_id", "log"] {
        transaction.execute(insert, params![name, LogName::random().as_str()])?;
    }
    for name in ["epoch", "removed"] {
        transaction.execute(insert, params![name, 0])?;
    }
    transaction.commit()
}

/// Makes a file of an earlier version one of this version, in one transaction.
pub(crate) fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version == VERSION {
        return Ok(());
    }
    let done = usize::try_from(version - 1).ok();
    let missing = done.and_then(|done| MIGRATIONS.get(done..));
    let transaction = connection.unchecked_transaction()?;
    for migration in missing.into_iter().flatten() {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// Makes the next boot on this copy begin another event history.
pub(crate) fn mark_restored(copy: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('restored', 1)";
    copy.execute(sql, []).map(drop)
}

/// Makes a copy a store of its own, with an event history of its own.
pub(crate) fn rename(copy: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE meta SET value = ? WHERE name = ?";
    for name in ["store_id", "log"] {
        copy.execute(sql, params![LogName::random().as_str(), name])?;
    }
    Ok(())
}

/// Takes the next epoch; under new names when the file is a copy of another store.
pub(crate) fn boot(connection: &Connection, file: &Path) -> Result<Identity, OpenError> {
    let next = || {
        let boot = connection.unchecked_transaction()?;
        if boot.execute("DELETE FROM meta WHERE name = 'restored'", [])? > 0 {
            rename(&boot)?;
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

pub(crate) fn identity(connection: &Connection) -> rusqlite::Result<Option<Identity>> {
    let sql = "SELECT (SELECT value FROM meta WHERE name = 'store_id'),
                      (SELECT value FROM meta WHERE name = 'log'),
                      (SELECT value FROM meta WHERE name = 'epoch')
               WHERE (SELECT count(*) FROM meta WHERE name IN ('store_id', 'log', 'epoch')) = 3";
    rows::one(connection, sql, [], |row| {
        Ok(Identity {
            store_id: row.get(0)?,
            log: LogName::from_stored(row.get(1)?),
            epoch: row.get(2)?,
        })
    })
}

/// Writes and syncs a row: a full disk is not noticed when the file is opened.
pub(crate) fn try_to_write(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta (name, value) VALUES ('tried', 1)
               ON CONFLICT DO UPDATE SET value = value + 1";
    connection.execute(sql, []).map(drop)
}

pub(crate) fn classify(file: &Path, source: rusqlite::Error) -> OpenError {
    let file = file.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => OpenError::Disk { file, source },
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { file },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Busy { file },
        Some(_) if is_damage(&source) => OpenError::Corrupt {
            file,
            reason: source.to_string(),
        },
        Some(_) | None => OpenError::Open { file, source },
    }
}

#[cfg(test)]
mod tests {
    use forge_store::contract::runs::run;
    use forge_store::contract::sample::{accept, owner, task};
    use forge_store::contract::signals::session;
    use forge_store::record::{IdempotencyKey, KeySpace, NewDispatch, NewRun, RunKey, RunOpened};
    use forge_store::roles::{
        Accept as _, Maintenance as _, Records as _, Runs as _, Signals as _,
    };

    use super::*;
    use crate::Sqlite;
    use crate::tests::open;

    /// Names and definitions of all tables and indexes, without comments and line breaks.
    fn objects(file: &Path) -> Vec<(String, String)> {
        let connection = Connection::open(file).unwrap();
        let sql = "SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name";
        let objects: Vec<(String, String)> =
            rows::all(&connection, sql, [], |row| row.try_into()).unwrap();
        let plain = |sql: &str| {
            let lines = sql.lines().map(|line| line.split("--").next().unwrap());
            let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
            words.join(" ").replace(" )", ")")
        };
        let objects = objects.into_iter();
        objects.map(|(name, sql)| (name, plain(&sql))).collect()
    }

    /// A file of an earlier version as its bridge left it: the present one without what the later ones added.
    #[tokio::test]
    async fn a_store_of_an_earlier_version_becomes_one_of_this_version() {
        let of_5 = "DROP INDEX dispatch_header_key; DROP INDEX dispatch_task;
             ALTER TABLE dispatch DROP COLUMN key_owner;
             CREATE UNIQUE INDEX dispatch_header_key ON dispatch (header_key) WHERE header_key IS NOT NULL;
             CREATE INDEX dispatch_task ON dispatch (task_id);";
        let of_4 = format!("{of_5} DROP TABLE spending;");
        let of_3 = format!(
            "{of_4} DROP TABLE run_body; DROP TABLE run; DROP TABLE run_artifact; DROP TABLE run_removed;
             DROP INDEX event_run; ALTER TABLE event DROP COLUMN run;"
        );
        let signals =
            "DROP TABLE signal; DROP TABLE signal_session; DROP TABLE signal_intervention;";
        let of_2 = format!("{of_3} {signals}");
        let of_1 = format!("{of_2} DROP TABLE decision; DROP INDEX dispatch_held;");
        let versions = [of_1.as_str(), &of_2, &of_3, &of_4, of_5];
        for (version, changes) in (1..).zip(versions) {
            let folder = tempfile::tempdir().unwrap();
            let store = open(folder.path());
            let id = accept(&store, task("t")).await;
            let of_header = IdempotencyKey {
                space: KeySpace::Header,
                value: "key".to_owned(),
                ..task("u").key
            };
            let keyed = NewDispatch {
                key: of_header.clone(),
                ..task("u")
            };
            let keyed = accept(&store, keyed).await;
            let new = run(Some("key"));
            let (run_id, run_key) = (new.id, new.key.clone().unwrap());
            store.open_run(new).await.unwrap();
            store.close().await;
            let file = folder.path().join("bridge.db");
            let whole = objects(&file);
            let earlier = Connection::open(&file).unwrap();
            earlier.execute_batch(changes).unwrap();
            if version > 3 {
                let sql = "UPDATE run SET header_key = 'key'";
                earlier.execute(sql, []).unwrap();
            }
            earlier
                .pragma_update(None, "user_version", version)
                .unwrap();
            earlier.close().unwrap();
            assert_ne!(objects(&file), whole);
            assert_eq!(
                Sqlite::check(folder.path()).unwrap().problems,
                Vec::<String>::new()
            );
            for id_of_session in ["one", "two"] {
                let store = open(folder.path());
                assert!(store.dispatch(id).await.unwrap().is_some());
                // Its keys are found by every caller.
                for number in 0..3 {
                    let owner = owner(number);
                    for (key, holder) in [(task("t").key, id), (of_header.clone(), keyed)] {
                        let key = IdempotencyKey { owner, ..key };
                        let known = store.recall(&key).await.unwrap();
                        assert_eq!(known.map(|known| known.dispatch.id), Some(holder));
                    }
                    let own = store.by_task("t", Some(owner), 9).await.unwrap();
                    assert_eq!(own.len(), 1);
                    if version > 3 {
                        let key = Some(RunKey {
                            owner,
                            ..run_key.clone()
                        });
                        let again = NewRun { key, ..run(None) };
                        let again = store.open_run(again).await.unwrap();
                        assert!(matches!(again, RunOpened::Known(known) if known.id == run_id));
                    }
                }
                let new = session(id_of_session);
                store.open_signal_session(new, Vec::new()).await.unwrap();
                let opened = store.open_run(run(None)).await.unwrap();
                assert!(matches!(opened, RunOpened::New));
                store.close().await;
                assert_eq!(objects(&file), whole);
            }
        }
    }
}
