//! The store on a disk that fails, and beside other processes that use its file.

mod bit_flips;
pub(crate) mod disk;
mod hung_sync;
pub(super) mod load;
mod locks;
mod lost_pages;
mod moved;
mod outage;
mod outsiders;
mod pages;
mod refusals;
mod size_limit;
mod slow_sync;
mod start;
mod sweep;

use std::process::Output;

use reqwest::StatusCode;
use serde_json::Value;

use super::harness::process::{Home, Process};
use super::harness::{Api, until};

/// End of a bridge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Killed,
    Terminated,
}

impl Ending {
    pub(super) async fn come(self, bridge: Process) {
        match self {
            Ending::Killed => bridge.kill(),
            Ending::Terminated => {
                bridge.terminate();
                let status = bridge.ended().await;
                assert!(status.success(), "{status}");
            }
        }
    }
}

pub(super) async fn ready(api: &Api) {
    until("the store to be back", async || {
        let (status, _) = api.get("/api/health/ready").await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
}

/// Asserts that the events of a dispatch are numbered 1, 2, 3 without a gap.
async fn counts(api: &Api, id: &str) {
    let events = api.events(id).await;
    let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_u64()).collect();
    let wanted: Vec<_> = (1..=events.len() as u64).map(Some).collect();
    assert_eq!(seqs, wanted);
}

/// Asserts that `forge-bridge store check` finds nothing.
fn is_whole(home: &Home) {
    let mut command = home.command();
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(["store", "check", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{}{stderr}",
        String::from_utf8_lossy(&stdout)
    );
    let found: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(found["ok"], true, "{found}");
}
