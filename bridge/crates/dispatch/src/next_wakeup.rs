//! Time of the next timed work of the scheduler: a `notBefore` that comes or a queue timeout that ends.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// The earliest such time. Initially due, so that the first round checks.
#[derive(Debug)]
pub(crate) struct NextWakeup(Mutex<Timestamp>);

impl NextWakeup {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Timestamp::MIN))
    }

    /// Returns true if the time has come, and then clears it; times added from now on count.
    pub(crate) fn take_due(&self, now: Timestamp) -> bool {
        let mut next = self.lock();
        let due = *next <= now;
        if due {
            *next = Timestamp::MAX;
        }
        due
    }

    /// Moves the wakeup forward to `moment` if that is earlier.
    pub(crate) fn add(&self, moment: Timestamp) {
        let mut next = self.lock();
        *next = moment.min(*next);
    }

    /// Time left until the wakeup; zero if it has passed.
    pub(crate) fn pause(&self, now: Timestamp) -> Duration {
        let left = self.lock().duration_since(now);
        Duration::try_from(left).unwrap_or(Duration::ZERO)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_during_a_round_is_not_lost() {
        let next_wakeup = NextWakeup::new();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(next_wakeup.take_due(at(10)));
        next_wakeup.add(at(20));
        next_wakeup.add(at(30));
        assert!(!next_wakeup.take_due(at(19)));
        assert_eq!(next_wakeup.pause(at(19)), Duration::from_secs(1));
        assert!(next_wakeup.take_due(at(20)));
        assert!(!next_wakeup.take_due(at(1_000)));
    }
}
