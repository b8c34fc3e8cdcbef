//! Tests of files left by a power cut: a write-ahead log that ends anywhere, or whose end is garbage. Also a file
//! that is damaged in its middle, and copies.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;

use forge_base::id::DispatchId;
use forge_store::contract::sample::{accept, begin, ok, task};
use forge_store::record::{Claim, DispatchState};
use forge_store::roles::{
    Accept as _, EventLog as _, Executions as _, Maintenance as _, Records as _,
};
use forge_store::{Config, Error};

use super::tests::open;
use super::*;

const DISPATCHES: usize = 24;

/// A store in use: one finished dispatch after the other, each its own commit.
async fn filled(folder: &Path) -> (Sqlite, Vec<DispatchId>) {
    let store = open(folder);
    let mut ids = Vec::new();
    for n in 0..DISPATCHES {
        let id = accept(&store, task(&n.to_string())).await;
        let begun = begin(&store, id, 1).await;
        let claim = Claim::Attempt(begun.lease);
        store.finish(claim, ok(2)).await.unwrap();
        ids.push(id);
    }
    (store, ids)
}

/// Files of a running store, before it checkpoints its write-ahead log.
pub(super) struct Files {
    database: Vec<u8>,
    pub(super) wal: Vec<u8>,
}

impl Files {
    pub(super) fn of(folder: &Path) -> Self {
        Self {
            database: std::fs::read(folder.join("bridge.db")).unwrap(),
            wal: std::fs::read(folder.join("bridge.db-wal")).unwrap(),
        }
    }

    /// A copy with another write-ahead log.
    pub(super) fn with(&self, wal: &[u8]) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        std::fs::write(copy.path().join("bridge.db"), &self.database).unwrap();
        std::fs::write(copy.path().join("bridge.db-wal"), wal).unwrap();
        copy
    }
}

/// Number of `filled` commits in the store; panics if one is present without those before it.
pub(super) async fn prefix(folder: &Path, ids: &[DispatchId]) -> usize {
    let store = open(folder);
    let mut commits = 0;
    let mut whole = true;
    for id in ids {
        let found = store.dispatch(*id).await.unwrap();
        let of_three = match found.map(|dispatch| dispatch.state) {
            None => 0,
            Some(DispatchState::Queued) => 1,
            Some(DispatchState::Running { .. }) => 2,
            Some(DispatchState::Finished { .. }) => 3,
        };
        assert!(whole || of_three == 0, "a later commit without the earlier");
        whole = of_three == 3;
        commits += of_three;
    }
    store.close().await;
    let checked = Sqlite::check(folder).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    commits
}

#[tokio::test]
async fn a_log_that_ends_anywhere_is_a_prefix_of_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, ids) = filled(folder.path()).await;
    let files = Files::of(folder.path());
    let wal = &files.wal;
    let mut before = 0;
    let step = wal.len() / 150;
    // Regular cuts that cover every place in a frame; the last one is the whole log.
    for cut in (0..wal.len())
        .step_by(step)
        .chain([wal.len() - 1, wal.len()])
    {
        let torn = files.with(&wal[..cut]);
        let commits = prefix(torn.path(), &ids).await;
        assert!(commits >= before, "{cut} bytes have less than fewer bytes");
        before = commits;
    }
    assert_eq!(before, 3 * DISPATCHES, "all of it is all");
}

#[tokio::test]
async fn garbage_at_the_end_of_the_log_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, ids) = filled(folder.path()).await;
    let files = Files::of(folder.path());
    let wal = &files.wal;
    for cut in (0..wal.len()).step_by(wal.len() / 20) {
        let mut torn = wal.clone();
        let end = (cut + 512).min(wal.len());
        torn[cut..end].fill(0xa5);
        let torn = files.with(&torn);
        assert!(prefix(torn.path(), &ids).await < 3 * DISPATCHES);
    }
}

/// Overwrites the first page of an index.
fn damage(folder: &Path, index: &str) {
    let file = folder.join("bridge.db");
    let connection = Connection::open(&file).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = ?";
    let root: usize = connection
        .query_row(root, [index], |row| row.get(0))
        .unwrap();
    drop(connection);
    let mut bytes = std::fs::read(&file).unwrap();
    let page = engine::connection::PAGE_BYTES as usize;
    bytes[(root - 1) * page..root * page].fill(0xff);
    std::fs::write(&file, &bytes).unwrap();
    assert!(!Sqlite::check(folder).unwrap().problems.is_empty());
}

