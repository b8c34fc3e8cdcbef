//! Reading from outside: it finds what is there, changes nothing, and ends no epoch.

use forge_store::contract::sample::{accept, task};
use forge_store::durability::Durability;
use forge_store::record::NewDispatch;
use forge_store::roles::{Executions as _, Maintenance as _, Secrets as _};

use super::cluster::{Cluster, Database, Targets as _, cluster, run};
use super::new_store;
use crate::Postgres;
use crate::steps::VERSION;

#[tokio::test]
async fn sealed_values_are_read_beside_the_node_that_writes() {
    let (database, store) = new_store().await;
    store.seal_once("name", b"12345678".to_vec()).await.unwrap();
    let sealed = NewDispatch {
        secrets: Some(b"12345abc".to_vec()),
        ..task("sealed")
    };
    accept(&store, sealed).await;
    let mut peek = Postgres::peek(&database.target()).await.unwrap();
    let found = peek.sealed("name").await.unwrap();
    assert_eq!(found.as_deref(), Some(&b"12345678"[..]));
    assert_eq!(peek.sealed("other").await.unwrap(), None);
    let heads = peek.sealed_heads().await.unwrap();
    assert_eq!(heads, [(b"12345".to_vec(), 2)].into());
    // The node still writes in its epoch.
    accept(&store, task("after")).await;
    let nodes = cluster().run(&database.name, "SELECT epoch FROM node");
    assert_eq!(nodes, store.epoch().to_string());
    store.close().await;
}

#[tokio::test]
async fn a_report_names_versions_and_missing_rights() {
    run("postgres", "CREATE ROLE reader LOGIN").await;
    let (database, store) = new_store().await;
    store.close().await;
    let target = cluster().target(&database.name, "reader");
    let Err(error) = Postgres::peek(&target).await else {
        panic!("the tables were read");
    };
    let error = error.to_string();
    assert!(
        error.contains("permission denied for table schema"),
        "{error}"
    );
    let grant = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
                 GRANT ALL ON node, dispatch, epoch TO reader";
    run(&database.name, grant).await;
    let report = Postgres::peek(&target)
        .await
        .unwrap()
        .report()
        .await
        .unwrap();
    let missing = report.missing_rights;
    let is_missing = |name: &str| missing.iter().any(|missing| missing == name);
    for (name, expected) in [
        ("schema", false),
        ("node", false),
        ("dispatch", false),
        ("epoch", false),
    ]
    .into_iter()
    .chain([("body", true), ("signal_session", true), ("position", true)])
    {
        assert_eq!(is_missing(name), expected, "{name} in {missing:?}");
    }
    let mut own = Postgres::peek(&database.target()).await.unwrap();
    let own = own.report().await.unwrap();
    assert_eq!(own.missing_rights, Vec::<String>::new());
    assert_eq!(
        (own.schema, own.durability),
        (Some(VERSION), Durability::Server)
    );
    assert!(own.database.starts_with(&database.name), "{}", own.database);
    let server = cluster().run("postgres", "SHOW server_version");
    assert!(
        server.starts_with(&own.server),
        "{} of {server}",
        own.server
    );
}

#[tokio::test]
async fn an_empty_database_stays_empty() {
    let database = Database::new();
    database.create().await;
    let mut peek = Postgres::peek(&database.target()).await.unwrap();
    assert_eq!(peek.sealed("name").await.unwrap(), None);
    assert!(peek.sealed_heads().await.unwrap().is_empty());
    let report = peek.report().await.unwrap();
    assert_eq!(report.schema, None);
    assert_eq!(report.missing_rights, Vec::<String>::new());
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    assert_eq!(cluster().run(&database.name, tables), "0");
    run("postgres", "CREATE ROLE guest LOGIN").await;
    let target = cluster().target(&database.name, "guest");
    let report = Postgres::peek(&target)
        .await
        .unwrap()
        .report()
        .await
        .unwrap();
    assert_eq!(report.missing_rights, ["schema public"]);
}

#[tokio::test]
async fn a_server_that_waits_for_a_standby_is_replicated() {
    let server = Cluster::start(&["-c", "synchronous_standby_names=*"]);
    let target = server.target("postgres", "forge");
    let report = Postgres::peek(&target)
        .await
        .unwrap()
        .report()
        .await
        .unwrap();
    assert_eq!(report.durability, Durability::Replicated);
}
