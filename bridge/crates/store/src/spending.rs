//! Sums over the usage of dispatches, by several properties at once.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::record::{SignalTotals, SpendingSums};
use crate::signals;

/// Sums while they grow. Dispatches are added newest first.
#[derive(Debug, Default)]
pub struct Summing {
    days: Days,
    by_day: signals::Summing,
    by_adapter: signals::Summing,
    by_agent: signals::Summing,
    by_model: signals::Summing,
}

impl Summing {
    /// Adds the usage of a dispatch that ended then. False if it and older ones are left out of every sum.
    pub fn add(
        &mut self,
        at: Timestamp,
        adapter: &str,
        agent: &str,
        model: Option<&str>,
        usage: &SignalTotals,
    ) -> bool {
        let day = self.days.name(at);
        let added = [
            self.by_day.add(at, Some(day), usage),
            self.by_adapter.add(at, Some(adapter), usage),
            self.by_agent.add(at, Some(agent), usage),
            self.by_model.add(at, model, usage),
        ];
        added.contains(&true)
    }

    pub fn finish(self) -> SpendingSums {
        SpendingSums {
            by_day: self.by_day.finish(),
            by_adapter: self.by_adapter.finish(),
            by_agent: self.by_agent.finish(),
            by_model: self.by_model.finish(),
        }
    }
}

/// Names of days in UTC. Of times in order most have the day of the one before, whose name is kept.
#[derive(Debug, Default)]
struct Days {
    number: Option<i64>,
    name: String,
}

impl Days {
    fn name(&mut self, at: Timestamp) -> &str {
        let number = at.as_second().div_euclid(24 * 60 * 60);
        if self.number != Some(number) {
            self.number = Some(number);
            self.name = at.to_zoned(TimeZone::UTC).date().to_string();
        }
        &self.name
    }
}