#[tokio::test]
async fn damage_that_is_seen_at_the_start_is_told_then() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = filled(folder.path()).await;
    store.close().await;
    damage(folder.path(), "dispatch_ready");
    let Err(error) = Sqlite::open(&Config::default(), folder.path()) else {
        panic!("it was opened");
    };
    assert!(error.to_string().contains("is damaged"), "{error}");
}

#[tokio::test]
async fn a_store_that_turns_out_damaged_is_read_and_not_written_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ids) = filled(folder.path()).await;
    store.close().await;
    damage(folder.path(), "dispatch_task");
    let store = open(folder.path());
    for n in ["new", "newer"] {
        let failed = store.accept(task(n)).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    }
    assert!(store.status().unwrap_err().contains("is damaged"));
    assert!(store.dispatch(ids[0]).await.unwrap().is_some());
    store.close().await;
}

#[tokio::test]
async fn a_backup_of_a_working_store_is_another_history_each_time_it_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ids) = filled(folder.path()).await;
    let backups = tempfile::tempdir().unwrap();
    let backup = backups.path().join("one.db");
    Sqlite::backup(folder.path(), &backup).unwrap();
    let later = accept(&store, task("later")).await;
    let mode = backup.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = Sqlite::backup(folder.path(), &backup).unwrap_err();
    assert!(again.to_string().contains("already exists"), "{again}");
    let files = std::fs::read_dir(backups.path()).unwrap().count();
    assert_eq!(files, 1, "no draft is left");

    let mut logs = vec![store.log().clone()];
    for _ in 0..2 {
        let place = tempfile::tempdir().unwrap();
        std::fs::copy(&backup, place.path().join("bridge.db")).unwrap();
        let restored = open(place.path());
        assert_ne!(restored.store_id(), store.store_id());
        assert!(!logs.contains(restored.log()), "a history of its own");
        logs.push(restored.log().clone());
        for id in &ids {
            let (ours, theirs) = (store.dispatch(*id).await, restored.dispatch(*id).await);
            assert_eq!(ours.unwrap().unwrap().state, theirs.unwrap().unwrap().state);
        }
        assert!(restored.dispatch(later).await.unwrap().is_none());
        let log = restored.log().clone();
        restored.close().await;
        let restarted = open(place.path());
        assert_eq!(*restarted.log(), log, "once restored it stays what it is");
    }
}

#[tokio::test]
async fn rows_that_cannot_be_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = filled(folder.path()).await;
    store.close().await;
    let whole = Sqlite::check(folder.path()).unwrap();
    assert_eq!(whole.problems, Vec::<String>::new());
    assert_eq!((whole.dispatches, whole.unfinished), (DISPATCHES as u64, 0));
    let file = folder.path().join("bridge.db");
    let seqs: Vec<i64> = {
        let damaged = Connection::open(&file).unwrap();
        rows::all(
            &damaged,
            "SELECT seq FROM dispatch ORDER BY seq",
            [],
            |row| row.get(0),
        )
        .unwrap()
    };
    let damages = [
        (
            "DELETE FROM result WHERE dispatch = %",
            "1 finished dispatches have no result",
        ),
        (
            "UPDATE dispatch SET phase = 4, epoch = 1 WHERE seq = %",
            "have a result",
        ),
        (
            "UPDATE dispatch SET delivery = NULL WHERE seq = %",
            "have no delivery",
        ),
        (
            "UPDATE dispatch SET events = events + 1 WHERE seq = %",
            "1 dispatches have lost events",
        ),
        (
            "UPDATE event SET seq = seq + 1 WHERE dispatch = %",
            "gaps in the events",
        ),
        (
            "DELETE FROM body WHERE dispatch = %",
            "1 dispatches have lost their request",
        ),
    ];
    for ((sql, wanted), seq) in damages.into_iter().zip(seqs) {
        let damaged = Connection::open(&file).unwrap();
        damaged
            .execute_batch(&sql.replace('%', &seq.to_string()))
            .unwrap();
        drop(damaged);
        let problems = Sqlite::check(folder.path()).unwrap().problems;
        assert!(
            problems.iter().any(|line| line.contains(wanted)),
            "{wanted}: {problems:?}"
        );
    }
}
