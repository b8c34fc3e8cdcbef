//! `forge-bridge drill` with few kills, on a disk and on a database server: nothing accepted is lost.

use std::process::Command;

use forge_test_postgres::Cluster;
use serde_json::Value;

use super::harness::plugins;

/// Runs a drill that passes, with these options, and returns its report.
fn drill(options: &[&str]) -> Value {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .env("HOME", home.path())
        // Of the commands of the database.
        .envs(std::env::var("PATH").map(|path| ("PATH", path)))
        .env("BRIDGE_PLUGIN_PATH", plugins())
        .args(["drill", "--json"])
        .args(options)
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{complaints}");
    assert!(complaints.is_empty(), "{complaints}");
    let left = std::fs::read_dir(home.path()).unwrap().count();
    assert_eq!(left, 0, "the folder is removed");
    serde_json::from_str(&told).unwrap()
}

#[test]
fn the_drill_kills_and_loses_nothing() {
    let report = drill(&["--kills", "4"]);
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!((count("kills"), count("lost")), (4, 0), "{report}");
    assert!(count("accepted") > 20, "{report}");
    assert_eq!(count("accepted"), count("delivered"), "{report}");
    assert!(count("events") >= 4 * count("accepted"), "{report}");
    assert!(report["readyAfterMs"]["longest"].is_u64(), "{report}");
}

#[test]
fn nodes_of_one_database_lose_nothing_either() {
    let server = Cluster::start(&[]);
    server.run("postgres", "CREATE DATABASE kept");
    let (url, command) = (server.url("kept", "forge"), server.restart_command());
    let report = drill(&[
        "--store",
        &url,
        "--nodes",
        "2",
        "--kills",
        "6",
        "--store-kills",
        "1",
        "--store-command",
        &command,
    ]);
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!((count("kills"), count("lost")), (6, 0), "{report}");
    assert_eq!((count("stops"), count("storeKills")), (1, 1), "{report}");
    assert!(count("accepted") > 20, "{report}");
    assert_eq!(count("accepted"), count("delivered"), "{report}");
    let databases =
        "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE NOT datistemplate";
    assert_eq!(server.run("postgres", databases), "kept postgres");
}

#[test]
fn a_drill_on_a_server_that_is_not_there_says_so() {
    for (options, expected) in [
        (
            &["--store", "postgres://a@127.0.0.1:1/none?sslmode=disable"][..],
            "cannot connect to the database none of 127.0.0.1",
        ),
        (&["--store", "postgres://a@b"], "names no database"),
        (&["--nodes", "3"], "--store"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
            .args(["drill", "--kills", "1"])
            .args(options)
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && complaints.contains(expected),
            "{complaints}"
        );
    }
}
