//! Faults that concern one change, and not those beside it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forge_store::contract::judgement::Strict;
use forge_store::contract::sample::{accept, begin, failed, run, settlement, task};
use forge_store::contract::signals;
use forge_store::record::{
    AfterAttempt, Claim, DeliveryAttempt, DispatchState, NewSignal, Progress, Settlement,
};
use forge_store::roles::{
    Accept as _, Executions as _, Maintenance as _, Outbox as _, Records as _, Signals as _,
};
use forge_store::{Error, Store};

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::cluster::run as run_script;
use super::{new_store, open};
use crate::Postgres;
use crate::batch::{Needs, Rows};
use crate::engine::link::Link;

/// Keeps the writer busy until the returned sender is dropped or used, so that what is submitted meanwhile shares a batch.
/// Returns when it is busy.
async fn hold_writer(store: &Postgres) -> (mpsc::Sender<()>, JoinHandle<forge_store::Result<()>>) {
    let (release, held) = mpsc::channel::<()>();
    let (begins, begun) = mpsc::channel();
    let held = std::sync::Mutex::new(held);
    let writes = store.clone();
    let holding = TaskTracker::new().spawn(async move {
        let change = move |_: &mut Rows| {
            let _ = begins.send(());
            let _ = held.lock().unwrap().recv();
            Ok(())
        };
        writes.write(0, Needs::default(), change).await
    });
    let begun = tokio::task::spawn_blocking(move || begun.recv());
    begun.await.unwrap().unwrap();
    (release, holding)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_the_database_refuses_takes_only_itself_back() {
    let (_database, store) = new_store().await;
    store
        .open_signal_session(signals::session("s"), Vec::new())
        .await
        .unwrap();
    let strict = Arc::new(Strict::default());
    let judged = || NewSignal {
        judge: Some(Arc::clone(&strict) as _),
        ..signals::signal("s", 1)
    };
    let (release, holds) = hold_writer(&store).await;
    let refused = store.write(0, Needs::default(), |rows| {
        rows.execute(
            "INSERT INTO meta (name, value) VALUES (NULL, 1)",
            Vec::new(),
        );
        Ok(())
    });
    let panics = store.write(0, Needs::default(), |_| -> Result<(), _> {
        panic!("in a decision")
    });
    let (held, first, refused, panicked, second, accepted, ()) = tokio::join!(
        holds,
        store.record_signal(judged()),
        refused,
        panics,
        store.record_signal(judged()),
        store.accept(task("t")),
        async move { drop(release) },
    );
    held.unwrap().unwrap();
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(
        matches!(panicked, Err(Error::Unavailable(_))),
        "{panicked:?}"
    );
    assert!(first.is_ok() && second.is_ok() && accepted.is_ok());
    let (session, _) = store.signal_session("s", 10).await.unwrap().unwrap();
    assert_eq!(session.totals.signals, 2);
    assert_eq!(strict.judged.load(Ordering::Relaxed), 2);
    assert!(
        strict.asked.load(Ordering::Relaxed) > 2,
        "the batch was shared"
    );
    assert_eq!(store.counts().queued, 1);
}

#[tokio::test]
async fn a_row_that_an_operator_has_locked_delays_its_own_change_alone() {
    let (database, store) = new_store().await;
    let locked = accept(&store, task("locked")).await;
    let lease = begin(&store, locked, 1).await.lease;
    let mut operator = Link::connect(&database.target()).await.unwrap();
    operator
        .run("BEGIN; SELECT * FROM dispatch FOR UPDATE")
        .await
        .unwrap();
    let (waits, others) = tokio::join!(store.append(&lease, Progress::default()), async {
        for n in 0..5 {
            accept(&store, task(&n.to_string())).await;
        }
    });
    assert!(matches!(waits, Err(Error::Unavailable(_))), "{waits:?}");
    assert_eq!(others, ());
    operator.run("ROLLBACK").await.unwrap();
    store.append(&lease, Progress::default()).await.unwrap();
}

#[tokio::test]
async fn texts_with_nul_are_kept() {
    let (_database, store) = new_store().await;
    let (id, delivery) = run(&store, task("t"), failed("\0code", 2)).await;
    let attempt = DeliveryAttempt {
        answer: Some("\0answer\0".to_owned()),
        error: Some("\0".to_owned()),
        ..settlement(1, 3, AfterAttempt::Dead).attempt.unwrap()
    };
    let settled = Settlement {
        attempt: Some(attempt.clone()),
        ..settlement(1, 3, AfterAttempt::Dead)
    };
    store.settle(delivery.unwrap(), settled).await.unwrap();
    let read = store.delivery(delivery.unwrap()).await.unwrap().unwrap();
    assert_eq!(read.attempts, [attempt]);
    let state = store.dispatch(id).await.unwrap().unwrap().state;
    assert!(
        matches!(state, DispatchState::Finished { error_code: Some(code), .. } if code == "\0code")
    );
}

#[tokio::test]
async fn a_start_as_the_same_node_ends_the_one_before() {
    let (database, first) = new_store().await;
    let id = accept(&first, task("t")).await;
    let lease = begin(&first, id, 1).await.lease;
    let second = open(database.target()).await;
    assert_eq!(second.epoch(), first.epoch() + 1);
    let late = first.append(&lease, Progress::default()).await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    assert!(first.status().is_err());
    first.close().await;
    assert_eq!(second.interrupted(10).await.unwrap().len(), 1);
    let claim = Claim::Interrupted { id, attempt: 1 };
    second
        .finish(claim, failed("interrupted", 3))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_server_that_ends_all_connections_is_connected_to_again() {
    let (database, store) = new_store().await;
    accept(&store, task("before")).await;
    let name = &database.name;
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    run_script("postgres", &end).await;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = store.accept(task("after")).await {
        assert!(std::time::Instant::now() < end, "{error}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let after = (&store as &dyn Store)
        .by_task("after", None, 10)
        .await
        .unwrap();
    assert_eq!((after.len(), store.counts().queued), (1, 2));
    assert!(store.status().is_ok());
}
