//! A sync that takes long holds up nothing but the requests that wait for it.

use futures_util::future::join_all;
use reqwest::StatusCode;

use super::super::harness::api::quiet;
use super::super::harness::process::Home;
use super::super::harness::until;
use super::disk::{Disk, SLOW};

const SYNC_MS: u32 = 2_000;

#[tokio::test]
async fn health_is_answered_while_dispatches_wait_for_their_sync() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    // Opens the client's connection.
    bridge.api.run(quiet("before", "ok")).await;
    disk.set_sync_ms(SYNC_MS);
    let before = disk.syncs_begun();
    disk.is(SLOW);
    let bodies: Vec<_> = (0..8).map(|n| quiet(&format!("task-{n}"), "ok")).collect();
    let dispatches = join_all(bodies.into_iter().map(|body| bridge.api.run(body)));
    let health = async {
        let begun = async || (disk.syncs_begun() > before).then_some(());
        until("a sync to begin", begun).await;
        let ended = disk.syncs_ended();
        for _ in 0..50 {
            let (status, _) = bridge.api.get("/api/health/live").await;
            assert_eq!(status, StatusCode::OK);
        }
        let ended = disk.syncs_ended() - ended;
        assert!(ended < 2, "{ended} syncs ended meanwhile");
    };
    let (results, ()) = tokio::join!(dispatches, health);
    assert!(
        results.iter().all(|result| result["status"] == "ok"),
        "{results:?}"
    );
}
