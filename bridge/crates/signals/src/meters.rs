//! Metrics of signals that were received, by outcome.

use forge_base::metrics::Counter;

/// Outcomes, as labels.
const OUTCOMES: [&str; 5] = ["stored", "repeated", "ignored", "lost", "invalid"];

/// Outcome of a signal whose signature was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    /// Stored before.
    Repeated,
    /// Without effect, such as the end of a session that has ended.
    Ignored,
    /// Answered although the store did not take it.
    Lost,
    Invalid,
}

impl Outcome {
    /// Index into `OUTCOMES`.
    fn index(self) -> usize {
        match self {
            Outcome::Stored => 0,
            Outcome::Repeated => 1,
            Outcome::Ignored => 2,
            Outcome::Lost => 3,
            Outcome::Invalid => 4,
        }
    }
}

/// Counters of one API.
#[derive(Debug, Default)]
pub struct Meters {
    outcomes: [Counter; OUTCOMES.len()],
    /// Sessions whose heartbeats stopped.
    pub heartbeats_lost: Counter,
}

impl Meters {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome.index()].inc();
    }

    /// Outcome and number of signals.
    pub fn received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.outcomes.iter().map(Counter::get);
        OUTCOMES.into_iter().zip(counts)
    }
}
