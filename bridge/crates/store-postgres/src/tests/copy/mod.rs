//! A SQLite store with records of all kinds is copied, also by copies that are ended on the way.

mod answers;
mod sample;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tempfile::TempDir;

use forge_base::event::kind;
use forge_base::folder_lock::LockError;
use forge_base::id::DeliveryId;
use forge_store::Config;
use forge_store::contract::sample::{accept, at, event, ok, settlement, task};
use forge_store::contract::signals::signal;
use forge_store::copy::{Source as _, TABLES};
use forge_store::record::{AfterAttempt, Claim, DispatchFilter, Lease, NewDispatch};
use forge_store::roles::{
    EventLog as _, Executions as _, Maintenance as _, Outbox as _, Records as _, Signals as _,
};
use forge_store_sqlite::Sqlite;
use forge_store_sqlite::copy::CopiedStore;
use forge_store_sqlite::open_error::OpenError;

use super::cluster::{Database, run};
use super::{open, problems};
use crate::copy::{Copied, CopyError, copy_in_chunks};
use crate::{Postgres, Target};
use answers::answers;
use sample::fill;

fn sqlite(folder: &TempDir) -> Sqlite {
    Sqlite::open(&Config::default(), folder.path()).unwrap()
}

fn copied(folder: &TempDir) -> CopiedStore {
    CopiedStore::open(&Config::default(), folder.path()).unwrap()
}

async fn copy(folder: &TempDir, target: Target) -> Result<Vec<Copied>, CopyError> {
    copy_in_chunks(copied(folder), target, Vec::new(), 3, |_, _| {}).await
}

/// An empty database, and the address of it.
async fn empty() -> (Database, Target) {
    let database = Database::new();
    database.create().await;
    let target = database.target();
    (database, target)
}

/// Reason why the SQLite store does not start. The reader of a copy that was ended closes it a moment later.
async fn refused(folder: &TempDir) -> String {
    loop {
        let opened = Sqlite::open(&Config::default(), folder.path());
        match opened.err().unwrap() {
            OpenError::Lock(LockError::Locked { .. }) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            refused => return refused.to_string(),
        }
    }
}

fn compare(expected: &[(String, String)], found: &[(String, String)]) {
    assert_eq!(expected.len(), found.len());
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        assert_eq!(expected, found, "{name}");
    }
}

/// Answers of the SQLite store after its next start, which is that of the copy.
async fn filled(folder: &TempDir) -> Vec<(String, String)> {
    let store = sqlite(folder);
    fill(&store).await;
    store.close().await;
    let store = sqlite(folder);
    let expected = answers(&store).await;
    store.close().await;
    expected
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_ended_twice_ends_equal() {
    let folder = tempfile::tempdir().unwrap();
    let expected = filled(&folder).await;
    let (_database, target) = empty().await;
    let (mut reports, mut ends) = (0, [5, 4].into_iter());
    loop {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (mut stop, mut left) = (Some(stop), ends.next());
        let copying = copy_in_chunks(copied(&folder), target.clone(), Vec::new(), 3, |_, _| {
            reports += 1;
            left = left.map(|left: u32| left.saturating_sub(1));
            if left == Some(0) {
                drop(stop.take());
            }
        });
        // Dropped while it works on a chunk, as by a kill.
        let done = tokio::select! {
            biased;
            _ = stopped => None,
            done = copying => Some(done.unwrap()),
        };
        let refused = refused(&folder).await;
        let Some(done) = done else {
            assert!(refused.contains("is being copied"), "{refused}");
            let opened = Postgres::open(&Config::default(), target.clone(), "node").await;
            let unfit = opened.err().unwrap().to_string();
            assert!(unfit.contains("is not complete"), "{unfit}");
            continue;
        };
        assert!(refused.contains("was copied"), "{refused}");
        assert_eq!(done.len(), TABLES.len());
        assert!(done.iter().all(|one| one.tally.rows > 0), "{done:?}");
        break;
    }
    assert!(reports > TABLES.len());
    assert_eq!(problems(target.clone()).await, Vec::<String>::new());
    let store = open(target.clone()).await;
    compare(&expected, &answers(&store).await);
    // What follows gets new positions and places.
    let (before, id) = (store.log_bounds().issued, accept(&store, task("new")).await);
    let filter = DispatchFilter {
        limit: 1,
        ..DispatchFilter::default()
    };
    let newest = store.dispatches(filter).await.unwrap();
    assert_eq!(newest.items[0].id, id);
    assert_eq!(store.log_bounds().issued, before + 2);
    store.record_signal(signal("one", 20)).await.unwrap();
    let last = store.signals_to_forward(9).await.unwrap().unwrap();
    assert_eq!(last.last().unwrap().record.at, at(20));
    store.close().await;
    // Again does nothing, elsewhere is refused.
    assert_eq!(copy(&folder, target).await.unwrap(), Vec::new());
    let elsewhere = copy(&folder, empty().await.1).await;
    assert!(
        matches!(elsewhere, Err(CopyError::Elsewhere)),
        "{elsewhere:?}"
    );
}

#[tokio::test]
async fn a_store_works_again_when_its_copy_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let id = accept(&store, task("t")).await;
    let names = |store: &Sqlite| (store.store_id().to_owned(), store.log().clone());
    let before = names(&store);
    store.close().await;
    let undo = || Sqlite::undo_copy(&Config::default(), folder.path()).unwrap();
    assert!(!undo());
    let (database, target) = empty().await;
    let source = copied(&folder);
    source.begin().unwrap();
    drop(source);
    assert!(undo());
    let store = sqlite(&folder);
    assert_eq!(names(&store), before);
    store.close().await;

    copy(&folder, target.clone()).await.unwrap();
    assert!(undo());
    // The copy owns the names.
    let store = sqlite(&folder);
    assert_ne!(names(&store).0, before.0);
    assert_ne!(names(&store).1, before.1);
    assert!(store.dispatch(id).await.unwrap().is_some());
    store.close().await;
    let taken = copy(&folder, target).await.err().unwrap();
    assert!(matches!(taken, CopyError::Taken { .. }), "{taken}");
    assert!(taken.to_string().contains(&database.name));
}

