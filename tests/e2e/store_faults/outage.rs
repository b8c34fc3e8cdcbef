//! A disk that fails until it is repaired: no write is acknowledged meanwhile, stored records can be read, and afterwards
//! work continues.

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::super::harness::CallbackSink;
use super::super::harness::api::{JsonBody, answer, owed, quiet};
use super::super::harness::process::{Home, Process};
use super::disk::{Disk, FULL, READS_FAIL, SLOW, SYNCS_FAIL, WELL, WRITES_FAIL};
use super::{counts, ready};

async fn refused(bridge: &Process, task: &str) {
    let (status, answer) = bridge
        .api
        .post("/api/v2/dispatch", &quiet(task, "ok"))
        .await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert_eq!(answer["code"], "STORE_UNAVAILABLE", "{answer}");
}

#[tokio::test]
async fn while_the_disk_fails_no_write_is_acknowledged_and_then_work_continues() {
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
        counts(&bridge.api, &before).await;
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
        ready(&bridge.api).await;
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
            counts(&bridge.api, id).await;
        }
        assert_eq!(sink.received().len(), 2, "{fault}");
    }
}

#[tokio::test]
async fn on_a_slow_disk_dispatches_share_their_syncs() {
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
async fn a_failed_read_is_reported() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    let known = bridge.api.finished(&id).await;
    let path = format!("/api/v2/dispatch/{id}");
    disk.is(READS_FAIL);
    // Records in memory may still be served.
    let (status, answer) = bridge.api.get(&path).await;
    match status {
        StatusCode::OK => assert_eq!(answer, known),
        status => {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
            assert_eq!(answer["code"], "STORE_UNAVAILABLE");
        }
    }
    disk.is(WELL);
    ready(&bridge.api).await;
    assert_eq!(bridge.api.record(&id).await, known);
}

#[tokio::test]
async fn a_refusal_has_a_retry_after() {
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
    ready(&bridge.api).await;
    let again = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let (status, answer): (_, Value) = answer(again.json_body(&body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
}
