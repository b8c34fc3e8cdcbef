//! Time format on the wire and in the store: RFC 3339, UTC, milliseconds, `Z`. Also the clock of the workers, which
//! tests can move.

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
    /// Wall clock driven by tokio's, so that tests with paused time can move it.
    Tokio { wall: Timestamp, since: Instant },
}

impl Clock {
    /// Starts at the present time and follows tokio's clock.
    pub fn tokio() -> Self {
        Clock::Tokio {
            wall: Timestamp::now(),
            since: Instant::now(),
        }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::now(),
            Clock::Corrected(offset) => offset.apply(Timestamp::now()),
            Clock::Tokio { wall, since } => after(*wall, since.elapsed()),
        }
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

/// Time from `start` to `end`; zero if `end` is earlier.
pub fn between(start: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(start)).unwrap_or(Duration::ZERO)
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
        let passed = super::between(start, clock.now());
        assert_eq!(passed, Duration::from_secs(3600));
    }

    #[test]
    fn a_corrected_clock_shows_the_other_time() {
        let offset: &'static Offset = Box::leak(Box::default());
        let ours = jiff::Timestamp::now();
        offset.measure(ours, super::after(ours, Duration::from_secs(3600)));
        let ahead = super::between(ours, Clock::Corrected(offset).now());
        assert!(ahead >= Duration::from_secs(3600) && ahead < Duration::from_secs(3700));
    }

    #[test]
    fn milliseconds_are_always_written() {
        let at = "2026-11-21T02:41:12Z".parse().unwrap();
        assert_eq!(super::format(at), "2026-11-21T02:41:12.000Z");
    }
}
