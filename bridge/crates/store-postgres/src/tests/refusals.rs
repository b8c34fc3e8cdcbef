//! Databases that are refused, each with one line.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use forge_store::Config;
use forge_store::contract::sample::{accept, task};
use forge_store::roles::Maintenance as _;

use super::cluster::{Cluster, Database, Targets as _, cluster, run};
use super::new_store;
use crate::engine::link::Link;
use crate::{Postgres, Target};

async fn refused(target: Target) -> String {
    match Postgres::open(&Config::default(), target, "node").await {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn says(message: &str, expected: &str) {
    assert!(message.contains(expected), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[tokio::test]
async fn a_server_that_can_lose_commits_is_refused() {
    for setting in ["fsync", "full_page_writes"] {
        let server = Cluster::start(&["-c", &format!("{setting}=off")]);
        let message = refused(server.target("postgres", "forge")).await;
        says(&message, &format!("{setting} is off; set it to on"));
    }
    let names_standbys = ["-c", "synchronous_standby_names=*"];
    let local = ["-c", "synchronous_commit=local"];
    let server = Cluster::start(&[names_standbys, local].concat());
    let message = refused(server.target("postgres", "forge")).await;
    says(&message, "synchronous_commit is local");
    let database = Database::new();
    database.create().await;
    let name = &database.name;
    let set = format!("ALTER DATABASE {name} SET synchronous_commit = off");
    run("postgres", &set).await;
    says(
        &refused(database.target()).await,
        "synchronous_commit is off",
    );
    // Without a standby, the disk of the server is all there is.
    let set = format!("ALTER DATABASE {name} SET synchronous_commit = local");
    run("postgres", &set).await;
    let store = Postgres::open(&Config::default(), database.target(), "node")
        .await
        .unwrap();
    accept(&store, task("t")).await;
    store.close().await;
}

#[tokio::test]
async fn a_standby_is_refused() {
    let server = Cluster::start(&["-c", "hot_standby=on"]);
    let message = refused(server.target("postgres", "forge")).await;
    says(&message, "is a standby, which cannot be written");
}

#[tokio::test]
async fn a_user_who_may_not_connect_is_told_why() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    let open = Permissions::from_mode(0o644);
    std::fs::set_permissions(rules.path(), open).unwrap();
    let lines = "local all forge trust\nlocal all all scram-sha-256\n";
    std::fs::write(rules.path(), lines).unwrap();
    let file = format!("hba_file={}", rules.path().display());
    let server = Cluster::start(&["-c", &file]);
    let mut link = Link::connect(&server.target("postgres", "forge"))
        .await
        .unwrap();
    let users = "CREATE ROLE secured LOGIN PASSWORD 'right';
                 CREATE ROLE limited LOGIN PASSWORD 'right' CONNECTION LIMIT 0";
    link.run(users).await.unwrap();
    let folder = server.folder.display().to_string().replace('/', "%2F");
    for (user, password, expected) in [
        ("secured", Some("wrong"), "password authentication failed"),
        ("secured", None, "password missing"),
        ("limited", Some("right"), "too many connections for role"),
        ("secured", Some("right"), "permission denied for"),
    ] {
        let url = format!("postgres://{user}@{folder}/postgres");
        let message = refused(Target::new(&url, password).unwrap()).await;
        says(&message, expected);
        assert!(
            !message.contains("right") && !message.contains("wrong"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn another_encoding_and_a_newer_schema_are_refused() {
    let create = "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0";
    run("postgres", create).await;
    let message = refused(cluster().target("latin", "forge")).await;
    says(&message, "has the encoding LATIN1; create it with UTF8");
    let (database, store) = new_store().await;
    store.close().await;
    run(
        &database.name,
        "UPDATE schema SET version = 99, oldest_reader = 99",
    )
    .await;
    says(
        &refused(database.target()).await,
        "written by a newer forge-bridge (version 99",
    );
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    says(
        &refused(cluster().target("nowhere", "forge")).await,
        "database \"nowhere\" does not exist",
    );
    run("postgres", "CREATE ROLE weak LOGIN").await;
    let (database, store) = new_store().await;
    store.close().await;
    let target = cluster().target(&database.name, "weak");
    says(&refused(target).await, "permission denied for");
    let empty = Database::new();
    empty.create().await;
    let target = cluster().target(&empty.name, "weak");
    says(&refused(target).await, "permission denied for");
    run(&empty.name, "CREATE TABLE event (x int)").await;
    says(
        &refused(empty.target()).await,
        "relation \"event\" already exists",
    );
    let silent = Target::new("postgres://forge@127.0.0.1:1/store?sslmode=disable", None);
    says(
        &refused(silent.unwrap()).await,
        "cannot connect to the database",
    );
}

#[test]
fn a_url_is_read_and_never_repeated() {
    for (url, expected) in [
        ("postgres://forge:secret@host", "names no database"),
        (
            "mysql://forge:secret@host/store",
            "is not one of PostgreSQL",
        ),
        (
            "postgres://forge:secret@host/store?sslmode=maybe",
            "sslmode=maybe is none of",
        ),
        (
            "postgres://forge:secret@host/store?sslrootcert=/none",
            "cannot be used: /none: ",
        ),
    ] {
        let Err(error) = Target::new(url, None) else {
            panic!("{url} was read");
        };
        let message = error.to_string();
        says(&message, expected);
        assert!(!message.contains("secret"), "{message}");
    }
    let several =
        "postgres://forge@one:5433,two/store?target_session_attrs=read-write&sslmode=verify-full";
    assert_eq!(
        Target::new(several, Some("secret")).unwrap().name(),
        "store of one,two"
    );
}
