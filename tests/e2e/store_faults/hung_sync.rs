//! A sync that hangs: the bridge says so, answers what waits for it, and works on when it returns.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use super::super::harness::api::{owed, quiet};
use super::super::harness::process::{Home, Process};
use super::super::harness::{CallbackSink, until};
use super::disk::{Disk, HUNG, SLOW, WELL};
use super::load::Load;
use super::{is_whole, ready};

const STALL: &str = "4s";
const HANG_MS: u32 = 15_000;
/// The stall, the grace of a drain and what follows it, with room for a slow machine.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until the store has this status, and returns its line of the health report.
async fn store_is(bridge: &Process, wanted: &str) -> Value {
    until(wanted, async || {
        let (_, health) = bridge.api.get("/api/health").await;
        let line = health["store"].clone();
        (line["status"] == wanted).then_some(line)
    })
    .await
}

async fn health_command(home: &Home, bridge: &Process) -> String {
    let mut command = home.command();
    command.args(["health", "--url", &bridge.api.url]);
    // The command needs no disk.
    command.env_remove("LD_PRELOAD");
    let output = tokio::task::spawn_blocking(move || command.output());
    String::from_utf8(output.await.unwrap().unwrap().stdout).unwrap()
}

#[tokio::test]
async fn a_sync_that_hangs_is_reported_and_nothing_waits_for_it_longer_than_the_stall() {
    let mut home = Home::new(&[("BRIDGE_STORE_STALL", STALL)]);
    let disk = Disk::below(&mut home);
    let sink = CallbackSink::start().await;
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    load.verify(&bridge.api).await;
    // Ends while the disk hangs.
    let running = owed("running", "slow:2000", &sink.url("/cb"));
    let running = bridge.api.dispatch(running).await;
    bridge.api.running(&running).await;

    disk.set_sync_ms(HANG_MS);
    let (begun, ended) = (disk.syncs_begun(), disk.syncs_ended());
    disk.is(SLOW);
    let unknown = quiet("unknown", "ok");
    let under_way = bridge.api.post("/api/v2/dispatch", &unknown);
    let trouble = async {
        until("a sync to begin", async || {
            (disk.syncs_begun() > begun).then_some(())
        })
        .await;
        disk.is(WELL);
        let seen = async {
            let line = store_is(&bridge, "degraded").await;
            let reason = line["message"].as_str().unwrap();
            assert!(
                reason.starts_with("a commit has been under way for "),
                "{reason}"
            );
            let (status, _) = bridge.api.get("/api/health/ready").await;
            assert_eq!(status, StatusCode::OK);
            store_is(&bridge, "offline").await;
            let (status, _) = bridge.api.get("/api/health/ready").await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        };
        // These wait behind the commit.
        tokio::join!(load.send(&bridge.api, 5), seen);
        assert_eq!(load.refused(), 5);
        load.send(&bridge.api, 1).await;
        assert_eq!(load.refused(), 6, "accepted while the disk hangs");
        let text = health_command(&home, &bridge).await;
        assert!(
            text.contains("store: offline, a commit has been under way for "),
            "{text}"
        );
    };
    let ((status, answer), ()) = tokio::join!(under_way, trouble);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert_eq!(answer["code"], "STORE_UNAVAILABLE", "{answer}");
    let text = answer["error"].as_str().unwrap();
    assert!(
        text.contains("the outcome of this request is not known"),
        "{text}"
    );
    assert_eq!(disk.syncs_ended(), ended, "the sync has returned meanwhile");

    ready(&bridge.api).await;
    let (status, answer) = bridge.api.post("/api/v2/dispatch", &unknown).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let id = answer["dispatchId"].as_str().unwrap();
    assert_eq!(bridge.api.finished(id).await["result"]["status"], "ok");
    bridge.api.delivery_is(&running, "delivered").await;
    assert_eq!(sink.received().len(), 1);
    load.send(&bridge.api, 6).await;
    load.verify_all(&bridge.api).await;
    let mut accepted = BTreeMap::<String, usize>::new();
    for event in bridge.api.event_log().await {
        if event["type"] == "execution.accepted" {
            let task = event["taskId"].as_str().unwrap().to_owned();
            *accepted.entry(task).or_default() += 1;
        }
    }
    assert_eq!(accepted.get("unknown"), Some(&1), "{accepted:?}");
    bridge.kill();
    is_whole(&home);
}

/// A bridge that is stopped while a sync hangs ends, with the reason; the next start has all that was answered.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_sync_that_hangs() {
    let mut home = Home::new(&[("BRIDGE_STORE_STALL", STALL)]);
    let disk = Disk::below(&mut home);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    load.verify(&bridge.api).await;
    disk.is(HUNG);
    load.send(&bridge.api, 1).await;
    bridge.terminate();
    let ended = tokio::time::timeout(CLOSE_TIMEOUT, bridge.ended()).await;
    let status = ended.expect("the bridge waits for the sync");
    assert_eq!(status.code(), Some(1));
    // Its last lines are copied to the log when it has ended.
    until("the reason in the log", async || {
        let is_said = home.log().contains("the store was not closed: ");
        is_said.then_some(())
    })
    .await;
    disk.is(WELL);
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    load.send(&bridge.api, 3).await;
    load.verify(&bridge.api).await;
    bridge.kill();
    is_whole(&home);
}
