//! Errors of the store: changes are refused with the reason until what was refused can be carried out, without a restart.
//! Errors of a change concern it alone.

use std::time::{Duration, Instant};

use forge_store::Error;
use forge_store::contract::sample::{accept, task};
use forge_store::progress::StoreHealth;
use forge_store::roles::{Accept as _, Maintenance as _, Nodes as _};

use super::cluster::{Database, Targets as _, cluster, run};
use super::{new_store, open};
use crate::Postgres;

const BOUND: Duration = Duration::from_secs(20);

async fn refused(store: &Postgres, name: &str) -> String {
    match store.accept(task(name)).await {
        Err(Error::Unavailable(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

async fn until_well(store: &Postgres) {
    let end = Instant::now() + BOUND;
    while store.health() != StoreHealth::Well {
        assert!(Instant::now() < end, "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_class_of_an_error_says_whose_it_is() {
    let (database, store) = new_store().await;
    let tenure = store.node().tenure.subscribe();
    for (number, (code, is_of_store)) in [
        ("53100", true),
        ("53200", true),
        ("53300", true),
        ("57P03", true),
        ("58030", true),
        ("25006", true),
        ("42501", true),
        ("23514", false),
        ("22P02", false),
        ("P0001", false),
    ]
    .into_iter()
    .enumerate()
    {
        let fail = format!(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
               $$BEGIN RAISE EXCEPTION 'raised by a test' USING ERRCODE = '{code}'; END$$;
             CREATE TRIGGER fail BEFORE INSERT ON dispatch FOR EACH ROW EXECUTE FUNCTION fail()"
        );
        run(&database.name, &fail).await;
        let reason = refused(&store, "refused").await;
        assert!(reason.contains("raised by a test"), "{code}: {reason}");
        let is_offline = matches!(store.health(), StoreHealth::Offline(_));
        assert_eq!(is_offline, is_of_store, "{code}: {:?}", store.health());
        if is_of_store {
            // Nothing but a write that works ends it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let StoreHealth::Offline(reason) = store.health() else {
                panic!("{code}: {:?}", store.health());
            };
            assert!(reason.contains("raised by a test"), "{code}: {reason}");
            refused(&store, "refused at once").await;
        }
        run(&database.name, "DROP TRIGGER fail ON dispatch").await;
        until_well(&store).await;
        accept(&store, task(&format!("after {number}"))).await;
    }
    assert!(!tenure.has_changed().unwrap(), "the lease was kept");
    store.close().await;
}

#[tokio::test]
async fn a_role_whose_rights_are_taken_is_the_failure_of_the_store() {
    let database = Database::new();
    database.create().await;
    open(database.target()).await.close().await;
    let name = &database.name;
    let role = format!("bridge_of_{name}");
    let grant = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role};
         GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}"
    );
    run(name, &grant).await;
    let store = open(cluster().target(name, &role)).await;
    accept(&store, task("before")).await;
    run(name, &format!("REVOKE INSERT ON body FROM {role}")).await;
    let reason = refused(&store, "t").await;
    assert!(
        reason.contains("permission denied for table body"),
        "{reason}"
    );
    assert_eq!(store.health(), StoreHealth::Offline(reason));
    run(name, &format!("GRANT INSERT ON body TO {role}")).await;
    until_well(&store).await;
    accept(&store, task("after")).await;
    store.close().await;
}

#[tokio::test]
async fn a_database_that_becomes_read_only_is_the_failure_of_the_store() {
    let (database, store) = new_store().await;
    let name = &database.name;
    let set = async |value: &str| {
        let alter = format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}");
        run("postgres", &alter).await;
        // After its commit, so that the connections that follow have the setting.
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        run("postgres", &end).await;
    };
    accept(&store, task("before")).await;
    set("on").await;
    let end = Instant::now() + BOUND;
    let reason = loop {
        // The connection of before ends a moment later.
        let answer = store.accept(task("t")).await;
        match answer {
            Err(Error::Unavailable(reason)) if reason.contains("read-only transaction") => {
                break reason;
            }
            answer => assert!(Instant::now() < end, "{answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(store.health().reason(), Some(&*reason));
    set("off").await;
    until_well(&store).await;
    accept(&store, task("after")).await;
    store.close().await;
}
