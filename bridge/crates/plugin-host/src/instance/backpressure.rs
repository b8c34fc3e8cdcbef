//! Distinguishes emitters that retry after `Full` from those that ignore it. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Limit of refused events that are remembered, to tell a retry from a loss.
const REMEMBERED: usize = 1024;

/// Time within which a retry is expected: several times the longest wait of the SDK between two attempts.
pub(crate) const COMES_BACK_WITHIN: Duration = Duration::from_millis(250);

/// Events that were answered `Full` and not accepted since. An emitter that respects the answer retries soon with the
/// same bytes; an event that is not retried is lost.
#[derive(Default)]
pub(crate) struct Backpressure {
    prints: HashMap<u64, Attempt>,
    unremembered: u64,
    /// Lower bound of the times of all attempts.
    oldest: Option<Instant>,
    hasher: RandomState,
}

struct Attempt {
    last: Instant,
    repeated: bool,
}

impl Backpressure {
    pub(crate) fn is_empty(&self) -> bool {
        self.prints.is_empty() && self.unremembered == 0
    }

    pub(crate) fn note(&mut self, event: &[u8], now: Instant) {
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

    /// True if this event was refused before.
    pub(crate) fn knows(&self, event: &[u8]) -> bool {
        self.prints.contains_key(&self.hasher.hash_one(event))
    }

    pub(crate) fn forget(&mut self, event: &[u8]) {
        self.prints.remove(&self.hasher.hash_one(event));
        if self.is_empty() {
            self.oldest = None;
        }
    }

    /// True if a retry is overdue, so that events refused only once can count as lost.
    pub(crate) fn is_stale(&mut self, now: Instant) -> bool {
        let stale = |last: Instant| now.saturating_duration_since(last) >= COMES_BACK_WITHIN;
        if !self.oldest.is_some_and(stale) {
            return false;
        }
        self.oldest = self.prints.values().map(|attempt| attempt.last).min();
        self.oldest.is_none_or(stale)
    }

    /// Forgets and counts the lost events; those whose emitter keeps retrying stay.
    pub(crate) fn take_lost(&mut self, now: Instant) -> u64 {
        let before = self.prints.len();
        self.prints.retain(|_, attempt| {
            attempt.repeated && now.saturating_duration_since(attempt.last) < COMES_BACK_WITHIN
        });
        self.oldest = self.prints.values().map(|attempt| attempt.last).min();
        (before - self.prints.len()) as u64 + std::mem::take(&mut self.unremembered)
    }

    pub(crate) fn take_all(&mut self) -> u64 {
        self.oldest = None;
        let all = self.prints.len() as u64 + std::mem::take(&mut self.unremembered);
        self.prints = HashMap::new();
        all
    }
}
