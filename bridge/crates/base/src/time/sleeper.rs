//! Sleeps until stored times, which end early if the wall clock is set.

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::{Instant, sleep};

use super::{Clock, Moment};

/// Longest time until a step is noticed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Smallest difference of the clocks between two checks that is a step. One that is slewed makes 0.5 ms at most.
const MIN_STEP: Duration = Duration::from_millis(500);

/// Sleep of one worker whose next work is due by the wall clock. A suspended machine is a step, too.
#[derive(Debug)]
pub struct Sleeper {
    clock: Clock,
    /// Last comparison of the clocks.
    checked: Moment,
}

impl Sleeper {
    /// Notices steps from now on.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            checked: clock.moment(),
        }
    }

    /// Returns after this time, or with the size of the step within a second after the clock was set, also if it was set
    /// between two sleeps. Cancel safe.
    pub async fn sleep(&mut self, wait: Duration) -> Option<SignedDuration> {
        // Beyond the range of the clock it ends by a step only.
        let end = Instant::now().checked_add(wait);
        loop {
            if let Some(step) = self.step() {
                return Some(step);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match left.unwrap_or(CHECK_INTERVAL) {
                Duration::ZERO => return None,
                left => sleep(left.min(CHECK_INTERVAL)).await,
            }
        }
    }

    /// Size of the step since the last check.
    fn step(&mut self) -> Option<SignedDuration> {
        let now = self.clock.moment();
        let passed =
            SignedDuration::try_from(self.checked.until(now)).unwrap_or(SignedDuration::MAX);
        let step = now
            .at
            .duration_since(self.checked.at)
            .saturating_sub(passed);
        self.checked = now;
        (step.unsigned_abs() >= MIN_STEP).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_sleep_lasts_as_long_as_it_was_asked_for() {
        let mut sleeper = Sleeper::new(Clock::tokio());
        for wait in [0, 1, 999, 1_000, 90_500] {
            let (wait, begun) = (Duration::from_millis(wait), Instant::now());
            assert_eq!(sleeper.sleep(wait).await, None);
            assert_eq!(begun.elapsed(), wait);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_ends_the_sleep_within_a_second() {
        let clock = Clock::tokio();
        let mut sleeper = Sleeper::new(clock);
        for step in [-HOUR, HOUR, SignedDuration::from_millis(-600)] {
            let begun = Instant::now();
            let set = async {
                sleep(Duration::from_millis(2_300)).await;
                clock.set(step);
            };
            let (woken, ()) = tokio::join!(sleeper.sleep(Duration::MAX), set);
            assert_eq!(woken, Some(step));
            assert_eq!(begun.elapsed(), Duration::from_secs(3));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_between_two_sleeps_is_noticed_and_a_slow_clock_is_none() {
        let clock = Clock::tokio();
        let mut sleeper = Sleeper::new(clock);
        advance(Duration::from_secs(7)).await;
        clock.set(-HOUR);
        assert_eq!(sleeper.sleep(Duration::from_secs(60)).await, Some(-HOUR));
        let slewing = async {
            for _ in 0..60 {
                sleep(Duration::from_secs(1)).await;
                clock.set(SignedDuration::from_millis(-100));
            }
        };
        let (woken, ()) = tokio::join!(sleeper.sleep(Duration::from_secs(60)), slewing);
        assert_eq!(woken, None);
    }
}
