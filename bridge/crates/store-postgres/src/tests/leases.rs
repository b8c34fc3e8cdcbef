//! Leases: given up before they end, taken over after, in both orders; and what nodes see of each other.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::value::to_raw_value;

use forge_store::contract::sample::{self, PROVIDER, accept, claim, ok, task};
use forge_store::destination::DueQuery;
use forge_store::node::Tenure;
use forge_store::record::{
    Acceptance, AfterAttempt, Begun, CancelRequest, Claim, ClaimLimits, DeliveryState, Home,
    NewDispatch, Progress, Requeue, Settlement,
};
use forge_store::roles::{
    Accept as _, EventLog as _, Executions as _, Maintenance as _, Nodes as _, Outbox as _,
    Queue as _, Records as _,
};
use forge_store::{Config, Error};

use super::cluster::Database;
use crate::Postgres;
use crate::engine::link::Link;

const LEASE: Duration = Duration::from_millis(1500);

async fn node(database: &Database, name: &str, lease: Duration) -> Postgres {
    let config = Config {
        lease,
        ..Config::default()
    };
    database.create().await;
    Postgres::open(&config, database.target(), name)
        .await
        .unwrap()
}

/// Two nodes; the lease of the second one does not end in a test.
async fn two(database: &Database) -> (Postgres, Postgres) {
    let first = node(database, "a", LEASE).await;
    (first, node(database, "b", Config::default().lease).await)
}

fn requeue(seconds: i64) -> Requeue {
    Requeue {
        event: sample::event("dispatch.requeued", seconds),
    }
}

/// An attempt that failed and is repeated.
fn retry() -> Settlement {
    sample::settlement(
        1,
        50,
        AfterAttempt::Retry {
            due: sample::at(60),
        },
    )
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn begin(store: &Postgres, new: NewDispatch) -> Begun {
    accept(store, new).await;
    claim(store, PROVIDER, 1, 1).await.pop().unwrap().begun
}

/// Lets the lease of a node end as if it had not been renewed, while its keeper waits for the row.
struct Lapsed(Link);

impl Lapsed {
    async fn of(database: &Database, name: &str) -> Self {
        let mut link = Link::connect(&database.target()).await.unwrap();
        let end = format!("BEGIN; UPDATE node SET until = clock_timestamp() WHERE id = '{name}'");
        link.run(&end).await.unwrap();
        Self(link)
    }

    async fn commit(mut self) {
        self.0.run("COMMIT").await.unwrap();
    }
}

#[tokio::test]
async fn an_ended_lease_is_taken_over_and_never_renewed() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let begun = begin(&first, task("t")).await;
    assert!(second.interrupted(10).await.unwrap().is_empty());
    let mut tenure = first.node().tenure.subscribe();
    Lapsed::of(&database, "a").await.commit().await;
    let late = first.append(&begun.lease, Progress::default()).await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    let left = second.interrupted(10).await.unwrap();
    assert_eq!((left.len(), left[0].attempt), (1, 1));
    let taken = Claim::Interrupted {
        id: begun.lease.id,
        attempt: 1,
    };
    second.requeue(taken, requeue(2)).await.unwrap();
    // The node gives its lease up, and comes back under another epoch.
    tenure
        .wait_for(|state| *state == Tenure::Lost)
        .await
        .unwrap();
    assert!(first.status().is_err());
    tenure
        .wait_for(|state| *state != Tenure::Lost)
        .await
        .unwrap();
    assert!(first.epoch() > begun.lease.epoch && first.status().is_ok());
    let stale = first.finish(Claim::Attempt(begun.lease), ok(3)).await;
    assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
    let again = claim(&first, PROVIDER, 1, 4).await;
    assert_eq!(again[0].begun.lease.attempt, 2);
    for store in [first, second] {
        store.close().await;
    }
}

#[tokio::test]
async fn of_renewal_and_end_the_first_one_counts() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    begin(&first, task("t")).await;
    // The renewal waits for a row that says that the lease has ended, and finds nothing to renew.
    let lapsed = Lapsed::of(&database, "a").await;
    tokio::time::sleep(LEASE).await;
    lapsed.commit().await;
    assert_eq!(second.interrupted(10).await.unwrap().len(), 1);
    let mut tenure = first.node().tenure.subscribe();
    tenure
        .wait_for(|state| *state != Tenure::Lost)
        .await
        .unwrap();

    // The end waits for a row that has been renewed, and ends nothing.
    begin(&second, task("other")).await;
    let mut link = Link::connect(&database.target()).await.unwrap();
    link.run(
        "UPDATE node SET until = clock_timestamp() WHERE id = 'b'; BEGIN;
              UPDATE node SET until = clock_timestamp() + interval '1 minute' WHERE id = 'b'",
    )
    .await
    .unwrap();
    let (left, ()) = tokio::join!(first.interrupted(10), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        link.run("COMMIT").await.unwrap();
    });
    let own = left
        .unwrap()
        .into_iter()
        .filter(|left| left.dispatch.task_id == "other");
    assert_eq!(own.count(), 0);
    second
        .append(
            &begin(&second, task("third")).await.lease,
            Progress::default(),
        )
        .await
        .unwrap();
    for store in [first, second] {
        store.close().await;
    }
}

