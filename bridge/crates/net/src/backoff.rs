//! Retry schedule: the delay before the next attempt as a pure function of the attempt number, the elapsed time, the
//! policy and a random number.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::{Deserialize, Serialize};

use forge_base::time;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60 * 60);
const DEFAULT_ELAPSED: Duration = Duration::from_secs(72 * 60 * 60);
const COMPAT_RETRIES: u32 = 3;
const JITTER: f64 = 0.2;

/// Cap on the delay that a receiver can request.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// End of retries. As JSON `"default"`, `"compat"` or `{"maxElapsedSeconds": 60.0}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// 72 hours after the first attempt became due.
    #[default]
    Default,
    /// After exactly three retries.
    Compat,
    /// This long after the first attempt became due.
    #[serde(untagged, with = "max_elapsed")]
    MaxElapsed(Duration),
}

mod max_elapsed {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Limit {
        max_elapsed_seconds: f64,
    }

    pub(super) fn serialize<S: Serializer>(limit: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let max_elapsed_seconds = limit.as_secs_f64();
        Limit {
            max_elapsed_seconds,
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let limit = Limit::deserialize(from)?;
        // Values that do not fit mean no limit.
        let limit = Duration::try_from_secs_f64(limit.max_elapsed_seconds);
        Ok(limit.unwrap_or(Duration::MAX))
    }
}

impl Policy {
    /// True if an attempt can still be made this long after the first one became due.
    pub fn permits(self, elapsed: Duration) -> bool {
        match self {
            Policy::Default => elapsed <= DEFAULT_ELAPSED,
            Policy::Compat => true,
            Policy::MaxElapsed(limit) => elapsed <= limit,
        }
    }

    /// Latest end after the first attempt became due, if no attempt is made meanwhile.
    pub fn patience(self) -> Duration {
        match self {
            Policy::Default | Policy::Compat => DEFAULT_ELAPSED,
            Policy::MaxElapsed(limit) => limit,
        }
    }

    fn permits_retry_after(self, attempt: u32) -> bool {
        match self {
            Policy::Default | Policy::MaxElapsed(_) => true,
            Policy::Compat => attempt <= COMPAT_RETRIES,
        }
    }
}

/// Delay after the `attempt`-th attempt (counted from 1): 1 s, 2 s, 4 s, doubling to one hour, each ±20 % by `random`
/// (0 to 1). `None` if the policy allows no further attempt.
pub fn delay(attempt: u32, elapsed: Duration, policy: Policy, random: f64) -> Option<Duration> {
    if !policy.permits_retry_after(attempt) {
        return None;
    }
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let plain = FIRST.saturating_mul(doubled).min(LONGEST);
    let wait = plain.mul_f64(1.0 - JITTER + 2.0 * JITTER * random.clamp(0.0, 1.0));
    policy.permits(elapsed.saturating_add(wait)).then_some(wait)
}

/// Delay from a `Retry-After` value in seconds or as a date, at most 24 hours; zero for a date in the past. `None` if
/// the value is neither.
pub fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // A number that overflows is above the cap.
        value
            .parse()
            .map_or(LONGEST_RETRY_AFTER, Duration::from_secs)
    } else {
        let at = rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
        time::left(now, at)
    };
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(attempt: u32) -> Option<u64> {
        delay(attempt, Duration::ZERO, Policy::Default, 0.5).map(|d| d.as_secs())
    }

    #[test]
    fn policies_have_three_spellings() {
        for (policy, json) in [
            (Policy::Default, r#""default""#),
            (Policy::Compat, r#""compat""#),
            (
                Policy::MaxElapsed(Duration::from_secs(60)),
                r#"{"maxElapsedSeconds":60.0}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&policy).unwrap(), json);
            assert_eq!(serde_json::from_str::<Policy>(json).unwrap(), policy);
        }
    }

    #[test]
    fn the_first_retries_are_the_seeds_and_the_rest_doubles_to_an_hour() {
        let waits: Vec<_> = (1..=14).filter_map(plain).collect();
        assert_eq!(
            waits,
            [
                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600
            ]
        );
        assert_eq!(plain(u32::MAX), Some(3600));
    }

    #[test]
    fn compat_is_exactly_three_retries_however_long_they_take() {
        let year = Duration::from_secs(31_536_000);
        for (attempt, retried) in [(1, true), (2, true), (3, true), (4, false), (5, false)] {
            let wait = delay(attempt, year, Policy::Compat, 0.5);
            assert_eq!(wait.is_some(), retried, "attempt {attempt}");
        }
    }

    #[test]
    fn nothing_is_attempted_after_the_limit() {
        let five = Policy::MaxElapsed(Duration::from_secs(5));
        let at = Duration::from_secs;
        assert_eq!(delay(1, at(0), five, 0.5), Some(at(1)));
        assert_eq!(delay(2, at(1), five, 0.5), Some(at(2)));
        assert_eq!(delay(3, at(3), five, 0.5), None);
        assert_eq!(delay(30, at(72 * 3600), Policy::Default, 0.5), None);
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = "1994-11-06T08:49:07Z".parse().unwrap();
        for (value, expected) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("86401", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("Mon, 06 Nov 2034 08:49:37 GMT", Some(86_400)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let read = retry_after(value, now).map(|d| d.as_secs());
            assert_eq!(read, expected, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn a_wait_is_within_a_fifth_of_the_schedule(attempt in 1_u32..200, random in 0.0_f64..=1.0) {
            let schedule = 2_f64.powi(attempt.min(20) as i32 - 1).min(3600.0);
            let wait = delay(attempt, Duration::ZERO, Policy::Default, random)
                .expect("72 hours have not gone by")
                .as_secs_f64();
            prop_assert!(wait >= schedule * 0.8 - 1e-6 && wait <= schedule * 1.2 + 1e-6);
        }

        #[test]
        fn no_attempt_falls_after_the_limit(
            limit in 0_u64..1_000_000,
            elapsed in 0_u64..1_000_000,
            attempt in 0_u32..200,
            random in 0.0_f64..=1.0,
        ) {
            let (limit, elapsed) = (Duration::from_secs(limit), Duration::from_secs(elapsed));
            if let Some(wait) = delay(attempt, elapsed, Policy::MaxElapsed(limit), random) {
                prop_assert!(elapsed + wait <= limit);
            }
        }

        #[test]
        fn the_schedule_ends(random in 0.0_f64..=1.0) {
            let mut elapsed = Duration::ZERO;
            let mut attempts = 1;
            while let Some(wait) = delay(attempts, elapsed, Policy::Default, random) {
                elapsed += wait;
                attempts += 1;
                prop_assert!(attempts < 200);
            }
            prop_assert!(elapsed > Duration::from_secs(70 * 3600));
        }

        #[test]
        fn any_text_is_a_wait_of_at_most_a_day_or_none(value in ".{0,40}") {
            if let Some(wait) = retry_after(&value, Timestamp::UNIX_EPOCH) {
                prop_assert!(wait <= LONGEST_RETRY_AFTER);
            }
        }
    }
}
