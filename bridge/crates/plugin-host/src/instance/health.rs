//! Health of each adapter: the last report, cached, with a bounded history; changes are logged and emitted as events.
//! Nothing here waits for an adapter.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::{AdapterEvent, Health, HealthStatus};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::instance::relayed::Relayed;
use forge_base::event::kind;
use forge_base::time;

/// Number of changes in the history.
const REMEMBERED: usize = 32;
/// Longest health message; longer ones are truncated.
const MESSAGE_BYTES: usize = 2 * 1024;
/// Largest details; larger ones are left out.
const DETAILS_BYTES: usize = 4 * 1024;

/// Health of an adapter at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    pub status: HealthStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Figures of the last check; not part of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub checked_at: Timestamp,
}

/// Quarantine of an adapter whose process crashed too often: it is not restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    #[serde(serialize_with = "forge_base::time::millis")]
    pub since: Timestamp,
    /// Number of crashes within `plugin.restart.crash_window`.
    pub crashes: usize,
    /// Reason of the last crash.
    pub reason: String,
}

/// Id of a generation at its adapter's monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceId(u64);

/// Health of one adapter.
pub(crate) struct Monitor {
    provider: String,
    board: Mutex<Board>,
    /// True while a health request is in flight.
    asking: AtomicBool,
    relay: mpsc::Sender<Relayed>,
}

struct Board {
    current: HealthReport,
    /// The active generation; reports of others are ignored.
    source: SourceId,
    last_source: u64,
    /// Cleared when another generation becomes active.
    quarantine: Option<Quarantine>,
    /// Reports that changed the status or the message, newest last.
    history: VecDeque<HealthReport>,
}

impl Monitor {
    /// Offline with the message `starting` until the first report.
    pub(crate) fn new(provider: String, relay: mpsc::Sender<Relayed>) -> Self {
        let current = HealthReport {
            status: HealthStatus::Offline,
            message: Some("starting".to_owned()),
            details: None,
            checked_at: Timestamp::now(),
        };
        Self {
            provider,
            board: Mutex::new(Board {
                current,
                source: SourceId(0),
                last_source: 0,
                quarantine: None,
                history: VecDeque::new(),
            }),
            asking: AtomicBool::new(false),
            relay,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> HealthReport {
        self.lock().current.clone()
    }

    pub(crate) fn history(&self) -> Vec<HealthReport> {
        self.lock().history.iter().cloned().collect()
    }

    /// Permit for a health request, if the last report is at least `age` old and no request is in flight.
    pub(crate) fn ask(&self, age: Duration, now: Timestamp) -> Option<Asking<'_>> {
        let due = time::after(self.lock().current.checked_at, age);
        let stale = time::has_come(due, now, age);
        (stale && !self.asking.swap(true, Ordering::AcqRel)).then_some(Asking(self))
    }

    /// Allocates the id of a new generation, which is not active yet.
    pub(crate) fn new_source(&self) -> SourceId {
        let mut board = self.lock();
        board.last_source += 1;
        SourceId(board.last_source)
    }

    /// Makes this generation the only one whose reports count, and records its health.
    pub(crate) fn set_active(&self, source: SourceId, health: Health) {
        {
            let mut board = self.lock();
            board.source = source;
            board.quarantine = None;
        }
        self.record(source, health, Timestamp::now());
    }

    /// Records a quarantine; ignored unless `source` is active.
    pub(crate) fn quarantine(&self, source: SourceId, quarantine: Quarantine) {
        let mut board = self.lock();
        if board.source == source {
            board.quarantine = Some(quarantine);
        }
    }

    pub(crate) fn quarantined(&self) -> Option<Quarantine> {
        self.lock().quarantine.clone()
    }

    /// True if reports of this generation count.
    pub(crate) fn is_active(&self, source: SourceId) -> bool {
        self.lock().source == source
    }

    /// Records a report of the active generation; logs and emits a change.
    pub(crate) fn record(&self, source: SourceId, health: Health, now: Timestamp) {
        let report = HealthReport {
            status: health.status,
            message: health.message.map(|message| cut(&message)),
            details: health.details.filter(is_small),
            checked_at: now,
        };
        let mut board = self.lock();
        if board.source != source {
            return;
        }
        let first = board.history.is_empty();
        let changed = first
            || (board.current.status, &board.current.message) != (report.status, &report.message);
        let previous = std::mem::replace(&mut board.current, report.clone());
        if changed {
            if board.history.len() == REMEMBERED {
                board.history.pop_front();
            }
            board.history.push_back(HealthReport {
                details: None,
                ..report.clone()
            });
        }
        drop(board);
        if changed {
            self.tell(&report, (!first).then_some(previous.status));
        }
    }

    fn tell(&self, report: &HealthReport, previous: Option<HealthStatus>) {
        let provider = &self.provider;
        let message = report.message.as_deref().unwrap_or_default();
        match report.status {
            HealthStatus::Healthy => {
                tracing::info!(adapter.id = provider, "adapter {provider} is healthy");
            }
            HealthStatus::Degraded => tracing::warn!(
                adapter.id = provider,
                "adapter {provider} is degraded: {message}"
            ),
            HealthStatus::Offline => tracing::error!(
                adapter.id = provider,
                "adapter {provider} is offline: {message}"
            ),
        }
        let event = AdapterEvent {
            kind: kind::ADAPTER_HEALTH.to_owned(),
            data: Some(json!({
                "status": report.status, "message": report.message, "previous": previous,
            })),
            timestamp: Some(forge_base::time::format(report.checked_at)),
        };
        let relayed = Relayed {
            provider: provider.clone(),
            event,
        };
        if self.relay.try_send(relayed).is_err() {
            tracing::warn!(
                adapter.id = provider,
                "a health change of {provider} is missing from the event log: the receiver is behind"
            );
        }
    }
}

/// The health request in flight; dropping it permits the next one.
pub(crate) struct Asking<'a>(&'a Monitor);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.store(false, Ordering::Release);
    }
}

