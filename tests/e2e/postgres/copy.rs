//! `store copy` and `store adopt`: a bridge on SQLite continues on PostgreSQL, also if the copy was killed on the way; a
//! copy that is refused changes nothing; and a copy of its database is refused until it is adopted.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use forge_base::failpoint::{POINTS, VARIABLE};
use forge_test_postgres::{Cluster, cluster, programs};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::api::{owed, quiet, with};
use crate::harness::process::Home;
use crate::harness::store::database;
use crate::harness::{Answer, CallbackSink};

fn run(home: &Home, arguments: &[&str], point: Option<&str>) -> (Output, String) {
    let mut command = home.command();
    command.args(arguments);
    command.envs(point.map(|point| (VARIABLE, point)));
    let output = command.output().unwrap();
    let text = [&*output.stdout, &*output.stderr].concat();
    (output, String::from_utf8(text).unwrap())
}

fn on(store: &str) -> Home {
    Home::new(&[("BRIDGE_STORE", store)])
}

/// The line with which a bridge ends that cannot start.
fn refused(home: &Home) -> String {
    let Err(ended) = home.try_start() else {
        panic!("the bridge started");
    };
    ended.log
}

#[tokio::test]
async fn a_bridge_on_sqlite_continues_in_a_database() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503).header("retry-after", "1"));
    let mut home = Home::new(&[]);
    home.set("BRIDGE_STORE", "sqlite:");
    let bridge = home.start();
    let secret = json!({ "callback": { "bearer": "b" } });
    let pending = with(owed("owed", "ok", &sink.url("/cb")), &secret);
    let pending = bridge.api.dispatch(pending).await;
    bridge.api.finished(&pending).await;
    let done = bridge.api.dispatch(quiet("done", "ok")).await;
    let before = bridge.api.finished(&done).await;
    bridge
        .api
        .post("/api/v2/adapters/echo/pause", &json!({}))
        .await;
    let folder = json!({ "workspace": { "dir": home.dir.path().join("work") } });
    let bound = bridge
        .api
        .dispatch(with(quiet("bound", "ok"), &folder))
        .await;
    bridge.kill();

    let (name, url) = database();
    let copy = ["store", "copy", "--to", &url, "--json"];
    let points = POINTS.iter().filter(|point| point.starts_with("transfer."));
    for point in points.copied().chain(["transfer.chunk:3"]) {
        let (output, text) = run(&home, &copy, Some(point));
        if output.status.success() {
            // The chunk before was the last one.
            assert_eq!(point, "transfer.chunk:3");
            continue;
        }
        assert_eq!(
            output.status.signal(),
            Some(Signal::KILL.as_raw()),
            "{point}: {text}"
        );
        home.set("BRIDGE_STORE", &url);
        let unfit = refused(&home);
        assert!(unfit.contains("is not complete"), "{point}: {unfit}");
        home.set("BRIDGE_STORE", "sqlite:");
        if point == "transfer.created" {
            // The copy has not begun, and the store is used before the next one.
            home.start().kill();
            continue;
        }
        assert!(
            refused(&home).contains("copied into another database"),
            "{point}"
        );
    }
    let (output, text) = run(&home, &copy, None);
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["tables"].is_array(), "{report}");

    home.set("BRIDGE_STORE", &url);
    sink.answer(Answer::status(200));
    let bridge = home.start();
    bridge.api.delivery_is(&pending, "delivered").await;
    assert_eq!(bridge.api.finished(&done).await, before);
    // It waits for this bridge, whose adapter is paused still.
    let (_, listed) = bridge.api.get("/api/v2/nodes").await;
    let homes = cluster().run(
        &name,
        "SELECT convert_from(home, 'UTF8') FROM dispatch WHERE is_bound",
    );
    assert_eq!(listed["node"], homes, "{listed}");
    assert_eq!(bridge.api.record(&bound).await["status"], "queued");
    bridge
        .api
        .post("/api/v2/adapters/echo/resume", &json!({}))
        .await;
    bridge.api.finished(&bound).await;
    let id = bridge.api.dispatch(quiet("after", "ok")).await;
    bridge.api.finished(&id).await;
    bridge.kill();

    home.set("BRIDGE_STORE", "sqlite:");
    assert!(refused(&home).contains("copied into another database"));
    let (_, text) = run(&home, &["store", "copy", "--undo"], None);
    assert!(text.contains("starts again"), "{text}");
    home.start().kill();
}

