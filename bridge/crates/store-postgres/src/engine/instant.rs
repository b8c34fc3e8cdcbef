//! Time since the machine started, with the time that it was asleep: a lease goes on while a machine sleeps, and so must
//! the time after which its node gives it up.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
// Includes sleep there.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(CLOCK);
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        Self(Duration::from_secs(seconds) + Duration::from_nanos(nanos))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// Time that is left until a duration after this instant has passed.
    pub(crate) fn left(self, after: Duration) -> Duration {
        (self.0 + after).saturating_sub(Self::now().0)
    }
}
