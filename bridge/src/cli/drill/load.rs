//! Load of a drill: clients that send dispatches to the bridges and repeat each until it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::client::{Client, Error, Target};
use super::super::screen::text;
use super::ledger::Ledger;

/// Bounds the disk space of a drill by the number of kills, whatever the speed of the machine.
const DISPATCHES_A_KILL: u64 = 60;
/// Clients pause while this many callbacks are outstanding.
const MOST_OPEN: usize = 120;
/// Longest wait of a client for an answer, before it asks the next bridge.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a client tries again.
const AGAIN: Duration = Duration::from_millis(10);

/// Dispatched in rotation: model of the echo adapter, and recovery policy after a kill.
const KINDS: [(&str, &str); 6] = [
    ("ok", "fail"),
    ("slow:250", "retry"),
    ("stream:5", "resume"),
    ("slow:250", "fail"),
    ("stream:5", "retry"),
    ("slow:60", "resume"),
];

/// Load shared by the clients, and its limits.
pub(super) struct Load {
    /// One client for each bridge.
    pub(super) bridges: Vec<Client>,
    pub(super) callback: String,
    pub(super) ledger: Arc<Ledger>,
    pub(super) next: AtomicU64,
    pub(super) killed: AtomicU32,
    /// Once cancelled, clients start no new dispatch; started ones are sent until answered.
    pub(super) enough: CancellationToken,
}

impl Load {
    pub(super) async fn work(self: Arc<Self>) {
        while !self.enough.is_cancelled() {
            let allowed = DISPATCHES_A_KILL * u64::from(self.killed.load(Ordering::Relaxed) + 1);
            let far = self.next.load(Ordering::Relaxed) >= allowed;
            if far || self.ledger.open() >= MOST_OPEN {
                sleep(AGAIN).await;
                continue;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            self.dispatch(number).await;
        }
    }

    /// Sends one dispatch until it is answered, as every caller should, to one bridge after the other.
    async fn dispatch(&self, number: u64) {
        let (model, policy) = KINDS[number as usize % KINDS.len()];
        let body = json!({
            "taskId": format!("drill-{number}"), "agentId": "drill", "message": "still there?",
            "model": model, "recovery": policy, "callbackUrl": self.callback,
        });
        let path = ["api", "v2", "dispatch"];
        let first = number as usize % self.bridges.len();
        for client in self.bridges.iter().cycle().skip(first) {
            match timeout(PATIENCE, client.post(Target::path(&path), &body)).await {
                Ok(Ok(answer)) => {
                    return self.ledger.accept(text(&answer, "/dispatchId"), policy);
                }
                Err(_) | Ok(Err(Error::Unreachable { .. } | Error::Unreadable { .. })) => {}
                Ok(Err(Error::Refused { status, .. })) if status.is_server_error() => {}
                Ok(Err(
                    error @ (Error::Refused { .. }
                    | Error::Address { .. }
                    | Error::Token { .. }
                    | Error::Authority(_)
                    | Error::Build(_)),
                )) => {
                    return self.ledger.breach(format!("drill-{number}: {error}"));
                }
            }
            sleep(AGAIN).await;
        }
    }
}
