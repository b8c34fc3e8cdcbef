//! Two nodes on one database, each order forced by the lock of the log.

use std::time::{Duration, Instant};

use tokio::sync::Notify;

use forge_store::contract::sample::{PROVIDER, accept, claim, event, ok, task};
use forge_store::record::{Acceptance, Claim, NewDispatch, Progress};
use forge_store::roles::{
    Accept as _, EventLog as _, Executions as _, Maintenance as _, Queue as _, Records as _,
};
use forge_store::{Config, Error};

use super::cluster::Database;
use crate::Postgres;
use crate::engine::link::Link;
use crate::rows::statement::Statement;

async fn node(database: &Database, name: &str) -> Postgres {
    let store = Postgres::open(&Config::default(), database.target(), name).await;
    store.unwrap()
}

/// Holds the log, so that a node that adds events waits with all its rows written.
struct HeldLog(Link);

impl HeldLog {
    async fn new(database: &Database) -> Self {
        let mut link = Link::connect(&database.target()).await.unwrap();
        link.run("BEGIN; SELECT lock_log()").await.unwrap();
        Self(link)
    }

    /// Returns when this many transactions wait for a lock.
    async fn waiting(&mut self, count: usize) {
        let sql = "SELECT 1 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let statement = Statement::new(sql, Vec::new());
        let end = Instant::now() + Duration::from_secs(20);
        while self.0.send(&[&statement]).await.unwrap()[0].len() < count {
            assert!(Instant::now() < end);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn release(mut self) {
        self.0.run("COMMIT").await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_two_nodes_are_given_at_once_has_one_dispatch() {
    let database = Database::new();
    database.create().await;
    let (first, second) = (node(&database, "a").await, node(&database, "b").await);
    let held = HeldLog::new(&database).await;
    let both_wait = Notify::new();
    let in_session = || NewDispatch {
        session: Some("s".to_owned()),
        ..task("t")
    };
    let other = NewDispatch {
        session: Some("s".to_owned()),
        ..task("other")
    };
    let (one, two, three, ()) = tokio::join!(
        first.accept(in_session()),
        async {
            held_until(&database, 1).await;
            second.accept(in_session()).await
        },
        async {
            // The first node waits for the log, the second one for the key.
            held_until(&database, 2).await;
            both_wait.notify_one();
            second.accept(other).await
        },
        async {
            both_wait.notified().await;
            held.release().await;
        },
    );
    assert!(matches!(one, Ok(Acceptance::Accepted { .. })), "{one:?}");
    assert!(matches!(two, Ok(Acceptance::Duplicate(_))), "{two:?}");
    assert!(
        matches!(three, Ok(Acceptance::Accepted { .. })),
        "{three:?}"
    );
    assert_eq!(second.by_task("t", None, 10).await.unwrap().len(), 1);
    // One of the session can start.
    assert_eq!(first.ready(PROVIDER, 10).await.unwrap().len(), 1);
    for store in [first, second] {
        store.close().await;
    }
}

async fn held_until(database: &Database, count: usize) {
    let link = Link::connect(&database.target()).await.unwrap();
    HeldLog(link).waiting(count).await;
}

#[tokio::test]
async fn what_one_node_is_claiming_the_other_leaves() {
    let database = Database::new();
    database.create().await;
    let (first, second) = (node(&database, "a").await, node(&database, "b").await);
    for n in 0..4 {
        accept(&first, task(&n.to_string())).await;
    }
    let mut held = HeldLog::new(&database).await;
    let (mut one, two, ()) = tokio::join!(
        claim(&first, PROVIDER, 2, 1),
        async {
            held_until(&database, 1).await;
            claim(&second, PROVIDER, 2, 1).await
        },
        async {
            held.waiting(2).await;
            held.release().await;
        },
    );
    assert_eq!((one.len(), two.len()), (2, 2));
    let begun = one.pop().unwrap().begun;
    assert!(
        two.iter()
            .all(|other| other.begun.lease.id != begun.lease.id)
    );
    // The row of a dispatch decides, whichever node is asked.
    let stale = second.append(&begun.lease, Progress::default()).await;
    assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
    first
        .finish(Claim::Attempt(begun.lease), ok(2))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_commit_with_a_warning_is_confirmed() {
    let database = Database::new();
    database.create().await;
    let store = node(&database, "a").await;
    let warned = store.write(0, crate::batch::Needs::default(), |rows| {
        rows.execute(
            "DO $$ BEGIN RAISE WARNING 'as if a standby were gone'; END $$",
            Vec::new(),
        );
        rows.add_unbound("echo", &[event("adapter.event", 1)]);
        Ok(())
    });
    warned.await.unwrap();
    assert_eq!(store.log_bounds().issued, 1);
    let mut link = Link::connect(&database.target()).await.unwrap();
    let confirmed = Statement::new("SELECT 1 FROM meta WHERE name = 'confirmed'", Vec::new());
    assert_eq!(link.send(&[&confirmed]).await.unwrap()[0].len(), 1);
    accept(&store, task("after")).await;
    assert_eq!(store.log_bounds().issued, 3);
}
