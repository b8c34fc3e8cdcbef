//! Time of the next timed work of the scheduler: a `notBefore` that comes or a queue timeout that ends.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use forge_base::time;

/// The earliest such time. Initially due, so that the first round checks.
#[derive(Debug)]
pub(crate) struct NextWakeup {
    next: Mutex<Timestamp>,
    /// Longest time until the next check that a round asks for; one that is further away was set before the clock was
    /// set back, and is due.
    max_poll: Duration,
}

impl NextWakeup {
    pub(crate) fn new(max_poll: Duration) -> Self {
        Self {
            next: Mutex::new(Timestamp::MIN),
            max_poll,
        }
    }

    /// Returns true if the time has come, and then clears it; times added from now on count.
    pub(crate) fn take_due(&self, now: Timestamp) -> bool {
        let mut next = self.lock();
        let due = time::has_come(*next, now, self.max_poll);
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
        let next = *self.lock();
        match time::has_come(next, now, self.max_poll) {
            true => Duration::ZERO,
            false => time::left(now, next),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Timestamp> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_during_a_round_is_not_lost() {
        let next_wakeup = NextWakeup::new(Duration::from_secs(60));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(next_wakeup.take_due(at(10)));
        next_wakeup.add(at(20));
        next_wakeup.add(at(30));
        assert!(!next_wakeup.take_due(at(19)));
        assert_eq!(next_wakeup.pause(at(19)), Duration::from_secs(1));
        assert!(next_wakeup.take_due(at(20)));
        next_wakeup.add(at(80));
        assert!(!next_wakeup.take_due(at(79)));
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_check() {
        let next_wakeup = NextWakeup::new(Duration::from_secs(60));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(next_wakeup.take_due(at(4_000)));
        next_wakeup.add(at(4_060));
        assert_eq!(next_wakeup.pause(at(4_000)), Duration::from_secs(60));
        assert_eq!(next_wakeup.pause(at(400)), Duration::ZERO);
        assert!(next_wakeup.take_due(at(400)));
    }
}
