//! A disk that is full, that fails, that takes its time: nobody is told yes who should not be, what can
//! be read is read, and when the disk is back all goes on.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::harness::api::{JsonBody, answer, owed, quiet};
use super::harness::library::compile;
use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};

/// The disk below a bridge's store.
struct Disk {
    order: PathBuf,
}

/// What the disk does; `tests/fixtures/faulty-disk/shim.c` knows these letters.
const WELL: &str = "0";
const FULL: &str = "w";
const WRITES_FAIL: &str = "e";
const SYNCS_FAIL: &str = "s";
const SLOW: &str = "l";
const READS_FAIL: &str = "r";

impl Disk {
    fn below(home: &mut Home) -> Self {
        let shim = home.dir.path().join("shim.so");
        compile(&shim, "faulty-disk/shim.c", &[]);
        let order = home.dir.path().join("order");
        std::fs::write(&order, WELL).unwrap();
        for (name, path) in [("LD_PRELOAD", &shim), ("FAULTY_DISK", &order)] {
            let value = path.display().to_string();
            home.variables.insert(name.to_owned(), value);
        }
        Self { order }
    }

    fn is(&self, what: &str) {
        // The program has it mapped, so it must not be empty for a moment.
        let order = OpenOptions::new().write(true).open(&self.order).unwrap();
        order.write_all_at(what.as_bytes(), 0).unwrap();
    }
}

async fn refused(bridge: &Process, task: &str) {
    let (status, answer) = bridge
        .api
        .post("/api/v2/dispatch", &quiet(task, "ok"))
        .await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert_eq!(answer["code"], "STORE_UNAVAILABLE", "{answer}");
}

async fn ready(bridge: &Process) {
    until("the store to be back", || async {
        let (status, _) = bridge.api.get("/api/health/ready").await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
}

/// The events of a dispatch count 1, 2, 3 without a gap.
async fn counts(bridge: &Process, id: &str) {
    let events = bridge.api.events(id).await;
    let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_u64()).collect();
    let wanted: Vec<_> = (1..=events.len() as u64).map(Some).collect();
    assert_eq!(seqs, wanted);
}

#[tokio::test]
async fn while_the_disk_fails_nobody_is_told_yes_and_then_all_goes_on() {
    for fault in [FULL, WRITES_FAIL, SYNCS_FAIL] {
        let sink = CallbackSink::start().await;
        let mut home = Home::new(&[]);
        let disk = Disk::below(&mut home);
        let bridge = home.start();
        let before = owed("before", "stream:3", &sink.url("/before"));
        let before = bridge.api.dispatch(before).await;
        bridge.api.delivery_is(&before, "delivered").await;
        let known = bridge.api.record(&before).await;
        let during = owed("during", "slow:300", &sink.url("/during"));
        let during = bridge.api.dispatch(during).await;
        bridge.api.running(&during).await;

        disk.is(fault);
        for number in 0..20 {
            refused(&bridge, &format!("refused-{number}")).await;
        }
        assert_eq!(bridge.api.record(&before).await, known, "{fault}");
        counts(&bridge, &before).await;
        let (status, list) = bridge.api.get("/api/v2/dispatches").await;
        assert_eq!(status, StatusCode::OK, "{list}");
        let (status, health) = bridge.api.get("/api/health").await;
        assert_eq!(
            status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{fault}: {health}\n{}",
            home.log()
        );
        assert_eq!(health["store"]["status"], "offline", "{health}");
        let (status, _) = bridge.api.get("/api/health/ready").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(bridge.api.record(&during).await["status"], "running");

        disk.is(WELL);
        ready(&bridge).await;
        let record = bridge.api.delivery_is(&during, "delivered").await;
        assert_eq!(record["result"]["status"], "ok", "{fault}: {record}");
        let again = bridge.api.dispatch(quiet("refused-0", "ok")).await;
        bridge.api.finished(&again).await;
        let complaints = home.log().matches("the store failed").count();
        assert!(complaints < 5, "{fault}: {}", home.log());
        bridge.kill();

        let bridge = home.start();
        for id in [&before, &during, &again] {
            let record = bridge.api.finished(id).await;
            assert_eq!(record["result"]["status"], "ok", "{fault}: {record}");
            counts(&bridge, id).await;
        }
        assert_eq!(sink.received().len(), 2, "{fault}");
    }
}

#[tokio::test]
async fn a_slow_disk_is_waited_for_by_all_together() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    disk.is(SLOW);
    let tasks = (0..60).map(|number| {
        let body = quiet(&format!("task-{number}"), "ok");
        async {
            let id = bridge.api.dispatch(body).await;
            bridge.api.finished(&id).await["result"]["status"].clone()
        }
    });
    // With a sync for each write, this would take longer than a test waits for anything.
    let results = join_all(tasks).await;
    assert!(results.iter().all(|status| status == "ok"), "{results:?}");
}

#[tokio::test]
async fn what_cannot_be_read_is_said_and_not_invented() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    let known = bridge.api.finished(&id).await;
    let path = format!("/api/v2/dispatch/{id}");
    disk.is(READS_FAIL);
    // What is in memory may still be served.
    let (status, answer) = bridge.api.get(&path).await;
    match status {
        StatusCode::OK => assert_eq!(answer, known),
        status => {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
            assert_eq!(answer["code"], "STORE_UNAVAILABLE");
        }
    }
    disk.is(WELL);
    ready(&bridge).await;
    assert_eq!(bridge.api.record(&id).await, known);
}

#[tokio::test]
async fn a_refusal_says_when_to_come_again() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    disk.is(FULL);
    let body = quiet("t", "ok");
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let response = request.json_body(&body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    disk.is(WELL);
    ready(&bridge).await;
    let again = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let (status, answer): (_, Value) = answer(again.json_body(&body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
}

#[tokio::test]
async fn on_a_full_disk_it_does_not_start_and_says_so_in_one_line() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    bridge.api.finished(&id).await;
    bridge.kill();
    disk.is(FULL);
    let Err(log) = home.launch() else {
        panic!("it started on a full disk");
    };
    let errors: Vec<_> = log.lines().filter(|line| line.contains("error")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    assert!(errors[0].contains("bridge.db"), "{log}");
    assert!(errors[0].contains("full"), "{log}");
    disk.is(WELL);
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
}
