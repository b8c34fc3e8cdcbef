//! Per-instance background tasks: log forwarding, events outside calls, thread watchdog, restarts; and the health
//! request.

use forge_adapter_api::foreign_json;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{AdapterError, AdapterEvent, Health};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use crate::instance::call_stream::Item;
use crate::instance::handle::Handle;
use crate::instance::health::{Monitor, SourceId};
use crate::instance::process::crashes::Restart;
use crate::instance::relayed::Relayed;
use forge_base::event::kind;

/// Background tasks of one instance.
pub(crate) struct InstanceMonitor {
    pub handle: Handle,
    /// Id of the generation; its health counts only while it is active.
    pub source: SourceId,
    pub monitor: Arc<Monitor>,
    pub relay: mpsc::Sender<Relayed>,
    pub provider: String,
    pub call_timeout: Duration,
    pub health_timeout: Duration,
    pub initialize_timeout: Duration,
    pub restart: Restart,
}

impl InstanceMonitor {
    pub(crate) async fn run(&self) {
        tokio::join!(
            self.handle.write_logs(),
            self.relay(),
            self.watch(),
            self.keep_running()
        );
    }

    async fn relay(&self) {
        loop {
            let event = match self.handle.news().await {
                Item::Event(event) => wrap(event),
                Item::Dropped(count) => AdapterEvent {
                    kind: kind::EVENTS_DROPPED.to_owned(),
                    data: Some(json!({"count": count})),
                    timestamp: None,
                },
                // Only calls have an answer.
                Item::Done(_) => return,
            };
            let relayed = Relayed {
                provider: self.provider.clone(),
                event,
            };
            if self.relay.send(relayed).await.is_err() {
                return;
            }
        }
    }

    async fn watch(&self) {
        loop {
            let what = self.handle.overdue(self.call_timeout).await;
            self.tell(Health::offline(format!("blocked in {what}")));
            // A child process is killed instead of waited for, unless the bridge itself is slow to take its events.
            if let Some(remote) = self.handle.remote()
                && !remote.is_held_back()
            {
                let call_timeout = self.call_timeout;
                remote.kill(&format!("it was blocked in {what} for {call_timeout:?}"));
            }
            self.handle.back().await;
            if self.monitor.is_active(self.source) {
                self.tell(ask(&self.handle, self.health_timeout).await);
            }
        }
    }

    pub(crate) fn tell(&self, health: Health) {
        self.monitor.record(self.source, health, Timestamp::now());
    }
}

/// Wraps an event of the adapter itself for the event log.
fn wrap(event: AdapterEvent) -> AdapterEvent {
    AdapterEvent {
        kind: kind::ADAPTER_EVENT.to_owned(),
        data: Some(json!({"type": event.kind, "data": event.data})),
        timestamp: event.timestamp,
    }
}

/// Asks the adapter for its health. No answer counts as offline, an unreadable one as degraded.
pub(crate) async fn ask(handle: &Handle, timeout: Duration) -> Health {
    match answer(handle, "health", empty(), timeout).await {
        Ok(answer) => foreign_json::from_slice(&answer).unwrap_or_else(|error| {
            Health::degraded(format!("health returned an unreadable answer: {error}"))
        }),
        // An adapter without the op counts as healthy.
        Err(error) if error.code == "unsupported_op" => Health::healthy(),
        Err(error) if error.code == "timeout" => {
            if let Some(remote) = handle.remote() {
                remote.is_silent();
            }
            Health::offline(error.message)
        }
        Err(error) => match handle.blocked() {
            Some(what) => Health::offline(format!("blocked in {what}")),
            None => Health::offline(error.message),
        },
    }
}

/// Makes one call and waits for its answer.
pub(crate) async fn answer(
    handle: &Handle,
    op: &str,
    payload: Vec<u8>,
    timeout: Duration,
) -> Result<Vec<u8>, AdapterError> {
    let mut call = handle.call(op, payload)?;
    let answer = async {
        loop {
            match call.next().await {
                Item::Event(_) | Item::Dropped(_) => {}
                Item::Done(answer) => return answer,
            }
        }
    };
    tokio::time::timeout(timeout, answer)
        .await
        .unwrap_or_else(|_| {
            Err(AdapterError::new(
                "timeout",
                format!("{op} was not answered within {timeout:?}"),
            )
            .retryable())
        })
}

/// The payload of ops without arguments.
pub(crate) fn empty() -> Vec<u8> {
    b"{}".to_vec()
}
