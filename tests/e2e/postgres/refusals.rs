//! Stores that a bridge does not start with: each time one line that says why, without a password.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use forge_test_postgres::{Cluster, cluster};

use super::home;
use crate::harness::process::Home;
use crate::harness::store::database;

/// The line with which a bridge ends that cannot start.
#[track_caller]
fn refused(variables: &[(&str, &str)], expected: &str) {
    let home = Home::new(variables);
    let Err(ended) = home.try_start() else {
        panic!("the bridge started with {variables:?}");
    };
    assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
    let lines: Vec<_> = ended.log.lines().collect();
    let [line] = lines.as_slice() else {
        panic!("{}", ended.log);
    };
    assert!(line.contains("store.url (BRIDGE_STORE)"), "{line}");
    assert!(line.contains(expected), "{line}");
    assert!(!line.contains("hush"), "{line}");
}

#[test]
fn a_url_that_is_none_is_refused_with_what_to_write() {
    for (url, expected) in [
        (
            "mysql://a:hush@b/c",
            "write sqlite: for a file in data_dir, or postgres://user@host:port/database",
        ),
        ("/var/lib/hush.db", "write sqlite: for a file in data_dir"),
        ("postgres://a:hush@b", "names no database"),
        (
            "postgres://a:hush@127.0.0.1:1/c?sslmode=disable",
            "Connection refused",
        ),
        (
            "postgres://a:hush@nowhere.invalid/c",
            "cannot connect to the database c of nowhere.invalid",
        ),
        ("postgres://a:hush@b/c?sslmode=never", "sslmode=never"),
    ] {
        refused(&[("BRIDGE_STORE", url)], expected);
    }
}

#[test]
fn a_database_that_cannot_be_used_is_refused() {
    let nowhere = cluster().url("nowhere", "forge");
    refused(
        &[("BRIDGE_STORE", &nowhere)],
        "database \"nowhere\" does not exist",
    );

    let (name, _) = database();
    cluster().run("postgres", "CREATE ROLE stranger LOGIN");
    let stranger = cluster().url(&name, "stranger");
    refused(
        &[("BRIDGE_STORE", &stranger)],
        "permission denied for schema public",
    );

    let (home, name) = home(&[]);
    home.start().kill();
    let stranger = cluster().url(&name, "stranger");
    refused(
        &[("BRIDGE_STORE", &stranger)],
        "permission denied for table schema",
    );
    cluster().run(&name, "UPDATE schema SET version = 99, oldest_reader = 99");
    let own = cluster().url(&name, "forge");
    refused(
        &[("BRIDGE_STORE", &own)],
        "was written by a newer forge-bridge (version 99",
    );
}

#[test]
fn a_server_that_cannot_be_written_or_loses_commits_is_refused() {
    let standby = Cluster::start(&["-c", "hot_standby=on"]);
    let url = standby.url("postgres", "forge");
    refused(
        &[("BRIDGE_STORE", &url)],
        "is a standby, which cannot be written",
    );
    let careless = Cluster::start(&["-c", "fsync=off"]);
    let url = careless.url("postgres", "forge");
    refused(&[("BRIDGE_STORE", &url)], "fsync is off; set it to on");
}

#[test]
fn the_password_comes_from_the_variable_or_a_file_and_a_wrong_one_is_refused() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(rules.path(), Permissions::from_mode(0o644)).unwrap();
    std::fs::write(
        rules.path(),
        "local all forge trust\nlocal all all scram-sha-256\n",
    )
    .unwrap();
    let file = format!("hba_file={}", rules.path().display());
    let server = Cluster::start(&["-c", &file]);
    server.run("postgres", "CREATE ROLE bridge LOGIN PASSWORD 'hush'");
    server.run("postgres", "CREATE DATABASE record OWNER bridge");
    let url = server.url("record", "bridge");
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "hush\n").unwrap();
    let path = password.path().display().to_string();

    let store = ("BRIDGE_STORE", url.as_str());
    refused(&[store], "password missing");
    let wrong = ("PGPASSWORD", "hushed");
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("secret.key").display().to_string();
    let key_file = ("BRIDGE_SECRET_KEY_FILE", key.as_str());
    refused(
        &[store, wrong],
        "password authentication failed for user \"bridge\"",
    );
    for password in [
        ("PGPASSWORD", "hush"),
        ("BRIDGE_STORE_PASSWORD_FILE", path.as_str()),
    ] {
        let home = Home::new(&[store, password, key_file]);
        home.start().kill();
        assert!(!home.log().contains("hush"), "{}", home.log());
    }
    let open = Permissions::from_mode(0o644);
    std::fs::set_permissions(password.path(), open).unwrap();
    let Err(log) = Home::new(&[store, ("BRIDGE_STORE_PASSWORD_FILE", &path)]).launch() else {
        panic!("a password that all users can read was used");
    };
    assert!(
        log.contains("store.password_file") && log.contains("chmod 600"),
        "{log}"
    );
}
