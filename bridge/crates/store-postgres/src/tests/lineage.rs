//! Fail-over of the server, and copies of a database.

use std::process::Command;
use std::time::{Duration, Instant};

use forge_store::contract::sample::{PROVIDER, accept, event, task};
use forge_store::roles::{Accept as _, EventLog as _, Maintenance as _, Records as _};
use forge_store::{Config, Error};
use forge_test_postgres::{Cluster, programs};

use super::cluster::{Database, Targets as _, cluster, run};
use super::{new_store, open};
use crate::engine::link::Link;
use crate::engine::server_state::Place;
use crate::{Postgres, Target, lineage};

const JUMP: u64 = 1 << 32;

/// Restores a dump of a database of the shared server.
fn dump(database: &str, to: &Cluster, name: &str) {
    let script = r#"set -e; "$1/pg_dump" -h "$2" -U forge "$3" | "$1/psql" -qX -v ON_ERROR_STOP=1 -h "$4" -U forge "$5" >"$4/restored""#;
    let done = Command::new("bash")
        .args(["-o", "pipefail", "-c", script, "bash"])
        .args([programs(), cluster().folder.clone()])
        .arg(database)
        .arg(&to.folder)
        .arg(name)
        .status();
    assert!(done.unwrap().success());
}

async fn refused(target: Target) -> String {
    let opened = Postgres::open(&Config::default(), target, "node").await;
    opened.err().unwrap().to_string()
}

fn names(store: &Postgres) -> (String, String) {
    (store.store_id().to_owned(), store.log().as_str().to_owned())
}

