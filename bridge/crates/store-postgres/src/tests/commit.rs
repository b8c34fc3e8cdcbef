//! A commit whose answer is lost is answered as it ended.

use std::sync::Arc;
use std::time::Duration;

use forge_base::event::kind;
use forge_store::contract::sample::{PROVIDER, accept, begin, claim, event, ok, owner, task};
use forge_store::node::Tenure;
use forge_store::record::{
    Acceptance, Claim, ClaimLimits, EventFilter, Finished, IdempotencyKey, NewDispatch, Progress,
    Requeue,
};
use forge_store::roles::{
    Accept as _, EventLog as _, Executions as _, Maintenance as _, Nodes as _, Records as _,
};
use forge_store::{Config, Error, Store};

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::cluster::{Cluster, Database};
use super::relay::{Cut, Relay};
use super::{new_store, open};
use crate::Postgres;
use crate::batch::{Needs, Rows};

async fn start() -> (Database, Relay, Postgres) {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let store = open(relay.target(&database.name)).await;
    (database, relay, store)
}

fn lost_answers(store: &Postgres) -> Vec<u64> {
    let meters = store.meters();
    meters
        .shared
        .lost_answers
        .iter()
        .map(|count| count.get())
        .collect()
}

/// Accepts a dispatch once the store has a connection again.
async fn accept_again(store: &dyn Store, task_id: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        match store.accept(task(task_id)).await {
            Ok(accepted) => return assert!(matches!(accepted, Acceptance::Accepted { .. })),
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_was_committed_is_acknowledged_with_its_positions() {
    let (database, relay, store) = start().await;
    relay.cut(Cut::After);
    let id = accept(&store, task("t")).await;
    let lease = begin(&store, id, 1).await.lease;
    let progress = || Progress {
        events: vec![event("assistant.text", 2)],
        ..Progress::default()
    };
    relay.cut(Cut::After);
    store.append(&lease, progress()).await.unwrap();
    relay.cut(Cut::After);
    store
        .append_unbound("echo", vec![event("adapter.event", 2)])
        .await
        .unwrap();
    relay.cut(Cut::After);
    let finished = store.finish(Claim::Attempt(lease), ok(3)).await.unwrap();
    relay.cut(Cut::Never);
    let Finished::Recorded(recorded) = finished else {
        panic!("{finished:?}");
    };
    assert_eq!((recorded.totals.count, recorded.totals.last), (5, 6));
    let read = store.dispatch(id).await.unwrap().unwrap();
    assert_eq!(read.result.unwrap().get(), recorded.body);
    assert_eq!(store.log_bounds().issued, 6);
    assert_eq!(lost_answers(&store), [4, 0, 0]);
    let events = store
        .events(&EventFilter::default(), 0, 100)
        .await
        .unwrap()
        .events;
    assert_eq!(events.len(), 6);
    let (counts, bounds) = (store.counts(), store.log_bounds());
    store.close().await;
    let again = open(database.target()).await;
    assert_eq!((again.counts(), again.log_bounds()), (counts, bounds));
}

#[tokio::test]
async fn an_attempt_whose_start_stayed_unknown_is_left_with_the_lease() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let config = Config {
        lease: Duration::from_secs(3),
        ..Config::default()
    };
    let store = Postgres::open(&config, relay.target(&database.name), "node");
    let store = store.await.unwrap();
    let id = accept(&store, task("t")).await;
    let (mut tenure, before) = (store.node().tenure.subscribe(), store.epoch());
    relay.cut(Cut::Silent);
    let limits = ClaimLimits {
        count: 1,
        max_attempts: 3,
        home_grace: None,
    };
    let claimed = store.claim(PROVIDER, limits, event(kind::STARTED, 1)).await;
    assert!(matches!(claimed, Err(Error::Unavailable(_))), "{claimed:?}");
    relay.heal();
    assert_eq!(lost_answers(&store), [0, 0, 1]);
    let back = tenure.wait_for(|state| matches!(state, Tenure::Held { epoch } if *epoch > before));
    let back = timeout(Duration::from_secs(60), back).await;
    back.unwrap().unwrap();
    let left = store.interrupted(10).await.unwrap();
    assert_eq!((left.len(), left[0].attempt), (1, 1));
    let event = event("dispatch.requeued", 2);
    let taken = Claim::Interrupted { id, attempt: 1 };
    store.requeue(taken, Requeue { event }).await.unwrap();
    let again = claim(&store, PROVIDER, 1, 4).await;
    assert_eq!(again[0].begun.lease.attempt, 2);
    store.close().await;
}

#[tokio::test]
async fn what_was_not_committed_is_refused_and_not_there() {
    let (database, relay, store) = start().await;
    accept(&store, task("before")).await;
    relay.cut(Cut::Before);
    let refused = store.accept(task("t")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    relay.cut(Cut::Never);
    assert_eq!(lost_answers(&store), [0, 1, 0]);
    assert!(store.by_task("t", None, 1).await.unwrap().is_empty());
    assert_eq!(store.counts().queued, 1);
    accept_again(&store, "t").await;
    // The positions of what was rolled back can be lost; those that follow are later.
    let events = store
        .events(&EventFilter::default(), 0, 100)
        .await
        .unwrap()
        .events;
    let positions: Vec<_> = events.iter().map(|event| event.id.position).collect();
    assert!(
        positions.is_sorted() && positions.len() == 4,
        "{positions:?}"
    );
    assert_eq!(store.log_bounds().issued, *positions.last().unwrap());
    let counts = store.counts();
    store.close().await;
    assert_eq!(open(database.target()).await.counts(), counts);
}

#[tokio::test]
async fn keys_of_a_bridge_that_knew_no_owners_are_found_by_all() {
    let (database, store) = new_store().await;
    let id = accept(&store, task("t")).await;
    let sql = "UPDATE key SET value = 't:t'; UPDATE body SET key = 't:t'";
    super::cluster::run(&database.name, sql).await;
    for number in 0..3 {
        let key = IdempotencyKey {
            owner: owner(number),
            ..task("t").key
        };
        let known = store.recall(&key).await.unwrap();
        assert_eq!(known.map(|known| known.dispatch.id), Some(id));
        let new = NewDispatch { key, ..task("t") };
        let again = store.accept(new).await.unwrap();
        assert!(matches!(again, Acceptance::Duplicate(known) if known.id == id));
        let own = store.by_task("t", Some(owner(number)), 9).await.unwrap();
        assert_eq!(own.len(), 1);
    }
}

/// A store on a server of its own, whose commit had no answer before the server crashed, and the answer to its change.
async fn after_a_crash(cut: Cut, change: &'static str) -> (Result<(), Error>, Vec<u64>, String) {
    let server = Arc::new(Cluster::start(&[]));
    let relay = Relay::to(&server.folder).await;
    let store = open(relay.target("postgres")).await;
    accept(&store, task("before")).await;
    relay.cut(cut);
    relay.deafen();
    let writes = store.clone();
    let waiting = TaskTracker::new().spawn(async move {
        let decide = move |rows: &mut Rows| {
            rows.execute(change, Vec::new());
            Ok(())
        };
        writes.write(0, Needs::default(), decide).await
    });
    // Nothing is asked before the server has crashed: connections that are made are mute.
    until(|| relay.has_cut()).await;
    let crashed = Arc::clone(&server);
    let restart = tokio::task::spawn_blocking(move || crashed.restart());
    restart.await.unwrap();
    relay.heal();
    let answer = waiting.await.unwrap();
    let found = server.run("postgres", "SELECT count(*) FROM meta WHERE name = 'probe'");
    (answer, lost_answers(&store), found)
}

async fn until(is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_without_an_event_has_a_proof_that_outlives_a_crash() {
    let insert = "INSERT INTO meta (name, value) VALUES ('probe', 1)";
    let (answer, lost, found) = after_a_crash(Cut::After, insert).await;
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!((lost, &*found), (vec![1, 0, 0], "1"));
    let (answer, lost, found) = after_a_crash(Cut::Before, insert).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    assert_eq!((lost, &*found), (vec![0, 1, 0], "0"));
}

#[tokio::test]
async fn work_goes_on_while_the_outcome_of_a_commit_is_asked_for() {
    let (_database, relay, store) = start().await;
    let id = accept(&store, task("t")).await;
    let lease = begin(&store, id, 1).await.lease;
    relay.cut(Cut::Silent);
    let (writes, doubted) = (store.clone(), lease.clone());
    let doubt = TaskTracker::new().spawn(async move {
        let progress = Progress {
            events: vec![event("assistant.text", 2)],
            ..Progress::default()
        };
        writes.append(&doubted, progress).await
    });
    until(|| relay.has_cut()).await;
    // The batch with the commit was sent, and its questions are not answered for 10 s.
    let begun = std::time::Instant::now();
    accept_again(&store, "another").await;
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert!(!doubt.is_finished());
    // A change of the same dispatch waits for the outcome.
    let writes = store.clone();
    let dependent =
        TaskTracker::new().spawn(async move { writes.append(&lease, Progress::default()).await });
    relay.heal();
    doubt.await.unwrap().unwrap();
    dependent.await.unwrap().unwrap();
    assert_eq!(lost_answers(&store), [1, 0, 0]);
    store.close().await;
}
