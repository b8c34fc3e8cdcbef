//! Usage of dispatches that have ended, kept as long as they are, and what it is added up by.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// Usage of a dispatch over all its attempts, of which something is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spending {
    /// As the runtime named it, otherwise as it was asked for.
    pub model: Option<String>,
    pub tokens_in: Option<u64>,
    pub tokens_out: Option<u64>,
    pub cost_micros: Option<u64>,
}

/// Property whose values usage is added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpendingProperty {
    /// Day of the end, in UTC.
    Day,
    Adapter,
    Agent,
    Model,
}

/// Names of days. Of times in order most have the day of the one before, whose name is kept.
#[derive(Debug, Default)]
pub struct Days {
    number: Option<i64>,
    name: String,
}

impl Days {
    /// Value of [`SpendingProperty::Day`].
    pub fn name(&mut self, at: Timestamp) -> &str {
        let number = at.as_second().div_euclid(24 * 60 * 60);
        if self.number != Some(number) {
            self.number = Some(number);
            self.name = at.to_zoned(TimeZone::UTC).date().to_string();
        }
        &self.name
    }
}
