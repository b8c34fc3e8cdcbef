//! Time format on the wire and in the store: RFC 3339, UTC, milliseconds, `Z`. Also the clock of the workers, which
//! tests can move. *Invariant: the wall clock can be set at any moment. A duration within the process is that of two
//! [`Moment`]s, a wait for a stored time is a [`Sleeper`]'s, and a stored time that is further away than its wait was set
//! before the clock was set back.*

mod sleeper;

pub use sleeper::Sleeper;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serializer;
use tokio::time::Instant;

/// Source of the current time. Cheap to copy.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// System clock: follows its adjustments, and includes time asleep.
    #[default]
    System,
    /// System clock, corrected to that of the database which several bridges share.
    Corrected(&'static Offset),
    /// Wall clock driven by tokio's, so that tests with paused time can move it, and set it.
    Tokio {
        wall: Timestamp,
        since: Instant,
        set: &'static Offset,
    },
}

impl Clock {
    /// Starts at the present time and follows tokio's clock.
    pub fn tokio() -> Self {
        Clock::Tokio {
            wall: Timestamp::now(),
            since: Instant::now(),
            set: Box::leak(Box::default()),
        }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::now(),
            Clock::Corrected(offset) => offset.apply(Timestamp::now()),
            Clock::Tokio { wall, since, set } => set.apply(after(*wall, since.elapsed())),
        }
    }

    pub fn moment(&self) -> Moment {
        Moment {
            at: self.now(),
            since: Instant::now(),
        }
    }

    /// Sets the clock of a test forward, or back.
    pub fn set(&self, by: SignedDuration) {
        match self {
            Clock::System => panic!("only the clock of a test can be set"),
            Clock::Corrected(set) | Clock::Tokio { set, .. } => set.add(by),
        }
    }
}

/// A moment of this process by both clocks: the wall clock to show it, the monotonic one to measure from it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub at: Timestamp,
    since: Instant,
}

impl Moment {
    /// Time that passed until a later moment, whatever the wall clock did meanwhile.
    pub fn until(self, end: Moment) -> Duration {
        end.since.saturating_duration_since(self.since)
    }

    pub fn elapsed(self) -> Duration {
        self.since.elapsed()
    }
}

/// Measured difference of another clock to the system's; zero until it is measured.
#[derive(Debug, Default)]
pub struct Offset(AtomicI64);

impl Offset {
    /// Notes that the other clock showed `theirs` at `ours`.
    pub fn measure(&self, ours: Timestamp, theirs: Timestamp) {
        let offset = nanos(theirs).saturating_sub(nanos(ours));
        self.0.store(offset, Ordering::Relaxed);
    }

    fn add(&self, by: SignedDuration) {
        let nanos = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    pub fn get(&self) -> SignedDuration {
        SignedDuration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn apply(&self, ours: Timestamp) -> Timestamp {
        ours.saturating_add(self.get()).unwrap_or(ours)
    }
}

/// `timestamp` plus `wait`, capped at the maximum timestamp.
pub fn after(timestamp: Timestamp, wait: Duration) -> Timestamp {
    SignedDuration::try_from(wait)
        .ok()
        .and_then(|wait| timestamp.checked_add(wait).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Age of a stored time; zero if it is ahead, because the clock was set back.
pub fn wall_age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

/// Time left until a stored time; zero if it has come.
pub fn left(now: Timestamp, until: Timestamp) -> Duration {
    wall_age(now, until)
}

/// Stored end of a wait, which was at most this long when it began: it is not further away than that.
pub fn at_most(until: Timestamp, now: Timestamp, wait: Duration) -> Timestamp {
    until.min(after(now, wait))
}

/// True if the end of a wait has come, or is further away than the wait was when it began.
pub fn has_come(until: Timestamp, now: Timestamp, wait: Duration) -> bool {
    until <= now || until > after(now, wait)
}

/// Nanoseconds since 1970; times beyond the year 2262 are cut to it.
pub fn nanos(time: Timestamp) -> i64 {
    let clamped = time
        .as_nanosecond()
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(clamped).expect("it was clamped to the range")
}

/// Time of [`nanos`].
pub fn from_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).expect("jiff reaches further than 64 bits")
}

/// For example `2026-11-21T02:41:12.123Z`.
pub fn format(timestamp: Timestamp) -> String {
    format!("{timestamp:.3}")
}

/// For `#[serde(serialize_with)]`.
pub fn millis<S: Serializer>(timestamp: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{timestamp:.3}"))
}

/// For `#[serde(serialize_with)]` on an optional time.
pub fn millis_option<S: Serializer>(
    timestamp: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match timestamp {
        Some(timestamp) => millis(timestamp, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Clock, Offset};

    #[tokio::test(start_paused = true)]
    async fn a_clock_of_tokio_goes_as_tokio_does() {
        let clock = Clock::tokio();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = super::wall_age(start, clock.now());
        assert_eq!(passed, Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_duration_does_not_follow_the_wall_clock() {
        let clock = Clock::tokio();
        for set in [-3600, 3600] {
            let begun = clock.moment();
            tokio::time::advance(Duration::from_secs(2)).await;
            clock.set(jiff::SignedDuration::from_secs(set));
            assert_eq!(begun.elapsed(), Duration::from_secs(2));
            assert_eq!(begun.until(clock.moment()), Duration::from_secs(2));
            let shown = clock.now().duration_since(begun.at);
            assert_eq!(shown, jiff::SignedDuration::from_secs(set + 2));
        }
    }

    #[test]
    fn a_wait_is_never_longer_than_it_was_when_it_began() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let wait = Duration::from_secs(60);
        for (until, has_come, left) in [
            (99, true, 0),
            (100, true, 0),
            (101, false, 1),
            (160, false, 60),
            (161, true, 60),
            (3760, true, 60),
        ] {
            assert_eq!(
                super::has_come(at(until), at(100), wait),
                has_come,
                "{until}"
            );
            let end = super::at_most(at(until), at(100), wait);
            assert_eq!(super::left(at(100), end).as_secs(), left, "{until}");
        }
    }

    #[test]
    fn a_corrected_clock_shows_the_other_time() {
        let offset: &'static Offset = Box::leak(Box::default());
        let ours = jiff::Timestamp::now();
        offset.measure(ours, super::after(ours, Duration::from_secs(3600)));
        let ahead = super::wall_age(ours, Clock::Corrected(offset).now());
        assert!(ahead >= Duration::from_secs(3600) && ahead < Duration::from_secs(3700));
    }

    #[test]
    fn milliseconds_are_always_written() {
        let at = "2026-11-21T02:41:12Z".parse().unwrap();
        assert_eq!(super::format(at), "2026-11-21T02:41:12.000Z");
    }
}
