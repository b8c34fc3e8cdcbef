//! Tests of what a change that fails takes back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forge_store::Error;
use forge_store::contract::judgement::Strict;
use forge_store::contract::sample::{accept, task};
use forge_store::contract::signals;
use forge_store::record::{Acceptance, NewSignal};
use forge_store::roles::{Accept as _, EventLog as _, Queue as _, Records as _, Signals as _};

use super::tests::open;
use super::*;
use crate::tables::events;

#[tokio::test]
async fn a_change_that_fails_takes_only_itself_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (id, bounds) = (accept(&store, task("t")).await, store.log_bounds());
    let half = store.write(Urgency::Now, 0, |tx| {
        events::insert(tx, Some("echo"), None, &task("t").events)?;
        tx.execute("DELETE FROM body", [])?;
        tx.counters.entered_queue("nowhere");
        Err::<(), _>(Error::InvalidState("on second thoughts").into())
    });
    let other = store.accept(task("u"));
    let (half, other) = tokio::join!(half, other);
    assert!(matches!(half, Err(Error::InvalidState(_))));
    assert!(matches!(other, Ok(Acceptance::Accepted { .. })));
    assert!(store.dispatch(id).await.unwrap().is_some());
    assert_eq!(store.counts().queued, 2);
    assert_eq!(store.queues().await.unwrap(), [("echo".to_owned(), 2)]);
    assert_eq!(store.log_bounds().issued, bounds.issued + 2);
}

#[tokio::test]
async fn a_transaction_that_is_repeated_takes_its_judgements_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let session = signals::session("s");
    store
        .open_signal_session(session, Vec::new())
        .await
        .unwrap();
    let strict = Arc::new(Strict::default());
    let judged = NewSignal {
        judge: Some(Arc::clone(&strict) as _),
        ..signals::signal("s", 1)
    };
    // The first change ends once the others are queued, so that these share a transaction.
    let (queued, waiting) = mpsc::channel();
    let waits = store.write(Urgency::Now, 0, move |_| {
        // A repetition finds the sender gone.
        let _ = waiting.recv();
        Ok(())
    });
    let half = store.write(Urgency::Now, 0, |tx| {
        tx.execute("DELETE FROM body", [])?;
        tx.execute("DELETE FROM signal", [])?;
        Err::<(), _>(Error::InvalidState("on second thoughts").into())
    });
    let (_, first, half, second, sent) = tokio::join!(
        waits,
        store.record_signal(judged.clone()),
        half,
        store.record_signal(judged),
        async move { queued.send(()) }
    );
    sent.unwrap();
    assert!(half.is_err() && first.is_ok() && second.is_ok());
    let (session, _) = store.signal_session("s", 10).await.unwrap().unwrap();
    assert_eq!(session.totals.signals, 2);
    assert_eq!(strict.judged.load(Ordering::Relaxed), 2);
    assert!(strict.asked.load(Ordering::Relaxed) > 2);
}
