//! Faults of a server and of clocks: what they hit is refused or waits, all else continues, and nothing is lost.

use std::process::Command;
use std::time::Duration;

use forge_test_postgres::{Cluster, cluster};
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::fleet::Fleet;
use crate::harness::api::{quiet, with};
use crate::harness::process::{Home, Process};
use crate::harness::store::database;
use crate::harness::until;

/// Bytes that a file of the server can have while its disk is full.
const FULL: u64 = 24 << 20;

/// Locks the rows of what runs until the table `released` has a row.
const LOCK: &str =
    "BEGIN; SELECT 1 FROM dispatch WHERE phase = 4 FOR UPDATE; SELECT pg_advisory_xact_lock(42);
   DO $$BEGIN
     WHILE NOT EXISTS (SELECT FROM released) LOOP PERFORM pg_sleep(0.05); END LOOP;
   END$$; COMMIT";

/// Lets the processes of a server write files of this size at most: beyond it they fail as on a disk without space.
fn limit_files(server: &Cluster, bytes: &str) {
    const LIMIT: &str = r#"
        as=; [ "$(id -u)" != 0 ] || as="setpriv --reuid postgres --regid postgres --clear-groups"
        read -r postmaster <"$1/data/postmaster.pid"
        for pid in $(pgrep -P "$postmaster"); do $as prlimit --pid "$pid" --fsize="$2:unlimited" || true; done
        exec $as prlimit --pid "$postmaster" --fsize="$2:unlimited"
    "#;
    let limited = Command::new("sh")
        .args(["-c", LIMIT, "sh"])
        .arg(&server.folder)
        .arg(bytes)
        .status();
    assert!(limited.unwrap().success());
}

async fn post(bridge: &Process, task: &str, message: &str) -> (StatusCode, Value) {
    let body = with(quiet(task, "ok"), &json!({ "message": message }));
    bridge.api.post("/api/v2/dispatch", &body).await
}

/// A text that cannot be compressed much.
fn noise(bytes: usize) -> String {
    let mut state = 1_u64;
    let letter = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'!' + (state >> 40) as u8 % 90)
    };
    let letters = (0..bytes).map(letter);
    letters.filter(|letter| !"\"\\".contains(*letter)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_server_refuses_what_does_not_fit_and_loses_nothing() {
    let server = Cluster::start(&[]);
    let home = Home::new(&[("BRIDGE_STORE", &server.url("postgres", "forge"))]);
    // Its connections are new, so that they have the limit.
    limit_files(&server, &FULL.to_string());
    let bridge = home.start();
    let message = noise(900_000);
    let mut accepted = Vec::new();
    let refused = loop {
        let (status, answer) = post(&bridge, &format!("t-{}", accepted.len()), &message).await;
        match answer["dispatchId"].as_str() {
            Some(id) => accepted.push(id.to_owned()),
            None => break (status, answer),
        }
        assert!(accepted.len() < 200, "the disk is not full");
    };
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert_eq!(refused.1["code"], "STORE_UNAVAILABLE", "{refused:?}");
    limit_files(&server, "unlimited");
    let id = until("space again", async || {
        let (_, answer) = post(&bridge, "after", &message).await;
        answer["dispatchId"].as_str().map(str::to_owned)
    })
    .await;
    for id in accepted.iter().chain([&id]) {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
    }
    let stored = server.run("postgres", "SELECT count(*) FROM dispatch");
    assert_eq!(
        stored,
        (accepted.len() + 1).to_string(),
        "nothing refused is done"
    );
}

#[tokio::test]
async fn a_row_that_is_locked_delays_its_own_dispatch() {
    let (name, url) = database();
    let home = Home::new(&[("BRIDGE_STORE", &url)]);
    let bridge = home.start();
    let locked = bridge.api.dispatch(quiet("locked", "slow:3000")).await;
    bridge.api.running(&locked).await;
    cluster().run(&name, "CREATE TABLE released (at timestamptz)");
    let database = name.clone();
    let locking = std::thread::spawn(move || cluster().run(&database, LOCK));
    until("the lock", async || {
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42";
        (cluster().run(&name, held) == "1").then_some(())
    })
    .await;
    for number in 0..5 {
        let id = bridge
            .api
            .dispatch(quiet(&format!("t-{number}"), "ok"))
            .await;
        bridge.api.finished(&id).await;
    }
    assert_eq!(bridge.api.record(&locked).await["status"], "running");
    cluster().run(&name, "INSERT INTO released VALUES (now())");
    locking.join().unwrap();
    let record = bridge.api.finished(&locked).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
}

#[tokio::test]
async fn settings_of_the_role_hold_for_no_change() {
    let (name, _) = database();
    let role = format!("hasty_{name}");
    let settings = format!(
        "CREATE ROLE {role} LOGIN; ALTER DATABASE {name} OWNER TO {role};
         ALTER ROLE {role} SET statement_timeout = '300ms'; ALTER ROLE {role} SET lock_timeout = '1ms';
         ALTER ROLE {role} SET idle_in_transaction_session_timeout = '50ms';
         ALTER ROLE {role} SET default_transaction_isolation = 'serializable'"
    );
    cluster().run("postgres", &settings);
    let home = Home::new(&[("BRIDGE_STORE", &cluster().url(&name, &role))]);
    let bridge = home.start();
    let ids = (0..20).map(|number| {
        bridge
            .api
            .dispatch(quiet(&format!("t-{number}"), "slow:20"))
    });
    for id in futures_util::future::join_all(ids).await {
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
    }
}

#[tokio::test]
async fn too_few_connections_are_told_at_the_start() {
    let (name, _) = database();
    let role = format!("narrow_{name}");
    let settings = format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; ALTER DATABASE {name} OWNER TO {role}"
    );
    cluster().run("postgres", &settings);
    let home = Home::new(&[("BRIDGE_STORE", &cluster().url(&name, &role))]);
    let Err(ended) = home.try_start() else {
        panic!("the bridge started with one connection");
    };
    let told = "too many connections for role";
    assert!(ended.log.contains(told), "{}", ended.log);
    // A connection counts until the server's own process for it has ended, so a start needs some more than it keeps.
    cluster().run("postgres", &format!("ALTER ROLE {role} CONNECTION LIMIT 8"));
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    bridge.api.finished(&id).await;
}

