//! Connections that stay open and pass nothing: no wait for them is without a bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use forge_store::contract::sample::{accept, begin, task};
use forge_store::node::Tenure;
use forge_store::roles::{
    Accept as _, Executions as _, Maintenance as _, Nodes as _, Records as _,
};
use forge_store::{Config, Error};

use super::cluster::{Cluster, Database, Targets as _, cluster};
use super::new_store;
use super::relay::{Cut, MUTE, Relay};
use crate::batch::{Needs, Rows};
use crate::engine::link::{Link, LinkError};
use crate::engine::readers::Readers;
use crate::rows::statement::Statement;
use crate::{Postgres, Target};

const LEASE: Duration = Duration::from_secs(3);
const BOUND: Duration = Duration::from_secs(20);

async fn node(target: Target, name: &str) -> Postgres {
    let config = Config {
        lease: LEASE,
        ..Config::default()
    };
    Postgres::open(&config, target, name).await.unwrap()
}

#[tokio::test]
async fn a_mute_connection_of_the_writer_is_replaced() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let store = node(relay.target(&database.name), "a").await;
    accept(&store, task("before")).await;
    let tenure = store.node().tenure.subscribe();
    for (cut, is_committed) in [(Cut::Mute, false), (Cut::MuteAfter, true)] {
        relay.cut(cut);
        let answer = timeout(BOUND, store.accept(task(&format!("{cut:?}")))).await;
        let answer = answer.unwrap_or_else(|_| panic!("{cut:?} has no answer"));
        assert_eq!(answer.is_ok(), is_committed, "{cut:?}: {answer:?}");
        let end = Instant::now() + BOUND;
        while let Err(error) = timeout(BOUND, store.accept(task("after"))).await.unwrap() {
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(!tenure.has_changed().unwrap(), "the lease was kept");
    assert_eq!(store.counts().queued, 3);
    store.close().await;
}

#[tokio::test]
async fn a_node_whose_writer_makes_no_progress_is_replaced() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let other = node(database.target(), "b").await;
    let store = node(relay.target(&database.name), "a").await;
    let id = accept(&store, task("t")).await;
    let lease = begin(&store, id, 1).await.lease;
    let mut tenure = store.node().tenure.subscribe();
    // The writer is mute, and cannot connect again; the connection that renews the lease works.
    relay.deafen();
    relay.cut(Cut::Mute);
    let (cut_at, mute) = (Instant::now(), store.clone());
    let tasks = TaskTracker::new();
    let waiting = tasks.spawn(async move { mute.accept(task("mute")).await });
    let left = loop {
        let left = other.interrupted(10).await.unwrap();
        if !left.is_empty() {
            break left;
        }
        assert!(cut_at.elapsed() < BOUND, "nothing was taken over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(
        cut_at.elapsed() < LEASE + Duration::from_secs(2),
        "{:?}",
        cut_at.elapsed()
    );
    assert_eq!((left[0].dispatch.id, left[0].attempt), (id, 1));
    assert_eq!(*tenure.borrow_and_update(), Tenure::Lost);
    let answer = timeout(BOUND, waiting).await.unwrap().unwrap();
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    relay.heal();
    let back = tenure.wait_for(|state| *state != Tenure::Lost);
    timeout(BOUND, back).await.unwrap().unwrap();
    assert!(store.epoch() > lease.epoch);
    accept(&store, task("again")).await;
    for store in [store, other] {
        timeout(BOUND, store.close()).await.unwrap();
    }
}

#[tokio::test]
async fn a_read_that_is_given_up_closes_its_connection() {
    let (database, store) = new_store().await;
    let relay = Relay::start().await;
    let tasks = TaskTracker::new();
    let limit = Duration::from_secs(1);
    let target = relay.target(&database.name);
    let readers = Readers::new(target, store.store_id(), 1, limit, tasks.clone());
    let read = async |sql: &str| {
        let statement = Statement::new(sql.to_owned(), Vec::new());
        let rows = readers.read(statement).await?;
        Ok::<i64, Error>(rows[0].get(0))
    };
    assert_eq!(read("SELECT 1::int8").await.unwrap(), 1);
    let mute = format!("SELECT 2::int8 -- {MUTE}");
    let given_up = timeout(BOUND, read(&mute)).await.unwrap();
    assert!(
        matches!(&given_up, Err(Error::Unavailable(reason)) if reason.contains("within 1s")),
        "{given_up:?}"
    );
    assert_eq!(read("SELECT 3::int8").await.unwrap(), 3);
    // By its caller: the answer that still comes has no reader.
    let slow = "SELECT 4::int8 FROM pg_sleep(0.5)";
    assert!(
        timeout(Duration::from_millis(100), read(slow))
            .await
            .is_err()
    );
    assert_eq!(read("SELECT 5::int8").await.unwrap(), 5);
    readers.close();
    tasks.close();
    timeout(BOUND, tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn a_read_without_an_answer_is_asked_again_on_a_new_connection() {
    let (database, store) = new_store().await;
    let relay = Relay::start().await;
    let tasks = TaskTracker::new();
    let target = relay.target(&database.name);
    let readers = Readers::new(target, store.store_id(), 3, BOUND, tasks.clone());
    let read = async || {
        // Together, so that each has a connection of its own.
        let slow = "SELECT 1::int8 FROM pg_sleep(0.05)";
        let reads = (0..3).map(|_| readers.read(Statement::new(slow, Vec::new())));
        let rows = timeout(2 * BOUND, try_join_all(reads)).await.unwrap();
        rows.unwrap().iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(read().await, [1; 3]);
    assert_eq!(relay.made(), 3);
    relay.strand();
    assert_eq!(read().await, [1; 3]);
    // The first new connection is silent, too.
    let before = relay.made();
    relay.deafen();
    relay.strand();
    let heal = async {
        while relay.made() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        relay.heal();
    };
    assert_eq!(tokio::join!(read(), heal).0, [1; 3]);
    // One that is slow, and no more, is read to its end; its second attempt is as slow.
    let slow = Statement::new("SELECT 1::int8 FROM pg_sleep(4)", Vec::new());
    assert_eq!(readers.read(slow).await.unwrap().len(), 1);
    readers.close();
    tasks.close();
    timeout(BOUND, tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn the_loss_of_one_connection_replaces_the_others() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let store = node(relay.target(&database.name), "a").await;
    let id = accept(&store, task("before")).await;
    let reads = async || {
        let reads = (0..3).map(|_| store.dispatch(id));
        let rows = timeout(2 * BOUND, try_join_all(reads)).await.unwrap();
        rows.unwrap().iter().all(Option::is_some)
    };
    assert!(reads().await);
    let before = relay.made();
    relay.strand();
    // The renewal of the lease notices it; nothing is written or read meanwhile.
    let end = Instant::now() + BOUND;
    while relay.made() < before + 2 {
        assert!(Instant::now() < end, "{} of {before}", relay.made());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    accept(&store, task("after")).await;
    assert!(reads().await);
    timeout(BOUND, store.close()).await.unwrap();
}

#[tokio::test]
async fn a_store_whose_database_takes_nothing_is_closed() {
    let (_database, store) = new_store().await;
    let tasks = TaskTracker::new();
    let changes: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            let needs = Needs {
                is_alone: true,
                ..Needs::default()
            };
            // Each is given up after 10 s.
            let slow = |rows: &mut Rows| {
                rows.execute("SELECT pg_sleep(60)", Vec::new());
                Ok(())
            };
            tasks.spawn(async move { store.write(0, needs, slow).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let reason = timeout(2 * BOUND, store.close()).await.unwrap();
    assert!(reason.is_some_and(|reason| reason.contains("under way")));
    for change in changes {
        let answer = timeout(BOUND, change).await.unwrap().unwrap();
        assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn a_connection_with_an_answer_that_was_given_up_is_not_used() {
    let target = cluster().target("postgres", "forge");
    let limit = Duration::from_millis(200);
    let mut link = Link::connect_within(&target, limit).await.unwrap();
    for _ in 0..2 {
        let given_up = link.run("SELECT pg_sleep(1)").await;
        assert!(matches!(given_up, Err(LinkError::Lost(_))), "{given_up:?}");
    }
    let mut link = Link::connect(&target).await.unwrap();
    assert!(
        timeout(limit, link.run("SELECT pg_sleep(1)"))
            .await
            .is_err()
    );
    let next = link.run("SELECT 1").await;
    assert!(matches!(next, Err(LinkError::Lost(_))), "{next:?}");
}

#[tokio::test]
async fn a_first_host_that_is_silent_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap();
    let relay = Relay::start().await;
    let address = relay.address;
    for settings in [
        "",
        "&target_session_attrs=primary",
        "&load_balance_hosts=random",
    ] {
        let url = format!(
            "postgres://forge@{silent},{address}/postgres?sslmode=disable&connect_timeout=1{settings}"
        );
        let target = Target::new(&url, None).unwrap();
        for _ in 0..2 {
            let begun = Instant::now();
            let mut link = Link::connect(&target).await.unwrap();
            link.run("SELECT 1").await.unwrap();
            assert!(begun.elapsed() < BOUND);
        }
    }
    // TLS that is asked for and not answered.
    let url = format!("postgres://forge@{silent}/postgres?connect_timeout=1");
    let target = Target::new(&url, None);
    let Err(reason) = Link::connect(&target.unwrap()).await else {
        panic!("it was connected to");
    };
    assert_eq!(reason, "no answer within 1s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_waited_for_no_longer_than_the_limits() {
    let server = Arc::new(Cluster::start(&[]));
    let store = node(server.target("postgres", "forge"), "a").await;
    accept(&store, task("before")).await;
    let mut tenure = store.node().tenure.subscribe();
    tokio::task::block_in_place(|| server.set_frozen(true));
    let answer = timeout(BOUND, store.accept(task("t"))).await;
    assert!(
        matches!(answer, Ok(Err(Error::Unavailable(_)))),
        "{answer:?}"
    );
    let lost = tenure.wait_for(|state| *state == Tenure::Lost);
    timeout(BOUND, lost).await.unwrap().unwrap();
    tokio::task::block_in_place(|| server.set_frozen(false));
    let back = tenure.wait_for(|state| *state != Tenure::Lost);
    timeout(BOUND, back).await.unwrap().unwrap();
    let end = Instant::now() + BOUND;
    while let Err(error) = store.accept(task("after")).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    timeout(BOUND, store.close()).await.unwrap();
}

#[tokio::test]
async fn a_node_continues_on_the_next_host() {
    let database = Database::new();
    database.create().await;
    let (first, second) = (Relay::start().await, Relay::start().await);
    let (one, other, name) = (first.address, second.address, &database.name);
    let url = format!("postgres://forge@{one},{other}/{name}?sslmode=disable&connect_timeout=1");
    // A third for the message and a second for the first host leave a third for a machine under load.
    let config = Config {
        lease: 2 * LEASE,
        ..Config::default()
    };
    let target = Target::new(&url, None).unwrap();
    let store = Postgres::open(&config, target, "a").await.unwrap();
    accept(&store, task("before")).await;
    let tenure = store.node().tenure.subscribe();
    first.deafen();
    first.cut(Cut::Mute);
    let answer = timeout(BOUND, store.accept(task("mute"))).await.unwrap();
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    let end = Instant::now() + BOUND;
    while let Err(error) = store.accept(task("after")).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!tenure.has_changed().unwrap(), "the lease was kept");
    timeout(BOUND, store.close()).await.unwrap();
}
