//! What is promised ahead of the tables: that it is kept after a power cut, and that the tables come to it.

use std::fs;

use tempfile::TempDir;

use super::folder::OpenError;
use super::tests::open;
use super::torn::{Files, prefix};
use super::*;
use crate::event::kind;
use crate::store::Config;
use crate::store::contract::sample::{at, event, ok, settlement, task};
use crate::store::record::AfterAttempt;

const JOURNAL: &str = "bridge.journal";

/// What one is promised on its way: accepted and begun at once, gone on, finished, delivered.
const PROMISES: u64 = 4;

async fn go_the_way(store: &Sqlite, name: &str) -> DispatchId {
    let new = NewDispatch {
        start: Some(event(kind::STARTED, 0)),
        ..task(name)
    };
    let id = new.id;
    let accepted = store.accept(new).await.unwrap();
    let Acceptance::Accepted {
        begun: Some(begun), ..
    } = accepted
    else {
        panic!("it was not begun: {accepted:?}");
    };
    let progress = Progress {
        events: vec![event(kind::RETRYING, 1)],
        ..Progress::default()
    };
    store.append(&begun.lease, progress).await.unwrap();
    let finish = ok(2);
    let delivery = finish.delivery.as_ref().unwrap().id;
    let claim = Claim::Attempt(begun.lease);
    store.finish(claim, finish).await.unwrap();
    let settled = settlement(1, 3, AfterAttempt::Delivered);
    store.settle(delivery, settled).await.unwrap();
    id
}

/// A power cut while the tables have nothing of what was promised: the files as they were before, with the journal
/// as it is after.
struct Cut {
    files: Files,
    journal: Vec<u8>,
    ids: Vec<DispatchId>,
}

impl Cut {
    async fn after(dispatches: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let files = Files::of(folder.path());
        let mut ids = Vec::new();
        for n in 0..dispatches {
            ids.push(go_the_way(&store, &n.to_string()).await);
        }
        let promised = store.shared.promised.load(Ordering::Acquire);
        assert_eq!(promised, PROMISES * dispatches as u64, "all of it");
        let journal = fs::read(folder.path().join(JOURNAL)).unwrap();
        let end = journal.iter().rposition(|byte| *byte != 0).unwrap();
        Self {
            files,
            journal: journal[..=end].to_vec(),
            ids,
        }
    }

    /// What is left in a folder, with another journal.
    fn with(&self, journal: &[u8]) -> TempDir {
        let left = self.files.with(&self.files.wal);
        fs::write(left.path().join(JOURNAL), journal).unwrap();
        left
    }
}

#[tokio::test]
async fn a_journal_that_ends_anywhere_is_a_prefix_of_what_was_promised() {
    let cut = Cut::after(3).await;
    let journal = &cut.journal;
    let end = journal.len();
    let mut before = 0;
    for length in (0..end).step_by(end / 60).chain([end - 1, end]) {
        let left = cut.with(&journal[..length]);
        let done = prefix(left.path(), &cut.ids).await;
        assert!(done >= before, "{length} bytes have less than fewer bytes");
        before = done;
    }
    assert_eq!(before, 3 * cut.ids.len(), "all of it is all");
}

#[tokio::test]
async fn garbage_in_the_journal_ends_it() {
    let cut = Cut::after(2).await;
    // Behind that comes the delivery, which is not looked for.
    let end = cut.journal.len() * 3 / 4;
    for at in (0..end).step_by(end / 20) {
        let mut journal = cut.journal.clone();
        journal[at] ^= 0x55;
        let left = cut.with(&journal);
        assert!(prefix(left.path(), &cut.ids).await < 3 * cut.ids.len());
    }
}

#[tokio::test]
async fn what_was_made_up_for_once_is_not_made_again() {
    let cut = Cut::after(2).await;
    let left = cut.with(&cut.journal);
    for _ in 0..2 {
        assert_eq!(prefix(left.path(), &cut.ids).await, 3 * cut.ids.len());
        // As if the crash had come before the journal began anew.
        fs::write(left.path().join(JOURNAL), &cut.journal).unwrap();
    }
}

