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

impl SpendingProperty {
    /// Value of a day, as `Day` has it.
    pub fn day(at: Timestamp) -> String {
        at.to_zoned(TimeZone::UTC).date().to_string()
    }
}
