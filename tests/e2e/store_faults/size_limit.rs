//! A limit on the size of files, which is like a full disk: large writes are refused until it is raised.

use reqwest::StatusCode;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use super::super::harness::CallbackSink;
use super::super::harness::api::{owed, quiet, with};
use super::super::harness::process::{Home, Process};
use super::{counts, is_whole, ready};

fn limit_files(bridge: &Process, bytes: Option<u64>) {
    let pid = Pid::from_raw(bridge.id().cast_signed()).unwrap();
    let limit = Rlimit {
        current: bytes,
        maximum: getrlimit(Resource::Fsize).maximum,
    };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
}

#[tokio::test]
async fn at_a_file_size_limit_no_write_is_acknowledged_and_then_work_continues() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
    let before = owed("before", "stream:3", &sink.url("/before"));
    let before = bridge.api.dispatch(before).await;
    bridge.api.delivery_is(&before, "delivered").await;
    let during = owed("during", "slow:300", &sink.url("/during"));
    let during = bridge.api.dispatch(during).await;
    bridge.api.running(&during).await;

    let bytes = |file: &str| {
        let path = home.dir.path().join("data").join(file);
        std::fs::metadata(path).unwrap().len()
    };
    let limit = bytes("bridge.db").max(bytes("bridge.db-wal"));
    limit_files(&bridge, Some(limit));
    // One commit that no file has room for.
    let message = "x".repeat(usize::try_from(limit).unwrap() + 100_000);
    let large = with(quiet("large", "ok"), &json!({ "message": message }));
    for _ in 0..5 {
        let (status, answer) = bridge.api.post("/api/v2/dispatch", &large).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
        assert_eq!(answer["code"], "STORE_UNAVAILABLE", "{answer}");
    }

    limit_files(&bridge, None);
    ready(&bridge.api).await;
    let large = bridge.api.dispatch(large).await;
    assert_eq!(bridge.api.finished(&large).await["result"]["status"], "ok");
    let record = bridge.api.delivery_is(&during, "delivered").await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    bridge.kill();

    is_whole(&home);
    let bridge = home.start();
    for id in [&before, &during, &large] {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
        counts(&bridge.api, id).await;
    }
}