#[tokio::test]
async fn a_node_that_is_cut_off_gives_up_before_its_lease_ends() {
    let database = Database::new();
    let store = node(&database, "a", LEASE).await;
    let mut tenure = store.node().tenure.subscribe();
    let mut link = Link::connect(&database.target()).await.unwrap();
    // Its renewals wait, and no batch finds out.
    link.run("BEGIN; SELECT 1 FROM node FOR UPDATE")
        .await
        .unwrap();
    let begun = Instant::now();
    tenure
        .wait_for(|state| *state == Tenure::Lost)
        .await
        .unwrap();
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    let refused = store.accept(task("t")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    link.run("COMMIT").await.unwrap();
    tenure
        .wait_for(|state| *state != Tenure::Lost)
        .await
        .unwrap();
    // What ran until the end of the lease had time to end.
    assert!(begun.elapsed() >= LEASE / 2, "{:?}", begun.elapsed());
    accept(&store, task("t")).await;
    store.close().await;
}

#[tokio::test]
async fn a_stopped_node_ends_its_lease_at_once() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    begin(&first, task("t")).await;
    first.close().await;
    assert_eq!(second.interrupted(10).await.unwrap().len(), 1);
    let nodes = second.nodes().await.unwrap();
    let live: Vec<_> = nodes.iter().map(|node| (&*node.id, node.is_live)).collect();
    assert_eq!(live, [("a", false), ("b", true)]);
    second.close().await;
}

#[tokio::test]
async fn nodes_see_each_other() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let offer = to_raw_value(&["echo"]).unwrap();
    first.node().offer.send_replace(offer.clone());
    let mut others = second.node().others.subscribe();
    let told = others.wait_for(|others| others.iter().any(|node| node.offer.get() == offer.get()));
    assert_eq!(told.await.unwrap()[0].id, "a");

    // Work that can start, events, counts, and a cancellation.
    let mut notices = second.node().notices.subscribe();
    let mut changes = second.changes();
    accept(&first, task("t")).await;
    let ready = notices.wait_for(|notices| notices.ready == [PROVIDER]);
    drop(ready.await.unwrap());
    let newest = first.log_bounds().issued;
    changes
        .wait_for(|position| *position == newest)
        .await
        .unwrap();
    assert_eq!(second.queues().await.unwrap(), [(PROVIDER.to_owned(), 64)]);
    until("the counts are told", async || second.counts().queued == 1).await;
    first
        .append_unbound(PROVIDER, vec![sample::event("adapter.event", 1)])
        .await
        .unwrap();
    let stored = second.stored_log_bounds().await.unwrap();
    assert_eq!(stored, first.log_bounds(), "before a poll");
    let begun = claim(&second, PROVIDER, 1, 1).await.pop().unwrap().begun;
    let requested = first
        .request_cancel(begun.lease.id, Timestamp::now())
        .await
        .unwrap();
    assert!(matches!(requested, CancelRequest::Running { attempt: 1 }));
    let told = notices.wait_for(|notices| notices.cancelled == [(begun.lease.id, 1)]);
    drop(told.await.unwrap());

    // Nothing is left to see after it has gone.
    first.close().await;
    others.wait_for(|others| others.is_empty()).await.unwrap();
    until("the counts are exact", async || {
        let counts = second.counts();
        (counts.queued, counts.running) == (0, 1)
    })
    .await;
    second.close().await;
}

/// A claim on a node that waits this long for the home of a session.
async fn claim_for(store: &Postgres, grace: Option<Duration>) -> Vec<Begun> {
    let limits = ClaimLimits {
        count: 10,
        max_attempts: 3,
        home_grace: grace,
    };
    let claimed = store
        .claim(PROVIDER, limits, sample::event("dispatch.started", 1))
        .await;
    claimed
        .unwrap()
        .into_iter()
        .map(|claimed| claimed.begun)
        .collect()
}

#[tokio::test]
async fn a_session_stays_where_its_last_dispatch_ran() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let in_session = |name: &str| NewDispatch {
        session: Some("s".to_owned()),
        ..task(name)
    };
    let grace = Some(Duration::from_secs(60));
    accept(&second, in_session("one")).await;
    accept(&second, in_session("two")).await;
    let one = claim_for(&first, grace).await.pop().unwrap();
    let session = Progress {
        session: Some("of the runtime".to_owned()),
        ..Progress::default()
    };
    first.append(&one.lease, session).await.unwrap();
    first
        .finish(Claim::Attempt(one.lease), ok(2))
        .await
        .unwrap();
    assert!(claim_for(&second, grace).await.is_empty());
    let two = claim_for(&first, grace).await.pop().unwrap();
    first
        .finish(Claim::Attempt(two.lease), ok(3))
        .await
        .unwrap();
    // The session is empty, and its home is kept; also for one that could start at once.
    let three = NewDispatch {
        start: Some(sample::event("dispatch.started", 4)),
        ..in_session("three")
    };
    let accepted = second.accept(three).await.unwrap();
    assert!(
        matches!(accepted, Acceptance::Accepted { begun: None, .. }),
        "{accepted:?}"
    );
    assert!(claim_for(&second, grace).await.is_empty());
    // Without a home, or after a while, it runs anywhere.
    first.close().await;
    assert!(claim_for(&second, grace).await.is_empty());
    let three = claim_for(&second, Some(Duration::ZERO))
        .await
        .pop()
        .unwrap();
    second
        .requeue(Claim::Attempt(three.lease), requeue(5))
        .await
        .unwrap();
    let third = node(&database, "c", LEASE).await;
    assert!(claim_for(&third, grace).await.is_empty());
    assert_eq!(claim_for(&third, None).await.len(), 1);
    for store in [second, third] {
        store.close().await;
    }
}

