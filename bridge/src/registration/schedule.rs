//! Schedule of registration rounds: a fixed interval while the registry answers, exponential backoff up to
//! that interval while it is unavailable. Pure except for the jitter of the `backoff` crate.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

use super::endpoint::Reply;

/// First wait after a failure.
const FIRST: Duration = Duration::from_secs(1);

pub(super) struct Schedule {
    every: Duration,
    waits: ExponentialBackoff,
}

impl Schedule {
    pub(super) fn new(every: Duration) -> Self {
        Self {
            every,
            waits: waits(FIRST.min(every), every),
        }
    }

    /// Wait after a round with these answers.
    pub(super) fn after(&mut self, replies: &[Reply]) -> Duration {
        let away = replies.iter().filter_map(|reply| match reply {
            Reply::Away { retry_after, .. } => Some(retry_after.unwrap_or_default()),
            // An earlier retry would get the same answer.
            Reply::Done | Reply::Refused(_) => None,
        });
        let Some(asked_for) = away.max() else {
            self.waits.reset();
            return self.every;
        };
        let wait = self.waits.next_backoff().unwrap_or(self.every);
        wait.max(asked_for).min(self.every)
    }
}

/// Backoff that doubles from `first` to `longest`, without a limit on the number of attempts.
pub(super) fn waits(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBackoffBuilder::new()
        .with_initial_interval(first)
        .with_multiplier(2.0)
        .with_randomization_factor(0.2)
        .with_max_interval(longest)
        .with_max_elapsed_time(None)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(60);

    fn away(retry_after: Option<Duration>) -> Reply {
        Reply::Away {
            why: "away".into(),
            retry_after,
        }
    }

    #[test]
    fn what_was_answered_is_repeated_regularly() {
        let mut schedule = Schedule::new(EVERY);
        for replies in [
            vec![],
            vec![Reply::Done],
            vec![Reply::Done, Reply::Refused(400)],
        ] {
            assert_eq!(schedule.after(&replies), EVERY);
        }
    }

    #[test]
    fn an_outage_is_asked_about_sooner_then_ever_later_and_forgotten_when_it_ends() {
        let mut schedule = Schedule::new(EVERY);
        for _ in 0..2 {
            let waits: Vec<_> = (0..12)
                .map(|_| schedule.after(&[Reply::Done, away(None)]))
                .collect();
            for (wait, doubled) in waits.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) {
                let plain = wait.as_secs_f64() / doubled;
                assert!((0.8..=1.2).contains(&plain), "{waits:?}");
            }
            assert!(waits.iter().all(|wait| *wait <= EVERY), "{waits:?}");
            assert_eq!(schedule.after(&[Reply::Done]), EVERY);
        }
    }

    #[test]
    fn a_registry_that_says_when_is_asked_then_but_not_later_than_regularly() {
        let mut schedule = Schedule::new(EVERY);
        for (asked, expected) in [(20, 20), (100_000, 60)] {
            let reply = away(Some(Duration::from_secs(asked)));
            assert_eq!(schedule.after(&[reply]), Duration::from_secs(expected));
        }
    }

    #[test]
    fn a_short_period_bounds_the_first_wait() {
        let mut schedule = Schedule::new(Duration::from_millis(50));
        assert!(schedule.after(&[away(None)]) <= Duration::from_millis(50));
    }
}