#[tokio::test]
async fn what_does_not_belong_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    accept(&store, task("t")).await;
    store.close().await;
    let (_database, target) = empty().await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let mut stop = Some(stop);
    let copying = copy_in_chunks(copied(&folder), target.clone(), Vec::new(), 3, |_, _| {
        drop(stop.take());
    });
    tokio::select! {
        biased;
        _ = &mut stopped => {}
        done = copying => panic!("{done:?}"),
    }
    assert!(refused(&folder).await.contains("is being copied"));
    // The store was used since.
    Sqlite::undo_copy(&Config::default(), folder.path()).unwrap();
    sqlite(&folder).close().await;
    let another = copy(&folder, target).await.err().unwrap();
    assert!(matches!(another, CopyError::OfAnother { .. }), "{another}");

    // A row that is changed on the way.
    let (database, target) = empty().await;
    let change = || {
        let other = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let sql = "UPDATE body SET agent_id = 'other'";
        other.unwrap().block_on(run(&database.name, sql));
    };
    let changed = copy_in_chunks(
        copied(&folder),
        target.clone(),
        Vec::new(),
        3,
        |table, _| {
            if table == "event" {
                std::thread::scope(|scope| scope.spawn(change).join().unwrap());
            }
        },
    );
    let differs = changed.await.err().unwrap().to_string();
    assert!(differs.contains("the table body of"), "{differs}");
    let opened = Postgres::open(&Config::default(), target, "node").await;
    assert!(opened.is_err());
}

#[tokio::test]
async fn a_store_that_was_used_after_a_copy_without_rows_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let id = accept(&store, task("t")).await;
    store.close().await;
    let (_database, target) = empty().await;
    let source = copied(&folder);
    let head = source.head().unwrap();
    let begun = crate::copy::target::Filling::begin(&target, &head).await;
    drop(begun.unwrap());
    drop(source);
    sqlite(&folder).close().await;
    copy(&folder, target.clone()).await.unwrap();
    assert!(open(target).await.dispatch(id).await.unwrap().is_some());
}

/// Measures the copy of many dispatches with their results and deliveries; `FORGE_COPY_DISPATCHES` is their number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: a measurement"]
async fn many_dispatches_are_copied() {
    let number =
        std::env::var("FORGE_COPY_DISPATCHES").map_or(100_000, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    for block in 0..number / 200 {
        let all = (0..200).map(|one| {
            let new = NewDispatch {
                start: Some(event(kind::STARTED, 1)),
                ..task(&format!("{block}-{one}"))
            };
            let (id, store) = (new.id, &store);
            async move {
                accept(store, new).await;
                let lease = Lease {
                    id,
                    attempt: 1,
                    epoch: store.epoch(),
                };
                store.finish(Claim::Attempt(lease), ok(2)).await.unwrap();
                let done = settlement(1, 3, AfterAttempt::Delivered);
                store.settle(DeliveryId::of(id), done).await.unwrap();
            }
        });
        join_all(all).await;
    }
    store.close().await;
    let (_database, target) = empty().await;
    let begun = Instant::now();
    let done = crate::copy::copy(copied(&folder), target, Vec::new(), |_, _| {})
        .await
        .unwrap();
    let rows: u64 = done.iter().map(|one| one.tally.rows).sum();
    println!("{number} dispatches, {rows} rows in {:?}", begun.elapsed());
}