#[tokio::test]
async fn a_bound_dispatch_runs_where_it_was_accepted() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let bound = NewDispatch {
        is_bound: true,
        ..task("t")
    };
    let id = accept(&first, bound).await;
    let free = accept(&first, task("free")).await;
    let home = Home {
        node: first.node().id.clone(),
        is_bound: true,
    };
    assert_eq!(second.homes(&[id, free]).await.unwrap(), [(id, home)]);
    second.finish(Claim::Unstarted(free), ok(1)).await.unwrap();
    assert!(claim_for(&second, Some(Duration::ZERO)).await.is_empty());
    assert!(claim_for(&second, None).await.is_empty());
    let begun = claim_for(&first, None).await.pop().unwrap();
    first
        .requeue(Claim::Attempt(begun.lease), requeue(2))
        .await
        .unwrap();
    assert!(claim_for(&second, None).await.is_empty());
    for store in [first, second] {
        store.close().await;
    }
}

#[tokio::test]
async fn a_node_resumes_only_what_it_ran() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let begun = begin(&first, task("t")).await;
    let session = Progress {
        session: Some("of the runtime".to_owned()),
        ..Progress::default()
    };
    first.append(&begun.lease, session).await.unwrap();
    first
        .requeue(Claim::Attempt(begun.lease), requeue(2))
        .await
        .unwrap();
    let grace = Some(Duration::from_secs(60));
    assert!(claim_for(&second, grace).await.is_empty());
    let here = claim_for(&first, grace).await.pop().unwrap();
    assert_eq!(here.recorded_session.as_deref(), Some("of the runtime"));
    first
        .requeue(Claim::Attempt(here.lease), requeue(3))
        .await
        .unwrap();
    first.close().await;
    let there = claim_for(&second, Some(Duration::ZERO))
        .await
        .pop()
        .unwrap();
    assert_eq!(there.recorded_session, None);
    second.close().await;
}

#[tokio::test]
async fn a_delivery_is_attempted_by_one_node() {
    let database = Database::new();
    let (first, second) = two(&database).await;
    let begun = begin(&first, task("t")).await;
    first
        .finish(Claim::Attempt(begun.lease), ok(2))
        .await
        .unwrap();
    let due = async |store: &Postgres| {
        let query = DueQuery {
            now: sample::at(100),
            limit: 10,
            per_origin: 10,
            exclude: Vec::new(),
            in_flight: HashSet::new(),
        };
        store.due(query).await.unwrap()
    };
    // It is born claimed.
    assert!(due(&second).await.is_empty());
    assert_eq!(second.next_due(&[]).await.unwrap(), None);
    let own = due(&first).await.pop().unwrap();
    let foreign = second.settle(own.id, retry()).await;
    assert!(
        matches!(foreign, Err(Error::InvalidState(_))),
        "{foreign:?}"
    );
    // A retry belongs to the node that comes first.
    first.settle(own.id, retry()).await.unwrap();
    let (one, other) = tokio::join!(due(&first), due(&second));
    assert_eq!(one.len() + other.len(), 1, "{one:?} {other:?}");
    // So does that of a node that is gone.
    let (gone, left) = if one.is_empty() {
        (second, first)
    } else {
        (first, second)
    };
    gone.close().await;
    assert_eq!(due(&left).await.len(), 1);
    left.settle(own.id, sample::settlement(2, 70, AfterAttempt::Delivered))
        .await
        .unwrap();
    let record = left.delivery(own.id).await.unwrap().unwrap();
    assert_eq!(record.status, DeliveryState::Delivered);
    left.close().await;
}

#[tokio::test]
async fn a_node_that_cannot_read_the_tables_any_more_stops() {
    let database = Database::new();
    let store = node(&database, "a", LEASE).await;
    let mut tenure = store.node().tenure.subscribe();
    super::cluster::run(&database.name, "UPDATE schema SET oldest_reader = 99").await;
    tenure
        .wait_for(|state| *state == Tenure::Lost)
        .await
        .unwrap();
    let refused = store.accept(task("t")).await;
    let Err(Error::Unavailable(reason)) = refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("newer forge-bridge"), "{reason}");
    store.close().await;
}