#[tokio::test]
async fn a_journal_that_begins_too_late_is_told_and_left_as_it_is() {
    let cut = Cut::after(2).await;
    let second = cut
        .journal
        .windows(10)
        .position(|bytes| bytes == b"{\"Append\":")
        .unwrap();
    let journal = &cut.journal[second - 16..];
    let left = cut.with(journal);
    match Sqlite::open(&Config::default(), left.path()) {
        Err(OpenError::Corrupt { reason, .. }) => assert!(reason.contains("journal"), "{reason}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
    assert_eq!(fs::read(left.path().join(JOURNAL)).unwrap(), journal);
}

#[tokio::test]
async fn what_was_promised_before_the_disk_was_full_is_there_when_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // A limit of the connection: it is gone when the file is opened anew.
    store
        .write(0, |tx| {
            Ok(tx.conn.pragma_update(None, "max_page_count", 1)?)
        })
        .await
        .unwrap();
    let new = NewDispatch {
        start: Some(event(kind::STARTED, 0)),
        secrets: Some(vec![0; 40 << 10]),
        ..task("large")
    };
    let id = new.id;
    store.accept(new).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let found = loop {
        match store.dispatch(id).await {
            Ok(found) => break found,
            Err(_) if std::time::Instant::now() < deadline => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(found.is_some());
    assert!(store.meters().failures.get() > 0, "it was full");
    assert!(store.status().is_ok());
    assert_eq!(store.counts().running, 1);
    store.close().await;
}

#[tokio::test]
async fn the_journal_of_another_store_is_nothing() {
    let cut = Cut::after(1).await;
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close().await;
    fs::write(folder.path().join(JOURNAL), &cut.journal).unwrap();
    let store = open(folder.path());
    assert!(store.dispatch(cut.ids[0]).await.unwrap().is_none());
    store.close().await;
}

#[tokio::test]
async fn the_key_of_a_secret_in_the_journal_is_in_use() {
    let cut = Cut::after(2).await;
    let left = cut.with(&cut.journal);
    let heads = Sqlite::sealed_heads(left.path()).unwrap();
    assert_eq!(heads.get(&b"seale"[..]), Some(&2));
}

#[tokio::test]
async fn a_backup_of_what_a_crash_left_has_what_was_promised() {
    let cut = Cut::after(2).await;
    let left = cut.with(&cut.journal);
    let copy = left.path().join("copy.db");
    Sqlite::backup(left.path(), &copy).unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::copy(&copy, place.path().join("bridge.db")).unwrap();
    // A journal that lies there has nothing to do with it.
    fs::write(place.path().join(JOURNAL), &cut.journal).unwrap();
    assert_eq!(prefix(place.path(), &cut.ids).await, 3 * cut.ids.len());
}

/// Others change the tables between, and read them.
#[tokio::test]
async fn many_at_once_come_to_what_they_were_promised() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // Fewer than a crowd, which would promise nothing.
    let ways = (0..6).map(|n| {
        let store = store.clone();
        async move {
            let mut ids = Vec::new();
            for m in 0..40 {
                ids.push(go_the_way(&store, &format!("{n}-{m}")).await);
                match (n, m % 8) {
                    (0, 3) => drop(store.request_cancel(DispatchId::new(), at(3)).await),
                    (1, 5) => drop(store.seal_once(&format!("{m}"), vec![1]).await),
                    (2, 7) => drop(store.dispatch(ids[m]).await),
                    _ => {}
                }
            }
            ids
        }
    });
    let ids: Vec<DispatchId> = futures_util::future::join_all(ways).await.concat();
    assert_eq!(store.counts(), Counts::default());
    store.close().await;
    assert_eq!(prefix(folder.path(), &ids).await, 3 * ids.len());
}