fn cut(message: &str) -> String {
    message[..message.floor_char_boundary(MESSAGE_BYTES)].to_owned()
}

fn is_small(details: &Value) -> bool {
    details.is_object() && details.to_string().len() <= DETAILS_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor() -> (Monitor, mpsc::Receiver<Relayed>) {
        let (relay, inbox) = mpsc::channel(100);
        (Monitor::new("a".into(), relay), inbox)
    }

    #[test]
    fn only_changes_are_told_and_remembered() {
        let (monitor, mut inbox) = monitor();
        let now = Timestamp::now();
        for health in [
            Health::healthy(),
            Health::healthy(),
            Health::degraded("no key"),
            Health::degraded("no key"),
            Health::offline("gone"),
        ] {
            monitor.record(SourceId(0), health, now);
        }
        let told: Vec<_> = std::iter::from_fn(|| inbox.try_recv().ok())
            .map(|relayed| relayed.event.data.unwrap())
            .collect();
        assert_eq!(
            told,
            [
                json!({"status": "healthy", "message": null, "previous": null}),
                json!({"status": "degraded", "message": "no key", "previous": "healthy"}),
                json!({"status": "offline", "message": "gone", "previous": "degraded"}),
            ]
        );
        assert_eq!(monitor.history().len(), 3);
    }

    #[test]
    fn details_are_bounded_and_no_change() {
        let (monitor, mut inbox) = monitor();
        let with = |details: Value| Health {
            details: Some(details),
            ..Health::healthy()
        };
        for (details, kept) in [
            (json!({"n": 1}), true),
            (json!({"n": 2}), true),
            (json!({"n": "x".repeat(DETAILS_BYTES)}), false),
            (json!([1]), false),
        ] {
            monitor.record(SourceId(0), with(details.clone()), Timestamp::now());
            let found = monitor.current().details;
            assert_eq!(found, kept.then_some(details));
        }
        inbox.try_recv().unwrap();
        assert!(inbox.try_recv().is_err(), "one report, no change");
        assert_eq!(monitor.history()[0].details, None);
    }

    #[test]
    fn only_the_one_that_serves_is_heard() {
        let (monitor, mut inbox) = monitor();
        let (first, second) = (monitor.new_source(), monitor.new_source());
        monitor.set_active(first, Health::healthy());
        monitor.record(second, Health::offline("not yet"), Timestamp::now());
        let quarantine = Quarantine {
            since: Timestamp::now(),
            crashes: 5,
            reason: "SIGABRT".to_owned(),
        };
        monitor.quarantine(second, quarantine.clone());
        assert_eq!(monitor.quarantined(), None, "not yet");
        monitor.quarantine(first, quarantine.clone());
        assert_eq!(monitor.quarantined(), Some(quarantine));
        monitor.set_active(second, Health::healthy());
        assert_eq!(monitor.quarantined(), None);
        monitor.record(first, Health::offline("not any more"), Timestamp::now());
        assert_eq!(monitor.current().status, HealthStatus::Healthy);
        assert!(monitor.is_active(second) && !monitor.is_active(first));
        inbox.try_recv().unwrap();
        assert!(inbox.try_recv().is_err(), "nothing else changed");
    }

    #[test]
    fn the_history_is_bounded() {
        let (monitor, _inbox) = monitor();
        for n in 0..100 {
            monitor.record(
                SourceId(0),
                Health::degraded(n.to_string()),
                Timestamp::now(),
            );
        }
        let history = monitor.history();
        assert_eq!(history.len(), REMEMBERED);
        assert_eq!(history[REMEMBERED - 1].message.as_deref(), Some("99"));
    }

    #[test]
    fn one_question_at_a_time_and_only_when_the_answer_is_old() {
        let (monitor, _inbox) = monitor();
        let now = Timestamp::now();
        monitor.record(SourceId(0), Health::healthy(), now);
        let age = Duration::from_secs(5);
        assert!(monitor.ask(age, now + Duration::from_secs(4)).is_none());
        let later = now + Duration::from_secs(5);
        let asking = monitor.ask(age, later);
        assert!(asking.is_some());
        assert!(monitor.ask(age, later).is_none());
        drop(asking);
        assert!(monitor.ask(age, later).is_some());
        // An answer from before the clock was set back.
        assert!(monitor.ask(age, now - Duration::from_secs(3600)).is_some());
    }
}
