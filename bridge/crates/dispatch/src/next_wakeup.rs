//! When the queue next has something to do by the clock: a start time that comes or a wait that ends.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// The earliest such moment. Starts as due, so that the first round looks.
#[derive(Debug)]
pub(crate) struct NextWakeup(Mutex<Timestamp>);

impl NextWakeup {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Timestamp::MIN))
    }

    /// Whether the moment has come. If so it is forgotten, and what is added from now on counts.
    pub(crate) fn take_due(&self, now: Timestamp) -> bool {
        let mut next = self.lock();
        let due = *next <= now;
        if due {
            *next = Timestamp::MAX;
        }
        due
    }

    /// Nothing later than this moment may be missed.
    pub(crate) fn add(&self, moment: Timestamp) {
        let mut next = self.lock();
        *next = moment.min(*next);
    }

    /// How long until the moment.
    pub(crate) fn pause(&self, now: Timestamp) -> Duration {
        let left = self.lock().duration_since(now);
        // A moment that has passed leaves no pause.
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
        let agenda = NextWakeup::new();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(agenda.take_due(at(10)));
        agenda.add(at(20));
        agenda.add(at(30));
        assert!(!agenda.take_due(at(19)));
        assert_eq!(agenda.pause(at(19)), Duration::from_secs(1));
        assert!(agenda.take_due(at(20)));
        assert!(!agenda.take_due(at(1_000)));
    }
}
