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

type Target = (&'static str, Value);

pub(crate) struct Progress {
    is_accepted: AtomicBool,
    /// True if an earlier request can have begun the run.
    has_past: AtomicBool,
    /// True while only its subagents are at work.
    has_ended: AtomicBool,
    /// Run of the gateway's own that continues it.
    other: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(has_past: bool) -> Self {
        Self {
            is_accepted: AtomicBool::new(false),
            has_past: AtomicBool::new(has_past),
            has_ended: AtomicBool::new(false),
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

    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Method and parameters that abort the run with its subagents. After its end only the session is known to have them.
    pub(crate) fn target(&self, session: &Session, run: &str) -> Target {
        if self.has_ended.load(Ordering::Relaxed) {
            return ("sessions.abort", json!({ "key": session.key }));
        }
        let other = lock(&self.other);
        let run = other.as_deref().unwrap_or(run);
        (
            "chat.abort",
            json!({"sessionKey": session.key, "runId": run}),
        )
    }
}

/// A run that may have begun; aborted on drop unless it has ended.
pub(crate) struct Begun<'a, F: Fn() -> Target> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) target: F,
    /// `None` once nothing is left to abort.
    pub(crate) afterwards: Option<&'a TaskTracker>,
}

impl<F: Fn() -> Target> Drop for Begun<'_, F> {
    fn drop(&mut self) {
        if let Some(afterwards) = self.afterwards.take() {
            let (gateway, target) = (self.gateway.clone(), (self.target)());
            afterwards.spawn(async move { abort(&gateway, &target).await });
        }
    }
}

pub(crate) async fn abort(gateway: &Gateway, (method, params): &Target) {
    if let Err(failure) = gateway.call_within(method, params, ABORT).await {
        tracing::warn!(%failure, "a run could not be aborted");
    }
}
