//! Acknowledged changes survive a crash of the server, and are there once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;

use forge_store::contract::sample::{ok, task};
use forge_store::record::{Acceptance, Claim};
use forge_store::roles::{Accept as _, Executions as _, Maintenance as _, Records as _};
use forge_store::{Config, Error};

use super::cluster::{Cluster, Targets as _};
use super::problems;
use crate::Postgres;

/// Repeats a call while the store is unavailable.
macro_rules! insist {
    ($call:expr) => {
        loop {
            match $call.await {
                Err(Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                answer => break answer,
            }
        }
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_loses_and_repeats_nothing() {
    let server = Arc::new(Cluster::start(&[]));
    let target = server.target("postgres", "forge");
    let store = Postgres::open(&Config::default(), target.clone(), "node")
        .await
        .unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let (tracker, accepted) = (
        TaskTracker::new(),
        Arc::new(std::sync::Mutex::new(Vec::new())),
    );
    for caller in 0..8 {
        let (store, ends, accepted) = (store.clone(), Arc::clone(&ends), Arc::clone(&accepted));
        tracker.spawn(async move {
            for number in 0.. {
                let name = format!("{caller}-{number}");
                let id = match insist!(store.accept(task(&name))).unwrap() {
                    Acceptance::Accepted { .. } => {
                        insist!(store.by_task(&name, None, 1)).unwrap()[0].id
                    }
                    Acceptance::Duplicate(known) => known.id,
                    other => panic!("{other:?}"),
                };
                // One that was made before its answer was lost is refused the second time.
                let finished = insist!(store.finish(Claim::Unstarted(id), ok(2)));
                assert!(
                    matches!(finished, Ok(_) | Err(Error::Stale(_))),
                    "{finished:?}"
                );
                accepted.lock().unwrap().push(name);
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
    }
    tracker.close();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let crashed = Arc::clone(&server);
        let restart = tokio::task::spawn_blocking(move || crashed.restart());
        restart.await.unwrap();
    }
    ends.store(true, Ordering::Relaxed);
    tracker.wait().await;
    let accepted = std::mem::take(&mut *accepted.lock().unwrap());
    assert!(accepted.len() >= 8);
    for name in &accepted {
        let found = store.by_task(name, None, 10).await.unwrap();
        assert_eq!(found.len(), 1, "{name}");
        assert!(found[0].result.is_some(), "{name}");
    }
    let counts = store.counts();
    assert_eq!(counts.queued, 0);
    assert_eq!(counts.deliveries_pending, accepted.len() as u64);
    store.close().await;
    let again = Postgres::open(&Config::default(), target.clone(), "node")
        .await
        .unwrap();
    assert_eq!(again.counts(), counts);
    assert_eq!(problems(target).await, Vec::<String>::new());
}
