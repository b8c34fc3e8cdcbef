//! Other processes that hold locks on the store's file.

use reqwest::StatusCode;
use rusqlite::Connection;

use super::super::harness::api::quiet;
use super::super::harness::process::Home;
use super::super::harness::until;
use super::load::Load;
use super::{is_whole, ready};

fn outsider(home: &Home) -> Connection {
    Connection::open(home.dir.path().join("data/bridge.db")).unwrap()
}

#[tokio::test]
async fn a_long_write_lock_of_another_process_is_named_and_survived() {
    let home = Home::new(&[("BRIDGE_STORE_BUSY_TIMEOUT", "500ms")]);
    let bridge = home.start();
    let before = bridge.api.dispatch(quiet("before", "ok")).await;
    let known = bridge.api.finished(&before).await;
    let outsider = outsider(&home);
    outsider.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..3 {
        let body = quiet(&format!("refused-{number}"), "ok");
        let answer = bridge.api.refused(&body, 503, "STORE_UNAVAILABLE").await;
        let error = answer["error"].as_str().unwrap();
        let reason = "for longer than store.busy_timeout (500ms)";
        assert!(error.contains(reason), "{error}");
    }
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{health}");
    assert_eq!(health["store"]["status"], "offline", "{health}");
    assert_eq!(bridge.api.record(&before).await, known);
    until("the reason in the log", async || {
        home.log().contains("store.busy_timeout").then_some(())
    })
    .await;
    outsider.execute_batch("ROLLBACK").unwrap();
    ready(&bridge.api).await;
    for number in 0..3 {
        let (status, _) = bridge
            .api
            .get(&format!("/api/v2/dispatch/refused-{number}"))
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    let result = bridge.api.run(quiet("after", "ok")).await;
    assert_eq!(result["status"], "ok", "{result}");
}

#[tokio::test]
async fn a_long_reader_stops_no_writer_and_the_wal_is_truncated_after_it() {
    const LIMIT: u64 = 1 << 20;
    let home = Home::new(&[("BRIDGE_STORE_WAL_LIMIT_BYTES", &LIMIT.to_string())]);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    let wal = home.dir.path().join("data/bridge.db-wal");
    let length = || wal.metadata().unwrap().len();
    let reader = outsider(&home);
    reader.execute_batch("BEGIN").unwrap();
    let read = || -> u64 {
        let count = "SELECT count(*) FROM dispatch";
        reader.query_row(count, [], |row| row.get(0)).unwrap()
    };
    let snapshot = read();
    while length() < 3 * LIMIT {
        load.send_bytes(&bridge.api, 12, 20_000).await;
    }
    assert_eq!(load.refused(), 0);
    load.verify(&bridge.api).await;
    assert_eq!(read(), snapshot);
    drop(reader);
    let truncated = async || {
        bridge.api.run(quiet("after", "ok")).await;
        (length() <= LIMIT).then_some(())
    };
    until("the WAL to be truncated", truncated).await;
    bridge.kill();
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    bridge.kill();
    is_whole(&home);
}
