//! Standstill of the writer thread, and a WAL that is removed under it.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use forge_store::progress::StoreHealth;

use super::tests::{Rows, count, insert, start_with};
use super::*;

const STALL: Duration = Duration::from_millis(200);

fn start(folder: &Path) -> Engine<Rows> {
    start_with(folder, STALL)
}

/// A change that the writer thread is in until the sender is used or dropped, and its end.
async fn hang(
    engine: &Arc<Engine<Rows>>,
) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<u64>>) {
    let (release, released) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let released = Mutex::new(released);
    let hung = Arc::clone(engine);
    let change = move |connection: &Connection, rows: &mut Rows| {
        let _begun = begun.send(());
        let _released = lock(&released).recv();
        connection.execute("INSERT INTO t DEFAULT VALUES", [])?;
        rows.0 += 1;
        Ok(rows.0)
    };
    let task = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(hung.write(Urgency::Now, 0, change))
    });
    let begun = tokio::task::spawn_blocking(move || has_begun.recv());
    begun.await.unwrap().unwrap();
    (release, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_behind_a_hung_one_are_refused_and_never_made() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Arc::new(start(folder.path()));
    let (release, hung) = hang(&engine).await;
    let waits = async { insert(&engine).await.unwrap_err().to_string() };
    let (refused, reason) = tokio::join!(waits, engine.stalled());
    assert!(
        reason.starts_with("a write has been under way for"),
        "{reason}"
    );
    assert!(refused.ends_with(&reason), "{refused}");
    // Further ones are refused at once.
    let again = insert(&engine).await.unwrap_err().to_string();
    assert!(again.contains("a write has been under way for"), "{again}");
    assert!(matches!(engine.health(), StoreHealth::Offline(_)));
    drop(release);
    // The change under way is made, and answered as before.
    assert_eq!(hung.await.unwrap().unwrap(), 1);
    while engine.health() != StoreHealth::Well {
        tokio::task::yield_now().await;
    }
    assert_eq!(insert(&engine).await.unwrap(), 2);
    engine.close().await;
    let connection = connection::open(&folder.path().join("db")).unwrap();
    assert_eq!(count(&connection).unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_does_not_wait_for_a_hung_change() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Arc::new(start(folder.path()));
    let (release, hung) = hang(&engine).await;
    let closed = tokio::time::timeout(100 * STALL, engine.close()).await;
    let reason = closed.expect("the close waits for the change").unwrap();
    assert!(
        reason.starts_with("a write has been under way for"),
        "{reason}"
    );
    drop(release);
    // The change is made, and the file closed, as soon as it ends.
    assert_eq!(hung.await.unwrap().unwrap(), 1);
    assert_eq!(engine.close().await, None);
}

/// Changes until one is refused; returns the number of those that were answered.
async fn insert_until_refused(engine: &Engine<Rows>) -> (u64, String) {
    let mut answered = 0;
    loop {
        match insert(engine).await {
            Ok(last) => answered = last,
            Err(error) => return (answered, error.to_string()),
        }
    }
}

fn beside(folder: &Path, suffix: &str) -> std::path::PathBuf {
    folder.join(format!("db{suffix}"))
}

#[tokio::test]
async fn what_was_answered_survives_the_removal_of_the_wal_under_load() {
    for suffix in ["-wal", "-shm"] {
        let folder = tempfile::tempdir().unwrap();
        let engine = start(folder.path());
        insert(&engine).await.unwrap();
        fs::remove_file(beside(folder.path(), suffix)).unwrap();
        let (answered, refused) = insert_until_refused(&engine).await;
        assert!(refused.contains("write-ahead log was removed"), "{refused}");
        engine.moved().await;
        // As another process finds it after a crash: without the files that are open here.
        for suffix in ["", "-wal"] {
            let to = folder.path().join(format!("copy{suffix}"));
            match fs::copy(beside(folder.path(), suffix), to) {
                Err(_) if suffix == "-wal" => {}
                copied => drop(copied.unwrap()),
            }
        }
        let connection = connection::open(&folder.path().join("copy")).unwrap();
        assert_eq!(count(&connection).unwrap(), answered, "without {suffix}");
        engine.close().await;
    }
}

#[tokio::test]
async fn the_removal_of_the_wal_is_noticed_without_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(folder.path());
    let (wal, other) = (beside(folder.path(), "-wal"), folder.path().join("other"));
    insert(&engine).await.unwrap();
    fs::write(&other, []).unwrap();
    fs::rename(&other, &wal).unwrap();
    engine.moved().await;
    let connection = connection::open(&folder.path().join("db")).unwrap();
    assert_eq!(count(&connection).unwrap(), 1);
    engine.close().await;
}
