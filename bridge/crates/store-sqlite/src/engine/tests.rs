//! Guarantees of the engine, tested with a table of their own.

use std::path::Path;
use std::time::Duration;

use super::*;

pub(super) struct Rows(pub(super) u64);

impl TransactionState for Rows {
    type Savepoint = u64;

    fn savepoint(&self) -> u64 {
        self.0
    }

    fn rollback_to(&mut self, savepoint: u64) {
        self.0 = savepoint;
    }

    fn committed(&mut self) {}

    fn reload(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        connection.execute("DELETE FROM t WHERE n < 0", [])?;
        self.0 = count(connection)?;
        Ok(true)
    }
}

pub(super) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
}

fn start(folder: &Path) -> Engine<Rows> {
    start_with(folder, Config::default().stall)
}

pub(super) fn start_with(folder: &Path, stall: Duration) -> Engine<Rows> {
    let mut lock = FolderLock::take(folder).unwrap();
    let config = Config {
        wal_limit_bytes: 1 << 20,
        busy_timeout: Duration::from_millis(50),
        queue_bytes: 1 << 20,
        stall,
        ..Config::default()
    };
    let file = folder.join("db");
    connection::make_private(&file).unwrap();
    lock.watch(&file).unwrap();
    let opened = connection::open(&file).unwrap();
    connection::configure(&opened, &config).unwrap();
    opened
        .execute_batch("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, bytes BLOB)")
        .unwrap();
    let rows = Rows(count(&opened).unwrap());
    Engine::start(file, config, lock, opened, rows).unwrap()
}

pub(super) async fn insert(engine: &Engine<Rows>) -> Result<u64> {
    let insert = |connection: &Connection, rows: &mut Rows| {
        connection.execute("INSERT INTO t DEFAULT VALUES", [])?;
        rows.0 += 1;
        Ok(rows.0)
    };
    engine.write(Urgency::Now, 0, insert).await
}

#[tokio::test]
async fn a_write_lock_of_another_process_refuses_changes_until_it_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path());
    assert_eq!(insert(&engine).await.unwrap(), 1);
    // Another connection of SQLite, which respects its locks as another process would.
    let other = Connection::open(folder.path().join("db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = insert(&engine).await.unwrap_err().to_string();
    assert!(refused.contains("store.busy_timeout"), "{refused}");
    assert_eq!(
        engine.health().writable().unwrap_err(),
        refused.rsplit_once(": ").unwrap().1
    );
    other.execute_batch("COMMIT").unwrap();
    while engine.health().writable().is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(insert(&engine).await.unwrap(), 2);
    engine.close().await;
}

#[tokio::test]
async fn after_a_failure_the_file_is_opened_again_and_can_be_read_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path());
    let limit = |connection: &Connection, _: &mut Rows| {
        // A limit of the connection: it ends when the file is re-opened.
        connection.pragma_update(None, "max_page_count", 1)?;
        Ok(())
    };
    engine.write(Urgency::Now, 0, limit).await.unwrap();
    let large = |connection: &Connection, _: &mut Rows| {
        connection.execute("INSERT INTO t VALUES (NULL, zeroblob(1000000))", [])?;
        Ok(())
    };
    let failed = engine.write(Urgency::Now, 0, large).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert_eq!(engine.read(Length::Short, count).await.unwrap(), 0);
    while engine.health().writable().is_err() {
        tokio::task::yield_now().await;
    }
    engine.write(Urgency::Now, 0, large).await.unwrap();
    engine.close().await;
}

/// A commit whose sync failed can be complete in the WAL all the same.
#[tokio::test]
async fn what_was_not_committed_is_cut_from_the_wal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db");
    let open = || {
        let connection = connection::open(&file).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0")
            .unwrap();
        connection
    };
    connection::make_private(&file).unwrap();
    let writer = open();
    writer
        .execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY); INSERT INTO t DEFAULT VALUES")
        .unwrap();
    let committed = wal::checkpoint(&writer, wal::Mode::Noop).unwrap().in_wal;
    writer.execute("INSERT INTO t DEFAULT VALUES", []).unwrap();
    drop(writer);
    wal::cut(&file, committed).unwrap();
    assert_eq!(count(&open()).unwrap(), 1);
    wal::cut(&file, 0).unwrap();
    let empty: u64 = open()
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(empty, 0);
}

#[tokio::test]
async fn a_change_that_panics_takes_the_others_with_it_and_the_file_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path());
    let panics = |_: &Connection, _: &mut Rows| -> Result<(), Failure> { panic!("on purpose") };
    assert!(engine.write(Urgency::Soon, 0, panics).await.is_err());
    while engine.health().writable().is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(insert(&engine).await.unwrap(), 1);
    engine.close().await;
    assert!(insert(&engine).await.is_err());
}
