//! `forge-bridge store`: a backup of a running bridge replaces its store, and damage is reported.

use std::path::Path;
use std::process::Output;

use reqwest::StatusCode;
use serde_json::Value;

use super::harness::api::{owed, quiet};
use super::harness::process::Home;
use super::harness::{Answer, CallbackSink, until};

/// Exit code, standard output and standard error of `forge-bridge store …` in this home.
fn store(home: &Home, arguments: &[&str]) -> (i32, String, String) {
    let mut command = home.command();
    let Output {
        status,
        stdout,
        stderr,
    } = command.arg("store").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_backup_of_a_bridge_at_work_takes_its_place() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503));
    let home = Home::new(&[]);
    let bridge = home.start();
    let done = bridge.api.run(quiet("done", "stream:3")).await;
    let owes = owed("owes", "ok", &sink.url("/cb"));
    let owes = bridge.api.dispatch(owes).await;
    bridge.api.finished(&owes).await;
    sink.until(1).await;
    let runs = bridge.api.dispatch(quiet("runs", "slow:60000")).await;
    bridge.api.running(&runs).await;
    let cursor = bridge.api.events(&owes).await[0]["id"].clone();

    let (code, told, _) = store(&home, &["check", "--json"]);
    let found: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &found["ok"]), (0, &Value::Bool(true)), "{told}");
    assert_eq!(found["dispatches"], 3, "{told}");
    let copy = home.dir.path().join("copy.db");
    let (code, told, complaint) = store(&home, &["backup", copy.to_str().unwrap()]);
    assert_eq!(code, 0, "{complaint}");
    assert!(told.contains("secret.key"), "{told}");
    bridge.api.run(quiet("too-late", "ok")).await;
    bridge.kill();

    let data = home.dir.path().join("data");
    std::fs::rename(&data, home.dir.path().join("old")).unwrap();
    std::fs::create_dir(&data).unwrap();
    std::fs::copy(&copy, data.join("bridge.db")).unwrap();
    sink.answer(Answer::status(200));
    let bridge = home.start();
    assert_eq!(bridge.api.finished("done").await["result"], done);
    bridge.api.delivery_is(&owes, "delivered").await;
    let received = sink.received();
    let ids: Vec<_> = received
        .iter()
        .map(|one| &one.headers["webhook-id"])
        .collect();
    assert!(
        ids.len() > 1 && ids.windows(2).all(|pair| pair[0] == pair[1]),
        "{ids:?}"
    );
    let interrupted = bridge.api.finished(&runs).await;
    assert_eq!(interrupted["result"]["errorCode"], "interrupted");
    let (status, _) = bridge.api.get("/api/v2/dispatch/too-late").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // A cursor of the former log would refer to other events in this one.
    let path = format!("/api/v2/events?after={}", cursor.as_str().unwrap());
    let (status, answer) = bridge.api.get(&path).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    until("all to be done", || async {
        let (code, told, _) = store(&home, &["check"]);
        (code == 0 && told.contains("0 of them unfinished")).then_some(())
    })
    .await;
}

fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].fill(0xff);
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_store_is_said_with_what_to_do() {
    let home = Home::new(&[]);
    let (code, _, complaint) = store(&home, &["check"]);
    assert_eq!(code, 1);
    assert!(complaint.contains("there is no store in"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");

    let bridge = home.start();
    bridge.api.run(quiet("t", "ok")).await;
    bridge.terminate();
    assert!(bridge.ended().await.success());
    let file = home.dir.path().join("data/bridge.db");
    damage(&file);
    let before = std::fs::read(&file).unwrap();
    let (code, told, _) = store(&home, &["check"]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("error: "), "{told}");
    assert!(told.contains("put a backup in its place"), "{told}");
    let copy = home.dir.path().join("copy.db");
    let (code, _, complaint) = store(&home, &["backup", copy.to_str().unwrap()]);
    assert_eq!(code, 1, "{complaint}");
    assert!(!copy.exists(), "half a copy is none");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        before,
        "it was looked at only"
    );
}
