//! Store behaviour specific to a disk: files, locks, crashes, a full disk.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;

use forge_base::folder_lock::LockError;
use forge_base::id::DeliveryId;
use forge_store::contract::runs;
use forge_store::contract::sample::{accept, at, begin, callback, ok, run, settlement, task};
use forge_store::destination::DueQuery;
use forge_store::recent_events::StoredEvents as _;
use forge_store::record::{AfterAttempt, Claim, DeliveryState, EventFilter, NewDispatch};
use forge_store::roles::{
    Accept as _, EventLog as _, Executions as _, Maintenance as _, Outbox as _, Queue as _,
    Records as _, Runs as _, Secrets as _,
};
use forge_store::{Config, Error};

use super::open_error::OpenError;
use super::tables::counters::QUEUED;
use super::*;

pub(super) fn open(folder: &Path) -> Sqlite {
    Sqlite::open(&Config::default(), folder).unwrap()
}

fn refused(folder: &Path) -> OpenError {
    match Sqlite::open(&Config::default(), folder) {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_holds_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let error = refused(folder.path());
    let OpenError::Lock(LockError::Locked { holder, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(holder, std::process::id().to_string());
    store.close().await;
    open(folder.path()).close().await;
}

#[tokio::test]
async fn folder_and_file_are_for_their_owner_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("deep/data");
    let store = open(&folder);
    accept(&store, task("t")).await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for file in ["bridge.db", "bridge.db-wal", "bridge.lock"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_file_of_something_else_is_left_as_it_is() {
    let database = |sql: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bridge.db");
        let other = Connection::open(&file).unwrap();
        other.execute_batch(sql).unwrap();
        other.close().unwrap();
        folder
    };
    let text = tempfile::tempdir().unwrap();
    std::fs::write(
        text.path().join("bridge.db"),
        "something else, and long enough",
    )
    .unwrap();
    for (folder, expected) in [
        (text, "is not a store of forge-bridge"),
        (database("CREATE TABLE other (x)"), "is not a store"),
        (database("PRAGMA application_id = 7"), "is not a store"),
        (
            database("PRAGMA application_id = 1181172307; PRAGMA user_version = 99"),
            "written by a newer forge-bridge",
        ),
        (
            database("PRAGMA application_id = 1181172338; PRAGMA user_version = 6"),
            "before the first release",
        ),
    ] {
        let file = folder.path().join("bridge.db");
        let before = std::fs::read(&file).unwrap();
        let message = refused(folder.path()).to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'));
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    accept(&store, task("t")).await;
    store.close().await;
    let file = folder.path().join("bridge.db");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100..4096].fill(0xff);
    std::fs::write(&file, &bytes).unwrap();
    let message = refused(folder.path()).to_string();
    assert!(message.contains("is damaged"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

/// SQLite would take an empty file for a new database, and remove the WAL beside it.
#[tokio::test]
async fn what_is_left_of_a_store_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    accept(&store, task("t")).await;
    let wal = std::fs::read(folder.path().join("bridge.db-wal")).unwrap();
    store.close().await;
    let file = folder.path().join("bridge.db");
    for (is_there, wal, expected) in [
        (true, None, "is damaged (it is empty)"),
        (true, Some(&wal), "is damaged (it is empty)"),
        (false, Some(&wal), "is damaged (it is missing, but"),
    ] {
        match is_there {
            true => std::fs::write(&file, "").unwrap(),
            false => std::fs::remove_file(&file).unwrap(),
        }
        let log = folder.path().join("bridge.db-wal");
        if let Some(wal) = wal {
            std::fs::write(&log, wal).unwrap();
        }
        for message in [
            refused(folder.path()).to_string(),
            Sqlite::check(folder.path()).unwrap_err().to_string(),
            Sqlite::peek_sealed(folder.path(), "name")
                .unwrap_err()
                .to_string(),
        ] {
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(
            file.metadata().ok().map(|found| found.len()),
            is_there.then_some(0)
        );
        assert_eq!(std::fs::read(&log).ok().as_ref(), wal);
    }
}

/// The next start succeeds after a first start that was killed at any point.
#[tokio::test]
async fn half_a_new_store_is_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let database = tempfile::tempdir().unwrap();
    open(database.path()).close().await;
    let whole = std::fs::read(database.path().join("bridge.db")).unwrap();
    for draft in [&whole[..0], &whole[..100], &whole[..5000], &whole] {
        std::fs::write(folder.path().join("bridge.lock"), "1").unwrap();
        std::fs::write(folder.path().join("bridge.db-new"), draft).unwrap();
        std::fs::write(folder.path().join("bridge.db-new-journal"), draft).unwrap();
        let store = open(folder.path());
        accept(&store, task("t")).await;
        store.close().await;
        assert!(!folder.path().join("bridge.db-new").exists());
        std::fs::remove_file(folder.path().join("bridge.db")).unwrap();
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut ids = Vec::new();
    for n in 0..50 {
        let id = accept(&store, task(&n.to_string())).await;
        let begun = begin(&store, id, 1).await;
        if n % 2 == 0 {
            let claim = Claim::Attempt(begun.lease);
            store.finish(claim, ok(2)).await.unwrap();
        }
        ids.push(id);
    }
    // The files as a killed process leaves them: no checkpoint, no orderly close.
    let killed = tempfile::tempdir().unwrap();
    for file in ["bridge.db", "bridge.db-wal"] {
        std::fs::copy(folder.path().join(file), killed.path().join(file)).unwrap();
    }
    let after = open(killed.path());
    assert_eq!(after.epoch(), store.epoch() + 1);
    assert_eq!(after.log(), store.log());
    assert_eq!(after.counts(), store.counts());
    assert_eq!(after.log_bounds(), store.log_bounds());
    assert_eq!(after.interrupted(100).await.unwrap().len(), 25);
    for id in ids {
        let (before, after) = (store.dispatch(id).await, after.dispatch(id).await);
        let (before, after) = (before.unwrap().unwrap(), after.unwrap().unwrap());
        assert_eq!(before.state, after.state);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_accepts_at_once_are_all_acknowledged_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        queue_bytes: 10_000,
        ..Config::default()
    };
    let store = Sqlite::open(&config, folder.path()).unwrap();
    let tracker = tokio_util::task::TaskTracker::new();
    for n in 0..300 {
        let store = store.clone();
        tracker.spawn(async move { accept(&store, task(&n.to_string())).await });
    }
    tracker.close();
    tracker.wait().await;
    assert_eq!(store.counts().queued, 300);
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.counts().queued, 300);
    assert_eq!(store.ready("echo", 1000).await.unwrap().len(), 300);
}

#[tokio::test]
async fn after_a_full_disk_no_write_is_acknowledged_and_the_store_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    accept(&store, task("before")).await;
    let bounds = store.log_bounds();
    // A limit of the connection: it ends when the file is re-opened.
    store
        .write(Urgency::Now, 0, |tx| {
            Ok(tx.conn.pragma_update(None, "max_page_count", 1)?)
        })
        .await
        .unwrap();
    let large = || NewDispatch {
        secrets: Some(vec![0; 4 << 20]),
        ..task("large")
    };
    let failed = store.accept(large()).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    // Early writes are refused until the store has re-opened its file.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while store.accept(large()).await.is_err() {
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    assert!(store.status().is_ok());
    assert_eq!(store.counts().queued, 2);
    assert_eq!(store.log_bounds().issued, bounds.issued + 2);
    assert_eq!(store.epoch(), 1);
}

#[tokio::test]
async fn the_write_ahead_log_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        wal_limit_bytes: 1 << 20,
        ..Config::default()
    };
    let store = Sqlite::open(&config, folder.path()).unwrap();
    for n in 0..100 {
        let large = NewDispatch {
            secrets: Some(vec![0; 100_000]),
            ..task(&n.to_string())
        };
        accept(&store, large).await;
        let wal = folder.path().join("bridge.db-wal");
        let bytes = wal.metadata().unwrap().len();
        assert!(bytes < 2 << 20, "{bytes} after {n}");
    }
}

#[tokio::test]
async fn a_change_or_a_question_that_panics_does_not_end_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let id = accept(&store, task("t")).await;
    let written = store.write(Urgency::Now, 0, |_| -> std::result::Result<(), _> {
        panic!("in the writer")
    });
    assert!(matches!(written.await, Err(Error::Unavailable(_))));
    for _ in 0..5 {
        let read = store
            .engine
            .read(Length::Short, |_| -> rusqlite::Result<()> {
                panic!("in a reader")
            });
        assert!(matches!(read.await, Err(Error::Unavailable(_))));
    }
    assert!(store.dispatch(id).await.unwrap().is_some());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while store.seal_once("name", Vec::new()).await.is_err() {
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    assert_eq!(store.counts().queued, 1);
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let id = accept(&store, task("t")).await;
    store.close().await;
    store.close().await;
    assert!(store.status().is_err());
    let written = store.accept(task("u")).await;
    assert!(matches!(written, Err(Error::Unavailable(_))));
    let read = store.dispatch(id).await;
    assert!(matches!(read, Err(Error::Unavailable(_))));
    assert!(!folder.path().join("bridge.db-wal").exists());
}

#[tokio::test]
async fn the_scheduler_never_scans() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for sql in [
        "SELECT id FROM dispatch INDEXED BY dispatch_ready
         WHERE phase = 0 AND provider = 'a' ORDER BY priority DESC, seq LIMIT 1",
        "SELECT id FROM dispatch INDEXED BY dispatch_start_by
         WHERE phase < 3 AND start_by <= 1 ORDER BY start_by, seq LIMIT 1",
        "SELECT seq FROM dispatch INDEXED BY dispatch_delayed
         WHERE phase = 1 AND not_before <= 1 ORDER BY not_before, seq LIMIT 1",
        "SELECT callback_origin FROM dispatch INDEXED BY delivery_due
         WHERE delivery = 0 AND callback_origin > 'a' ORDER BY callback_origin LIMIT 1",
        "SELECT seq FROM dispatch INDEXED BY delivery_due
         WHERE delivery = 0 AND callback_origin = 'a' AND due_at <= 1 ORDER BY due_at, seq",
    ] {
        let plan = plan(&store, sql).await;
        assert!(plan.starts_with("SEARCH"), "{sql}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}

#[tokio::test]
async fn a_start_counts_what_waits_without_looking_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for sql in &QUEUED[..2] {
        let plan = plan(&store, sql).await;
        assert!(plan.contains("COVERING INDEX"), "{sql}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}

async fn plan(store: &Sqlite, sql: &'static str) -> String {
    let explained = store.engine.read(Length::Long, move |connection| {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        rows::all(connection, &explain, [], |row| row.get::<_, String>(3))
    });
    explained.await.unwrap().join("; ")
}

/// Copies the rows of a due delivery `count` times.
fn multiply_deliveries(folder: &Path, count: u32) {
    let other = Connection::open(folder.join("bridge.db")).unwrap();
    for (table, key, replaced) in [
        (
            "dispatch",
            "seq",
            "seq + 10 * n AS seq, randomblob(16) AS id",
        ),
        ("body", "dispatch", "dispatch + 10 * n AS dispatch"),
        ("result", "dispatch", "dispatch + 10 * n AS dispatch"),
    ] {
        let sql = format!("SELECT name FROM pragma_table_info('{table}')");
        let all: Vec<String> = rows::all(&other, &sql, [], |row| row.get(0)).unwrap();
        let kept = all
            .iter()
            .filter(|name| !replaced.contains(&format!(" AS {name}")));
        let kept: Vec<&str> = kept.map(String::as_str).collect();
        let made = replaced
            .split(", ")
            .map(|made| made.rsplit(' ').next().unwrap());
        let columns = made
            .chain(kept.iter().copied())
            .collect::<Vec<_>>()
            .join(", ");
        let kept: String = kept.iter().map(|name| format!(", {name}")).collect();
        other
            .execute_batch(&format!(
                "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {count})
                 INSERT INTO {table} ({columns})
                 SELECT {replaced}{kept} FROM (SELECT * FROM {table} ORDER BY {key} LIMIT 1), number"
            ))
            .unwrap();
    }
    other.close().unwrap();
}

#[tokio::test]
async fn a_hundred_thousand_due_at_one_receiver_hide_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    run(&store, task("dead"), ok(10)).await;
    store.close().await;
    multiply_deliveries(folder.path(), 100_000);

    let store = open(folder.path());
    assert_eq!(store.counts().deliveries_pending, 100_001);
    let new = NewDispatch {
        callback: Some(callback("b.example")),
        ..task("alive")
    };
    let (alive, _) = run(&store, new, ok(20)).await;
    let alive = DeliveryId::of(alive);
    let dead = callback("a.example").origin;
    let query = |exclude: &[&String]| DueQuery {
        now: at(30),
        exclude: exclude.iter().map(|&origin| origin.clone()).collect(),
        per_origin: 64,
        limit: 1024,
        in_flight: Default::default(),
    };
    let found = store.due(query(&[])).await.unwrap();
    assert_eq!(found.len(), 65);
    assert!(found.iter().any(|due| due.id == alive));
    // As if its circuit breaker were open.
    let found = store.due(query(&[&dead])).await.unwrap();
    assert_eq!(found.iter().map(|due| due.id).collect::<Vec<_>>(), [alive]);
    let next = store.next_due(std::slice::from_ref(&dead)).await.unwrap();
    assert_eq!(next, Some(at(20)));

    // Overdue deliveries come in steps.
    let over = store
        .overdue_deliveries(&dead, at(10_000), 256)
        .await
        .unwrap();
    assert_eq!(over.len(), 256);
    let mut ended = settlement(0, 10_000, AfterAttempt::Dead);
    ended.attempt = None;
    store.settle(over[0].id, ended).await.unwrap();
    let ended = store.delivery(over[0].id).await.unwrap().unwrap();
    assert_eq!(ended.status, DeliveryState::Dead);
    store.close().await;
}

/// Readers near the end of the log are served from memory; the answers must equal those from the file.
#[tokio::test]
async fn the_newest_events_are_the_same_in_memory_and_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let of_one = EventFilter {
        task_id: Some("t-3".to_owned()),
        ..EventFilter::default()
    };
    for n in 0..1_200 {
        accept(&store, task(&format!("t-{n}"))).await;
        if n % 97 != 0 {
            continue;
        }
        let new = runs::run(None);
        let both = ["task.status", "tool.call"].map(|kind| runs::of_task(kind, 1));
        let change = runs::change(new.id, 2, both.to_vec());
        store.open_run(new).await.unwrap();
        store.append_run(change).await.unwrap();
        let issued = store.log_bounds().issued;
        for behind in [0, 1, 2, 5, 300, 1_000, 1_023, 1_024, 1_025, 5_000] {
            let after = issued.saturating_sub(behind);
            for (filter, limit) in [
                (EventFilter::default(), 3),
                (EventFilter::default(), 10_000),
                (of_one.clone(), 10_000),
            ] {
                let page = store.events(&filter, after, limit).await.unwrap();
                let file = store
                    .stored_events(Some(&filter), after, limit)
                    .await
                    .unwrap();
                assert_eq!(page.scanned, file.scanned, "{after} of {issued}");
                assert_eq!(page.more, file.more);
                assert_eq!(
                    serde_json::to_string(&page.events).unwrap(),
                    serde_json::to_string(&file.events).unwrap()
                );
            }
        }
    }
}
