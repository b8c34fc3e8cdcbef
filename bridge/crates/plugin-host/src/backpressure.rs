//! Telling an emitter that comes back after `Full` from one that does not care. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How many different refused events are remembered, to tell a retry from a loss.
const REMEMBERED: usize = 1024;

/// Several times the longest wait of the SDK between two attempts.
pub(super) const COMES_BACK_WITHIN: Duration = Duration::from_millis(250);

/// The events that were answered `Full` and have not been taken since. An emitter that takes the answer
/// seriously comes back soon with the same bytes; one that does not has lost them.
#[derive(Default)]
pub(super) struct Backpressure {
    prints: HashMap<u64, Attempt>,
    unremembered: u64,
    /// No attempt is older.
    oldest: Option<Instant>,
    hasher: RandomState,
}

struct Attempt {
    last: Instant,
    repeated: bool,
}

impl Backpressure {
    pub(super) fn is_empty(&self) -> bool {
        self.prints.is_empty() && self.unremembered == 0
    }

    pub(super) fn note(&mut self, event: &[u8], now: Instant) {
        let print = self.hasher.hash_one(event);
        self.oldest.get_or_insert(now);
        if let Some(attempt) = self.prints.get_mut(&print) {
            *attempt = Attempt {
                last: now,
                repeated: true,
            };
        } else if self.prints.len() < REMEMBERED {
            let attempt = Attempt {
                last: now,
                repeated: false,
            };
            self.prints.insert(print, attempt);
        } else {
            self.unremembered += 1;
        }
    }

    /// Whether this event was refused before.
    pub(super) fn knows(&self, event: &[u8]) -> bool {
        self.prints.contains_key(&self.hasher.hash_one(event))
    }

    pub(super) fn forget(&mut self, event: &[u8]) {
        self.prints.remove(&self.hasher.hash_one(event));
        if self.is_empty() {
            self.oldest = None;
        }
    }

    /// Whether somebody has not come back in time, so that what was refused once may count as lost.
    pub(super) fn is_stale(&mut self, now: Instant) -> bool {
        let stale = |last: Instant| now.saturating_duration_since(last) >= COMES_BACK_WITHIN;
        if !self.oldest.is_some_and(stale) {
            return false;
        }
        self.oldest = self.prints.values().map(|attempt| attempt.last).min();
        self.oldest.is_none_or(stale)
    }

    /// How many are lost, leaving those whose emitter keeps coming back.
    pub(super) fn take_lost(&mut self, now: Instant) -> u64 {
        let before = self.prints.len();
        self.prints.retain(|_, attempt| {
            attempt.repeated && now.saturating_duration_since(attempt.last) < COMES_BACK_WITHIN
        });
        self.oldest = self.prints.values().map(|attempt| attempt.last).min();
        (before - self.prints.len()) as u64 + std::mem::take(&mut self.unremembered)
    }

    pub(super) fn take_all(&mut self) -> u64 {
        self.oldest = None;
        let all = self.prints.len() as u64 + std::mem::take(&mut self.unremembered);
        self.prints = HashMap::new();
        all
    }
}
