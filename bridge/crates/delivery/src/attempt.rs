//! Report of one completed attempt: its outcome for the delivery, for the receiver's circuit breaker, and for
//! the attempt history.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use forge_base::event::{NewEvent, kind};
use forge_base::id::DeliveryId;
use forge_base::trace::TraceContext;
use forge_net::breaker::Health;
use forge_net::{Answer, SendError};
use forge_store::record::{DeliveryAttempt, DueDelivery};

use super::redact::Confidential;
use super::send::{self, Attempt};
use super::verdict::{Outcome, Verdict};

pub(super) struct AttemptReport {
    pub(super) outcome: Outcome,
    /// Health of the receiver; `None` if no request reached it.
    pub(super) sign: Option<Health>,
    /// Short description of the outcome.
    pub(super) reason: String,
    pub(super) record: DeliveryAttempt,
    /// Exact duration; the record has milliseconds.
    pub(super) took: Duration,
    /// Trace context of the dispatch.
    pub(super) trace: Option<TraceContext>,
}

impl AttemptReport {
    pub(super) fn new(
        attempt: &Attempt<'_>,
        took: Duration,
        answer: Result<Answer, SendError>,
        confidential: &Confidential,
    ) -> Self {
        let mut record = record(attempt);
        record.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match answer {
            Ok(answer) => {
                record.status = Some(answer.status);
                let text = String::from_utf8_lossy(&answer.body);
                record.answer = (!text.is_empty()).then(|| confidential.hide(text.into_owned()));
                let retry_after = answer.headers.get("retry-after");
                let retry_after = retry_after.and_then(|v| v.to_str().ok());
                Self {
                    outcome: Outcome::Answered {
                        status: answer.status,
                        retry_after: retry_after.map(str::to_owned),
                    },
                    sign: Some(Health::of_status(answer.status)),
                    reason: format!("answered {}", answer.status),
                    record,
                    took,
                    trace: None,
                }
            }
            Err(error) => {
                let sign = match &error {
                    // Refused by the bridge's own guard: no evidence about the receiver.
                    SendError::Refused(_) => None,
                    SendError::Resolve(_)
                    | SendError::Connect(_)
                    | SendError::Tls(_)
                    | SendError::Timeout(_)
                    | SendError::Closed(_)
                    | SendError::Protocol(_) => Some(Health::Down),
                };
                let reason = error.to_string();
                record.error = Some(reason.clone());
                Self {
                    outcome: Outcome::Failed,
                    sign,
                    reason,
                    record,
                    took,
                    trace: None,
                }
            }
        }
    }

    /// Report of an attempt whose request could not be built.
    pub(super) fn unsent(attempt: &Attempt<'_>, error: &send::Error) -> Self {
        let reason = error.to_string();
        let mut record = record(attempt);
        record.error = Some(reason.clone());
        Self {
            outcome: Outcome::Failed,
            sign: None,
            reason,
            record,
            took: Duration::ZERO,
            trace: None,
        }
    }
}

fn record(attempt: &Attempt<'_>) -> DeliveryAttempt {
    DeliveryAttempt {
        number: attempt.number,
        at: attempt.at,
        duration_ms: 0,
        status: None,
        error: None,
        answer: None,
    }
}

/// Event data of an attempt.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttemptEvent<'a> {
    delivery_id: DeliveryId,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Reason of a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl AttemptEvent<'_> {
    fn of(delivery_id: DeliveryId, attempt: u32) -> Self {
        Self {
            delivery_id,
            attempt,
            duration_ms: None,
            status: None,
            error: None,
            reason: None,
        }
    }
}

/// `callback.dead` event of a delivery that is given up after this number of attempts.
pub(super) fn dead(id: DeliveryId, attempts: u32, reason: &str, now: Timestamp) -> NewEvent {
    let reason = Some(reason);
    NewEvent::new(kind::CALLBACK_DEAD, now).with(&AttemptEvent {
        reason,
        ..AttemptEvent::of(id, attempts)
    })
}

pub(super) fn events(
    due: &DueDelivery,
    record: &DeliveryAttempt,
    verdict: &Verdict,
    now: Timestamp,
) -> Vec<NewEvent> {
    let told = AttemptEvent::of(due.id, record.number);
    let attempted = NewEvent::new(kind::CALLBACK_ATTEMPTED, now).with(&AttemptEvent {
        duration_ms: Some(record.duration_ms),
        status: record.status,
        error: record.error.as_deref(),
        ..told
    });
    match verdict {
        Verdict::Retry { .. } => vec![attempted],
        Verdict::Delivered => {
            let delivered = NewEvent::new(kind::CALLBACK_DELIVERED, now);
            vec![attempted, delivered.with(&told)]
        }
        Verdict::Dead { reason } => vec![attempted, dead(due.id, record.number, reason, now)],
    }
}