#[tokio::test]
async fn a_clock_that_is_an_hour_ahead_is_told_and_changes_nothing() {
    let mut fleet = Fleet::new(&["echo", "echo"]);
    // It starts the bridge as its child, which has to end with it.
    let wrapper = ["faketime", "-f", "+1h", "setpriv", "--pdeathsig", "KILL"];
    fleet.homes[1].wrapper = wrapper.map(str::to_owned).to_vec();
    fleet.homes[1].set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    fleet.homes[1].set("PATH", &std::env::var("PATH").unwrap());
    let bridges = fleet.start().await;
    let [right, ahead] = bridges.as_slice() else {
        panic!("two were started");
    };
    let (_, health) = ahead.api.get("/api/health").await;
    assert_eq!(health["status"], "degraded", "{health}");
    let offset = health["store"]["clockOffsetMs"].as_i64().unwrap();
    assert!((3_590_000..=3_610_000).contains(&offset.abs()), "{health}");
    let (_, health) = right.api.get("/api/health").await;
    assert_eq!(health["status"], "healthy", "{health}");
    // A time is that of the database: neither waits for an hour, nor has it passed.
    let begun = Timestamp::now();
    let soon = begun + jiff::SignedDuration::from_secs(2);
    for (number, bridge) in bridges.iter().enumerate() {
        let body = with(
            quiet(&format!("t-{number}"), "ok"),
            &json!({ "notBefore": soon }),
        );
        let id = bridge.api.dispatch(body).await;
        let record = bridge.api.finished(&id).await;
        let started: Timestamp = record["startedAt"].as_str().unwrap().parse().unwrap();
        let late = started.duration_since(soon);
        assert!(!late.is_negative() && late.as_secs() < 1800, "{record}");
    }
    // Both keep their leases, and neither takes anything of the other.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(
        fleet.query("SELECT count(*) FROM node WHERE NOT has_ended AND until > clock_timestamp()"),
        "2"
    );
    assert_eq!(fleet.query("SELECT max(epoch) FROM node"), "2");
}
