//! State of a run while it lasts, and its abort.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::connection::lock;
use crate::gateway::Gateway;
use crate::session::Session;

/// Time for an aborted run to end.
pub(crate) const ABORT: Duration = Duration::from_secs(4);

pub(crate) struct Progress {
    is_accepted: AtomicBool,
    /// True if an earlier request can have begun the run.
    has_past: AtomicBool,
    /// Run of the gateway's own that continues it.
    other: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(has_past: bool) -> Self {
        Self {
            is_accepted: AtomicBool::new(false),
            has_past: AtomicBool::new(has_past),
            other: Mutex::default(),
        }
    }

    pub(crate) fn accept(&self) {
        self.is_accepted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.is_accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn expect_past(&self) {
        self.has_past.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_past(&self) -> bool {
        self.has_past.load(Ordering::Relaxed)
    }

    pub(crate) fn continue_by(&self, other: &str) {
        *lock(&self.other) = Some(other.to_owned());
    }

    /// Parameters of `chat.abort`.
    pub(crate) fn target(&self, session: &Session, run: &str) -> Value {
        let other = lock(&self.other);
        json!({"sessionKey": session.key, "runId": other.as_deref().unwrap_or(run)})
    }
}

/// A run that may have begun; aborted on drop unless it has ended.
pub(crate) struct Begun<'a, F: Fn() -> Value> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) target: F,
    /// `None` once nothing is left to abort.
    pub(crate) afterwards: Option<&'a TaskTracker>,
}

impl<F: Fn() -> Value> Drop for Begun<'_, F> {
    fn drop(&mut self) {
        if let Some(afterwards) = self.afterwards.take() {
            let (gateway, target) = (self.gateway.clone(), (self.target)());
            afterwards.spawn(async move { abort(&gateway, &target).await });
        }
    }
}

pub(crate) async fn abort(gateway: &Gateway, target: &Value) {
    if let Err(failure) = gateway.call_within("chat.abort", target, ABORT).await {
        tracing::warn!(%failure, "a run could not be aborted");
    }
}