/// Databases that a store cannot be copied into, each with a part of the reason.
fn unfit(secured: &Cluster, gone: &Cluster) -> Vec<(String, &'static str)> {
    cluster().run("postgres", "CREATE ROLE visitor LOGIN");
    let (name, own) = database();
    on(&own).start().kill();
    let (other, _) = database();
    gone.stop();
    vec![
        ("postgre://forge@host/c".to_owned(), "not one of PostgreSQL"),
        ("postgres://forge@host".to_owned(), "names no database"),
        (
            "postgres://forge@host/c?sslmode=never".to_owned(),
            "sslmode=never",
        ),
        (
            "postgres://forge@127.0.0.1:1/c?sslmode=disable".to_owned(),
            "Connection refused",
        ),
        (
            "postgres://forge@nowhere.invalid/c".to_owned(),
            "cannot connect",
        ),
        (gone.url("postgres", "forge"), "cannot connect"),
        (
            secured.url("record", "bridge"),
            "password authentication failed",
        ),
        (cluster().url("nowhere", "forge"), "does not exist"),
        (
            cluster().url(&other, "visitor"),
            "permission denied for schema",
        ),
        (cluster().url(&name, "visitor"), "has a store already"),
        (own, "has a store already"),
    ]
}

#[tokio::test]
async fn a_copy_that_is_refused_leaves_the_store_as_it_is() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(rules.path(), Permissions::from_mode(0o644)).unwrap();
    let lines = "local all forge trust\nlocal all all scram-sha-256\n";
    std::fs::write(rules.path(), lines).unwrap();
    let secured = Cluster::start(&["-c", &format!("hba_file={}", rules.path().display())]);
    secured.run("postgres", "CREATE ROLE bridge LOGIN PASSWORD 'hush'");
    secured.run("postgres", "CREATE DATABASE record OWNER bridge");
    let gone = Cluster::start(&[]);

    let home = on("sqlite:");
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("kept", "ok")).await;
    let before = bridge.api.finished(&id).await;
    bridge.kill();
    let copy = |url: &str| {
        let mut command = home.command();
        command.args(["store", "copy", "--to", url]);
        let output = command.env("PGPASSWORD", "hushed").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{url}: {text}");
        assert!(!text.contains("hushed"), "{text}");
        text
    };
    let unfit = unfit(&secured, &gone);
    for (url, expected) in &unfit {
        let text = copy(url);
        assert!(text.contains(expected), "{url}: {text}");
        assert!(!text.contains("--undo"), "{url}: {text}");
        let (_, text) = run(&home, &["store", "copy", "--undo"], None);
        assert!(text.contains("was not copied"), "{url}: {text}");
    }
    let bridge = home.start();
    assert_eq!(bridge.api.finished(&id).await, before);
    bridge.kill();

    // One that has begun is continued or undone.
    let (name, url) = database();
    let begun = ["store", "copy", "--to", &url];
    let (output, text) = run(&home, &begun, Some("transfer.chunk"));
    assert_eq!(
        output.status.signal(),
        Some(Signal::KILL.as_raw()),
        "{text}"
    );
    for (url, expected) in unfit.iter().skip(3) {
        let text = copy(url);
        assert!(text.contains(expected), "{url}: {text}");
        assert!(text.contains("store copy --to URL` again"), "{text}");
        assert!(text.contains("store copy --undo"), "{text}");
        assert!(refused(&home).contains("is being copied"), "{url}");
    }
    let (_, text) = run(&home, &["store", "copy", "--undo"], None);
    assert!(text.contains("starts again"), "{text}");
    home.start().kill();
    // The store was used since.
    let text = copy(&url);
    assert!(text.contains(&name) && text.contains("drop it"), "{text}");
    home.start().kill();
}

#[tokio::test]
async fn a_restored_dump_starts_when_it_is_adopted() {
    let (mut home, name) = super::home(&[]);
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    bridge.api.finished(&id).await;
    bridge.kill();
    let (copy, url) = database();
    let script = r#"set -e; "$1/pg_dump" -h "$2" -U forge "$3" | "$1/psql" -qX -h "$2" -U forge "$4" >/dev/null"#;
    let restored = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([programs(), cluster().folder.clone()])
        .args([&name, &copy])
        .status();
    assert!(restored.unwrap().success());
    home.set("BRIDGE_STORE", &url);
    let refused = refused(&home);
    assert!(
        refused.contains("run `forge-bridge store adopt`"),
        "{refused}"
    );
    for (expected, adopted) in [("of its own", "first"), ("is not a copy", "second")] {
        let (output, text) = run(&home, &["store", "adopt"], None);
        assert!(
            output.status.success() && text.contains(expected),
            "{adopted}: {text}"
        );
    }
    let bridge = home.start();
    bridge.api.finished(&id).await;
}
