//! Totals of the records of a window, by the time of their arrival.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use forge_store::record::SignalTotals;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Span of time that a total covers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Span {
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "1d")]
    Day,
    #[serde(rename = "7d")]
    Week,
    /// Calendar month in UTC.
    #[serde(rename = "month")]
    Month,
    /// The life of a session, whatever the scope.
    #[serde(rename = "session")]
    Session,
    #[serde(rename = "all-time")]
    AllTime,
}

impl Span {
    /// Length and step in seconds; `None` if the span is not a rolling one. A step that is only partly inside the span
    /// counts whole.
    fn rolling(self) -> Option<(i64, i64)> {
        match self {
            Span::Hour => Some((HOUR, MINUTE)),
            Span::Day => Some((DAY, 15 * MINUTE)),
            Span::Week => Some((7 * DAY, HOUR)),
            Span::Month | Span::Session | Span::AllTime => None,
        }
    }

    /// Earliest time that can belong to the span that ends at `at`.
    pub(crate) fn since(self, at: Timestamp) -> Timestamp {
        let seconds = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
        match self.rolling() {
            Some((length, step)) => seconds((at.as_second() - length).div_euclid(step) * step),
            None if self == Span::Month => {
                let first = at.to_zoned(TimeZone::UTC).date().first_of_month();
                let first = first.to_zoned(TimeZone::UTC);
                first.map_or(Timestamp::UNIX_EPOCH, |first| first.timestamp())
            }
            None => Timestamp::UNIX_EPOCH,
        }
    }

    /// End of the calendar month; the other spans have none.
    pub(crate) fn until(self, at: Timestamp) -> Option<Timestamp> {
        if self != Span::Month {
            return None;
        }
        let first = at.to_zoned(TimeZone::UTC).date().first_of_month();
        let next = first.checked_add(jiff::Span::new().months(1)).ok()?;
        next.to_zoned(TimeZone::UTC)
            .ok()
            .map(|next| next.timestamp())
    }

    pub(crate) fn is_rolling(self) -> bool {
        self.rolling().is_some()
    }

    /// Period that a time belongs to: the month, or one period for all times.
    pub(crate) fn period(self, at: Timestamp) -> i64 {
        match self {
            Span::Month => {
                let date = at.to_zoned(TimeZone::UTC).date();
                i64::from(date.year()) * 12 + i64::from(date.month())
            }
            Span::Hour | Span::Day | Span::Week | Span::Session | Span::AllTime => 0,
        }
    }
}

/// Window over the records of one scope value.
#[derive(Clone, Debug)]
pub struct Window {
    span: Span,
    /// Totals by step of a rolling span, else by period.
    steps: BTreeMap<i64, SignalTotals>,
}

impl Window {
    pub fn new(span: Span) -> Self {
        Self {
            span,
            steps: BTreeMap::new(),
        }
    }

    /// Adds amounts that arrived at `at`, and forgets the steps that are over by then.
    pub fn add(&mut self, at: Timestamp, amounts: &SignalTotals) {
        let (first, step) = self.bounds(at);
        self.steps = self.steps.split_off(&first);
        self.steps.entry(step).or_default().add_all(amounts);
    }

    /// Takes back amounts that were added.
    pub fn subtract(&mut self, at: Timestamp, amounts: &SignalTotals) {
        let (_, step) = self.bounds(at);
        if let Some(totals) = self.steps.get_mut(&step) {
            totals.subtract(amounts);
        }
    }

    /// Totals of the span that ends at `at`.
    pub fn totals(&self, at: Timestamp) -> SignalTotals {
        let (first, last) = self.bounds(at);
        let mut totals = SignalTotals::default();
        for (_, amounts) in self.steps.range(first..=last) {
            totals.add_all(amounts);
        }
        totals
    }

    /// First and last step of the span that ends at `at`.
    fn bounds(&self, at: Timestamp) -> (i64, i64) {
        match self.span.rolling() {
            Some((length, step)) => {
                let seconds = at.as_second();
                let first = (seconds - length).div_euclid(step);
                (first, seconds.div_euclid(step))
            }
            None => {
                let period = self.span.period(at);
                (period, period)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn one() -> SignalTotals {
        SignalTotals {
            signals: 1,
            ..SignalTotals::default()
        }
    }

    #[test]
    fn a_rolling_span_counts_a_partial_step_whole() {
        let mut window = Window::new(Span::Hour);
        window.add(at(59), &one());
        // The step of the first minute ends after the hour has begun at 60.
        assert_eq!(window.totals(at(HOUR + 59)).signals, 1);
        assert_eq!(window.totals(at(HOUR + 60)).signals, 0);
    }

    #[test]
    fn a_month_ends_with_the_month() {
        let mut window = Window::new(Span::Month);
        let last: Timestamp = "2026-11-30T23:59:59Z".parse().unwrap();
        window.add(last, &one());
        assert_eq!(window.totals(last).signals, 1);
        assert_eq!(
            window
                .totals("2026-12-01T00:00:00Z".parse().unwrap())
                .signals,
            0
        );
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut window = Window::new(Span::AllTime);
        let most = SignalTotals {
            tokens_in: u64::MAX,
            ..SignalTotals::default()
        };
        window.add(at(1), &most);
        window.add(at(2), &most);
        assert_eq!(window.totals(at(3)).tokens_in, i64::MAX as u64);
    }

    proptest! {
        /// Never less than the records of the span, and never one that is older than the span and a step.
        #[test]
        fn totals_are_those_of_the_records(mut times in prop::collection::vec(0..20 * DAY, 1..60), after in 0..2 * DAY) {
            times.sort_unstable();
            for span in [Span::Hour, Span::Day, Span::Week] {
                let (length, step) = span.rolling().unwrap();
                let mut window = Window::new(span);
                for time in &times {
                    window.add(at(*time), &one());
                }
                let now = times.last().unwrap() + after;
                let younger = |age: i64| times.iter().filter(|time| now - **time < age).count() as u64;
                let total = window.totals(at(now)).signals;
                prop_assert!(younger(length) <= total && total <= younger(length + step + 1));
            }
        }
    }
}
