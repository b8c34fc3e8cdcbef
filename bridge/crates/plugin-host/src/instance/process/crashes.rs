//! Decision about the restart of a process that ended. Pure but for the jitter of the `backoff` crate.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

use serde::{Deserialize, Serialize};

/// `[plugin.restart]` of the configuration: restart policy for adapters whose process ends.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// Wait before the second restart within the window, doubled each time. The first is immediate. Default: 100 ms.
    #[serde(with = "forge_base::duration")]
    pub backoff: Duration,
    /// Longest wait. Default: 30 s.
    #[serde(with = "forge_base::duration")]
    pub backoff_max: Duration,
    /// Number of crashes within the window that quarantines the adapter. Default: 5.
    pub crash_limit: usize,
    #[serde(with = "forge_base::duration")]
    pub crash_window: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
            crash_limit: 5,
            crash_window: Duration::from_secs(60),
        }
    }
}

/// Recent crashes of one adapter's process, and the waits between restarts.
pub(crate) struct Crashes {
    limit: usize,
    window: Duration,
    waits: ExponentialBackoff,
    recent: VecDeque<Instant>,
}

/// Action after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Restart after this time.
    Restart(Duration),
    /// No restart: carries the number of crashes within the window.
    Quarantine(usize),
}

impl Crashes {
    pub(crate) fn new(config: &Restart) -> Self {
        Self {
            limit: config.crash_limit.max(1),
            window: config.crash_window,
            waits: ExponentialBackoffBuilder::new()
                .with_initial_interval(config.backoff)
                .with_multiplier(2.0)
                .with_randomization_factor(0.2)
                .with_max_interval(config.backoff_max)
                .with_max_elapsed_time(None)
                .build(),
            recent: VecDeque::new(),
        }
    }

    /// Records a crash and returns the action to take.
    pub(crate) fn note(&mut self, now: Instant) -> Next {
        let window = self.window;
        self.recent
            .retain(|then| now.saturating_duration_since(*then) < window);
        self.recent.push_back(now);
        match self.recent.len() {
            count if count >= self.limit => Next::Quarantine(count),
            1 => {
                self.waits.reset();
                Next::Restart(Duration::ZERO)
            }
            _ => Next::Restart(self.waits.next_backoff().unwrap_or(self.waits.max_interval)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_restart_is_at_once_the_next_ever_later_the_fifth_never() {
        let mut crashes = Crashes::new(&Restart::default());
        let now = Instant::now();
        assert_eq!(crashes.note(now), Next::Restart(Duration::ZERO));
        for expected in [100, 200, 400] {
            let Next::Restart(wait) = crashes.note(now) else {
                panic!("too early");
            };
            let wait = wait.as_millis();
            assert!(
                (expected * 8 / 10..=expected * 12 / 10).contains(&wait),
                "{wait}"
            );
        }
        assert_eq!(crashes.note(now), Next::Quarantine(5));
    }

    #[test]
    fn ends_that_are_long_ago_do_not_count() {
        let mut crashes = Crashes::new(&Restart::default());
        let start = Instant::now();
        for n in 0..100 {
            let next = crashes.note(start + n * 20 * SECOND);
            assert!(matches!(next, Next::Restart(_)), "{n}: {next:?}");
        }
    }
}
