//! What deliveries are asked for by, receiver by receiver, and which receivers are left alone.

use std::collections::HashSet;

use jiff::Timestamp;

use forge_base::id::DeliveryId;

#[derive(Clone, Debug)]
pub struct DueQuery {
    pub now: Timestamp,
    /// Origins that are at their limit.
    pub exclude: Vec<String>,
    pub per_origin: usize,
    pub limit: usize,
    /// Already under way in this process.
    pub in_flight: HashSet<DeliveryId>,
}

/// So many breakers are kept at most, in memory and in the store.
pub const MAX_BREAKERS: usize = 4096;

/// A receiver that is not called for the time being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    pub origin: String,
    /// When it was given up.
    pub opened_at: Timestamp,
    /// Nothing is sent before.
    pub until: Timestamp,
    /// How often it was tried in vain.
    pub times: u32,
    /// What went wrong last.
    pub reason: String,
}
