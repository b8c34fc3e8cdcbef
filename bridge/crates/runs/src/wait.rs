//! Waits for trouble that no agent causes: how long each lasts, and when they are over. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use forge_base::time;

/// Delay after the first failure; it doubles up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// Tries of a repository that is not there, and the delay after the first; it grows by itself.
const ABSENT_TRIES: u32 = 3;
const ABSENT_DELAY: Duration = Duration::from_secs(5);

/// Source of the trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The remote is away, slow, or cannot be written at the moment.
    Remote,
    /// The remote says that there is no such repository, or a local folder is gone.
    Absent,
    /// No adapter takes the work at the moment.
    Adapter,
    /// The attempt ended for a reason that its agent did not cause.
    Attempt,
    /// The disk of the runs is nearly full.
    Disk,
}

/// Failure that can pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    pub cause: Cause,
    pub reason: String,
    /// Shortest delay that the other side asks for.
    pub hint: Option<Duration>,
}

impl Trouble {
    pub fn new(cause: Cause, reason: impl Into<String>) -> Self {
        Self {
            cause,
            reason: reason.into(),
            hint: None,
        }
    }
}

/// Wait of a task or a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    pub cause: Cause,
    pub reason: String,
    /// Beginning of the trouble, from which patience counts.
    pub since: Timestamp,
    /// Time of the next try.
    pub until: Timestamp,
    /// Failures with this cause in a row.
    pub tries: u32,
}

impl Wait {
    /// The wait after a failure at `at`, with the next try at `until`.
    pub(crate) fn after(
        before: Option<Self>,
        (cause, reason): (Cause, &str),
        at: Timestamp,
        until: Timestamp,
    ) -> Self {
        let tries = before.as_ref().filter(|wait| wait.cause == cause);
        Self {
            cause,
            reason: reason.to_owned(),
            until,
            tries: tries.map_or(1, |wait| wait.tries.saturating_add(1)),
            since: before.map_or(at, |wait| wait.since),
        }
    }

    /// Time of the next try after a further failure; `None` if there is none, since waiting has not helped.
    pub(crate) fn next(
        before: Option<&Self>,
        trouble: &Trouble,
        now: Timestamp,
        patience: Duration,
    ) -> Option<Timestamp> {
        let tries = before.filter(|wait| wait.cause == trouble.cause);
        let tries = tries.map_or(0, |wait| wait.tries);
        let end = time::after(before.map_or(now, |wait| wait.since), patience);
        let delay = match trouble.cause {
            Cause::Absent if tries + 1 >= ABSENT_TRIES => return None,
            Cause::Absent => ABSENT_DELAY * (tries + 1),
            Cause::Remote | Cause::Adapter | Cause::Attempt | Cause::Disk => {
                FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST)
            }
        };
        let delay = trouble.hint.map_or(delay, |hint| hint.max(delay));
        (now < end).then(|| whole_ms(time::after(now, delay).min(end)))
    }
}

/// The time as events have it, so that their fold is the state.
pub(crate) fn whole_ms(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the tries after the first failure at 0, in seconds.
    fn tries(cause: Cause, hint: Option<u64>, patience: u64) -> Vec<i64> {
        let trouble = Trouble {
            hint: hint.map(Duration::from_secs),
            ..Trouble::new(cause, "away")
        };
        let (mut now, mut wait, mut times) = (Timestamp::UNIX_EPOCH, None, Vec::new());
        let patience = Duration::from_secs(patience);
        while let Some(until) = Wait::next(wait.as_ref(), &trouble, now, patience) {
            let next = Wait::after(wait.take(), (cause, "away"), now, until);
            wait = Some(next);
            times.push(until.as_second());
            now = until;
        }
        times
    }

    #[test]
    fn waits_grow_to_the_end_of_patience() {
        assert_eq!(tries(Cause::Remote, None, 20), [1, 3, 7, 15, 20]);
        assert_eq!(tries(Cause::Attempt, Some(6), 20), [6, 12, 18, 20]);
        assert_eq!(tries(Cause::Adapter, None, 0), [0; 0]);
        let day = tries(Cause::Remote, None, 24 * 3600);
        assert_eq!(day.last(), Some(&(24 * 3600)));
        assert!(day.len() < 300, "{}", day.len());
    }

    #[test]
    fn a_repository_that_is_not_there_is_tried_three_times() {
        assert_eq!(tries(Cause::Absent, None, 24 * 3600), [5, 15]);
    }

    #[test]
    fn another_cause_begins_with_short_waits_and_does_not_extend_patience() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let before = Wait::after(None, (Cause::Remote, "away"), at(0), at(1));
        let before = Wait::after(Some(before), (Cause::Remote, "away"), at(1), at(3));
        assert_eq!((before.tries, before.since), (2, at(0)));
        let trouble = Trouble::new(Cause::Adapter, "busy");
        let patience = Duration::from_secs(10);
        let next = Wait::next(Some(&before), &trouble, at(3), patience);
        assert_eq!(next, Some(at(4)));
        let next = Wait::next(Some(&before), &trouble, at(10), patience);
        assert_eq!(next, None);
    }
}
