//! Retry decision: maps an attempt's outcome to delivered, dead, or another attempt at a given time. Pure.

use std::time::Duration;

use jiff::Timestamp;

use forge_base::time;
use forge_net::backoff::{self, Policy};
use forge_store::record::AfterAttempt;

/// Outcome of an attempt, as far as the retry decision needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered {
        status: u16,
        /// Raw `Retry-After` header.
        retry_after: Option<String>,
    },
    /// No answer: refused, not connected, closed, timed out, or not sent at all.
    Failed,
}

/// State of the current series of attempts, including this one.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Attempt number since the delivery became due or was replayed, starting at 1.
    pub attempt: u32,
    pub since: Timestamp,
    pub policy: Policy,
}

/// Decision after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Retry { due: Timestamp },
    Dead { reason: String },
}

impl Verdict {
    pub fn next(&self) -> AfterAttempt {
        match self {
            Verdict::Delivered => AfterAttempt::Delivered,
            Verdict::Retry { due } => AfterAttempt::Retry { due: *due },
            Verdict::Dead { .. } => AfterAttempt::Dead,
        }
    }
}

/// Applies the retry rule: the responses of the webhook `result` in `openapi.json`. `random` is from 0 to 1.
pub fn decide_retry(outcome: &Outcome, series: Series, now: Timestamp, random: f64) -> Verdict {
    let asked = match outcome {
        Outcome::Answered { status, .. } if (200..300).contains(status) => {
            return Verdict::Delivered;
        }
        Outcome::Answered {
            status: status @ (300..400 | 400 | 410 | 413 | 422),
            ..
        } => {
            return Verdict::Dead {
                reason: format!("the receiver answered {status}"),
            };
        }
        Outcome::Answered { retry_after, .. } => retry_after
            .as_deref()
            .and_then(|value| backoff::retry_after(value, now))
            .unwrap_or(Duration::ZERO),
        Outcome::Failed => Duration::ZERO,
    };
    let elapsed = time::wall_age(series.since, now);
    let wait = backoff::delay(series.attempt, elapsed, series.policy, random)
        .map(|wait| wait.max(asked))
        .filter(|wait| series.policy.permits(elapsed.saturating_add(*wait)));
    match wait {
        Some(wait) => Verdict::Retry {
            due: time::after(now, wait),
        },
        None => Verdict::Dead {
            reason: format!("given up after {} attempts", series.attempt),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn first(policy: Policy) -> Series {
        Series {
            attempt: 1,
            since: NOW,
            policy,
        }
    }

    fn answered(status: u16, retry_after: Option<&str>) -> Outcome {
        Outcome::Answered {
            status,
            retry_after: retry_after.map(str::to_owned),
        }
    }

    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Delivered => "delivered",
            Verdict::Retry { .. } => "retry",
            Verdict::Dead { .. } => "dead",
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        for status in 100..=999 {
            let expected = match status {
                200..=299 => "delivered",
                300..=399 | 400 | 410 | 413 | 422 => "dead",
                _ => "retry",
            };
            let verdict = decide_retry(&answered(status, None), first(Policy::Default), NOW, 0.5);
            assert_eq!(word(&verdict), expected, "{status}");
        }
        let verdict = decide_retry(&Outcome::Failed, first(Policy::Default), NOW, 0.5);
        assert_eq!(word(&verdict), "retry");
    }

    #[test]
    fn retry_after_is_honoured_up_to_a_day_and_never_shortens_the_wait() {
        for (status, value, seconds) in [
            (429, None, 1),
            (429, Some("0"), 1),
            (429, Some("120"), 120),
            (503, Some("7200"), 7200),
            (500, Some("30"), 30),
            (429, Some("1000000"), 86_400),
            (429, Some("Thu, 01 Jan 1970 00:01:00 GMT"), 60),
            (429, Some("later"), 1),
        ] {
            let verdict = decide_retry(&answered(status, value), first(Policy::Default), NOW, 0.5);
            let due = time::after(NOW, Duration::from_secs(seconds));
            assert_eq!(verdict, Verdict::Retry { due }, "{status} {value:?}");
        }
    }

    #[test]
    fn a_policy_that_has_ended_makes_a_dead_letter() {
        let minute = Policy::MaxElapsed(Duration::from_secs(60));
        let failed = || Outcome::Failed;
        for (outcome, attempt, elapsed, policy, expected) in [
            (failed(), 3, 10, Policy::Compat, "retry"),
            (failed(), 4, 10, Policy::Compat, "dead"),
            (answered(429, Some("86400")), 3, 10, Policy::Compat, "retry"),
            (failed(), 5, 30, minute, "retry"),
            (failed(), 6, 50, minute, "dead"),
            (answered(429, Some("120")), 1, 0, minute, "dead"),
            (failed(), 80, 71 * 3600 - 1, Policy::Default, "retry"),
            (failed(), 80, 72 * 3600, Policy::Default, "dead"),
        ] {
            let series = Series {
                attempt,
                since: NOW,
                policy,
            };
            let now = time::after(NOW, Duration::from_secs(elapsed));
            let verdict = decide_retry(&outcome, series, now, 0.5);
            assert_eq!(word(&verdict), expected, "{series:?} after {elapsed} s");
        }
    }
}