#[tokio::test]
async fn a_copy_of_a_database_is_refused_until_it_is_adopted() {
    let (database, store) = new_store().await;
    let id = accept(&store, task("t")).await;
    let original = names(&store);
    store.close().await;
    let copy = Database::new();
    copy.create().await;
    dump(&database.name, cluster(), &copy.name);
    let elsewhere = Cluster::start(&[]);
    elsewhere.run("postgres", &format!("CREATE DATABASE {}", database.name));
    dump(&database.name, &elsewhere, &database.name);
    for (target, expected) in [
        (
            copy.target(),
            format!("copied here from the database {};", database.name),
        ),
        (
            elsewhere.target(&database.name, "forge"),
            format!(
                "copied here from the database {} of another server;",
                database.name
            ),
        ),
    ] {
        let message = refused(target.clone()).await;
        assert!(message.contains(&expected), "{message}");
        let peeked = Postgres::peek(&target).await.err().unwrap().to_string();
        assert_eq!(peeked, message);
        assert!(Postgres::adopt(&target).await.unwrap());
        assert!(!Postgres::adopt(&target).await.unwrap());
        let store = open(target).await;
        let (store_id, log) = names(&store);
        assert!(store_id != original.0 && log != original.1);
        assert!(store.dispatch(id).await.unwrap().is_some());
        store.close().await;
    }
    assert!(!Postgres::adopt(&database.target()).await.unwrap());
    let store = open(database.target()).await;
    assert_eq!(names(&store), original);
    store.close().await;
    let empty = Database::new();
    empty.create().await;
    let missing = Postgres::adopt(&empty.target()).await.err().unwrap();
    assert!(
        missing.to_string().starts_with("there is no store in"),
        "{missing}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_jump_once_after_a_fail_over() {
    let server = Cluster::start(&[]);
    let target = server.target("postgres", "forge");
    let node = |name: &'static str| {
        let target = target.clone();
        async move {
            Postgres::open(&Config::default(), target, name)
                .await
                .unwrap()
        }
    };
    let (one, two) = (node("one").await, node("two").await);
    accept(&one, task("before")).await;
    let before = one.log_bounds().issued;
    tokio::task::block_in_place(|| server.fail_over());
    for store in [&one, &two] {
        // One of them is told of the fail-over by its first write.
        let added = loop {
            match store
                .append_unbound(PROVIDER, vec![event("adapter.ready", 1)])
                .await
            {
                Err(Error::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                added => break added,
            }
        };
        added.unwrap();
    }
    assert_eq!(two.log_bounds().issued, before + JUMP + 2);
    one.close().await;
    two.close().await;
    tokio::task::block_in_place(|| server.fail_over());
    // At a start, before anything is written.
    let one = node("one").await;
    accept(&one, task("after")).await;
    assert_eq!(one.log_bounds().issued, before + 2 * JUMP + 4);
    one.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_lags_is_noticed_and_positions_are_given_once() {
    let server = Cluster::start(&[]);
    let target = server.target("postgres", "forge");
    let store = open(target.clone()).await;
    accept(&store, task("received")).await;
    let received = store.log_bounds().issued;
    tokio::task::block_in_place(|| server.keep());
    insist(&store, "lost").await;
    assert!(store.log_bounds().issued > received);
    tokio::task::block_in_place(|| server.fail_over_to_kept());
    let link = lineage::connect_to(&target, store.store_id(), Duration::from_secs(20));
    assert_eq!(link.await.unwrap().log_end, received);
    insist(&store, "after").await;
    assert!(store.log_bounds().issued > received + JUMP);
    assert!(store.by_task("lost", None, 1).await.unwrap().is_empty());
    store.close().await;
}

/// Accepts a task of this name, and repeats it while the store is unavailable.
async fn insist(store: &Postgres, name: &str) {
    let end = Instant::now() + Duration::from_secs(120);
    while let Err(error) = store.accept(task(name)).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Both hosts, in any order, so that each is tried again and again.
fn either(one: &Cluster, other: &Cluster) -> Target {
    let path = |server: &Cluster| server.folder.display().to_string().replace('/', "%2F");
    let (one, other) = (path(one), path(other));
    let url = format!(
        "postgres://forge@{one},{other}/postgres?connect_timeout=1&load_balance_hosts=random"
    );
    Target::new(&url, None).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_primary_that_comes_back_is_not_used() {
    let former = Cluster::start(&[]);
    let promoted = Cluster::start(&[]);
    tokio::task::block_in_place(|| promoted.stop());
    let target = either(&former, &promoted);
    let config = Config {
        lease: Duration::from_secs(3),
        ..Config::default()
    };
    let store = Postgres::open(&config, target, "node").await.unwrap();
    let before = accept(&store, task("before")).await;
    let rows = "SELECT count(*), (SELECT last_value FROM position) FROM dispatch";
    let found = former.run("postgres", rows);
    assert_eq!(found.split('|').next(), Some("1"));
    tokio::task::block_in_place(|| promoted.fail_over_from(&former));
    insist(&store, "after").await;
    tokio::task::block_in_place(|| former.restart());
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = 'forge-bridge'";
    for number in 0..8 {
        promoted.run("postgres", end);
        insist(&store, &format!("after {number}")).await;
        let found = store.dispatch(before).await;
        assert!(matches!(found, Ok(Some(_)) | Err(Error::Unavailable(_))));
    }
    assert_eq!(former.run("postgres", rows), found);
    tokio::task::block_in_place(|| promoted.stop());
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match store.status() {
            Err(reason) if reason.contains("it is a former primary: its timeline is 1") => break,
            status => assert!(Instant::now() < end, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::task::block_in_place(|| promoted.restart());
    insist(&store, "at last").await;
    store.close().await;
    // A bridge that starts knows no timeline, and asks both.
    let store = open(either(&former, &promoted)).await;
    assert_eq!(store.by_task("at last", None, 1).await.unwrap().len(), 1);
    store.close().await;
    assert_eq!(former.run("postgres", rows), found);
}

#[tokio::test]
async fn all_connections_leave_a_server_once_one_has_found_its_successor() {
    let database = Database::new();
    database.create().await;
    let target = database.target();
    let store = open(target.clone()).await;
    accept(&store, task("t")).await;
    let place = Link::connect(&target).await.unwrap().place;
    let timeline = place.timeline + 1;
    let found = target.server.set_found(Place { timeline, ..place });
    found.unwrap();
    let name = &database.name;
    let left = format!(
        "SELECT query FROM pg_stat_activity WHERE datname = '{name}' AND query NOT LIKE '%n_dead_tup%'"
    );
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        // One that reads statistics is closed when the next one is needed.
        let left = cluster().run("postgres", &left);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "{left}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = store.accept(task("u")).await.unwrap_err().to_string();
    assert!(refused.contains("it is a former primary"), "{refused}");
    store.close().await;
}

#[tokio::test]
async fn a_store_that_is_replaced_while_it_is_open_is_not_written() {
    let (database, store) = new_store().await;
    accept(&store, task("t")).await;
    run(&database.name, "UPDATE schema SET store_id = 'another'").await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    run(&database.name, end).await;
    let reason = loop {
        match store.status() {
            Err(reason) if reason.contains("not in its place") => break reason,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    assert!(reason.contains("replaced by another store"), "{reason}");
    store.close().await;
}
