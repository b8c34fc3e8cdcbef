//! Deliveries by receiver: the query for those that are due, and open circuit breakers.

use std::collections::HashSet;

use jiff::Timestamp;

use forge_base::id::DeliveryId;

#[derive(Clone, Debug)]
pub struct DueQuery {
    pub now: Timestamp,
    /// Origins to skip: at their limit, or with an open breaker.
    pub exclude: Vec<String>,
    pub per_origin: usize,
    pub limit: usize,
    /// Deliveries that this process is sending already.
    pub in_flight: HashSet<DeliveryId>,
}

/// Limit of breakers kept, in memory and in the store.
pub const MAX_BREAKERS: usize = 4096;

/// Open circuit breaker of one receiver: no attempt is made until `until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    pub origin: String,
    /// Time at which the breaker opened.
    pub opened_at: Timestamp,
    /// Earliest time of the next attempt.
    pub until: Timestamp,
    /// Consecutive openings; each doubles the time until the next attempt.
    pub times: u32,
    /// Last error.
    pub reason: String,
}
