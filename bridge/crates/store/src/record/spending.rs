//! Usage of dispatches that have ended, kept as long as they are.

use serde::{Deserialize, Serialize};

use super::SignalSums;

/// Usage of a dispatch over all its attempts, of which something is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spending {
    /// As the runtime named it, otherwise as it was asked for.
    pub model: Option<String>,
    pub tokens_in: Option<u64>,
    pub tokens_out: Option<u64>,
    pub cost_micros: Option<u64>,
}

/// Usage added up by the values of each property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpendingSums {
    /// Day of the end, in UTC.
    pub by_day: SignalSums,
    pub by_adapter: SignalSums,
    pub by_agent: SignalSums,
    pub by_model: SignalSums,
}
