//! Tickets that each open one event stream. Those of a store with one node are in memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use forge_base::digest::Digest;
use forge_base::time;

/// Maximum unused tickets, and those of one owner among them.
pub const MOST: usize = 4096;
pub const MOST_OF_ONE: usize = MOST / 8;

/// Lifetime of a ticket.
pub const LIFE: Duration = Duration::from_secs(60);
/// Longest time from now to the end of a ticket: clocks of nodes differ a little. One that ends later was issued before the
/// clock was set back.
pub const MAX_LEFT: Duration = Duration::from_secs(2 * 60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub hash: Digest,
    /// Hash of the token that requested the ticket; `None` if no tokens are configured.
    pub owner: Option<Digest>,
    pub until: Timestamp,
}

impl Ticket {
    pub fn is_valid(&self, now: Timestamp) -> bool {
        !time::has_come(self.until, now, MAX_LEFT)
    }
}

/// Unused tickets.
#[derive(Debug, Default)]
pub struct Tickets(Mutex<HashMap<Digest, Ticket>>);

impl Tickets {
    /// False if there are too many already.
    pub fn keep(&self, ticket: Ticket, now: Timestamp) -> bool {
        let mut tickets = self.tickets();
        let is_full = |tickets: &HashMap<Digest, Ticket>| {
            let of_one = tickets.values().filter(|one| one.owner == ticket.owner);
            tickets.len() >= MOST || ticket.owner.is_some() && of_one.count() >= MOST_OF_ONE
        };
        if is_full(&tickets) {
            tickets.retain(|_, ticket| ticket.is_valid(now));
            if is_full(&tickets) {
                return false;
            }
        }
        tickets.insert(ticket.hash, ticket);
        true
    }

    /// Removes a ticket, which can be used once; `None` if it is unknown or expired.
    pub fn take(&self, hash: &Digest, now: Timestamp) -> Option<Ticket> {
        let ticket = self.tickets().remove(hash)?;
        ticket.is_valid(now).then_some(ticket)
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<Digest, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
