//! Metrics of calls, by service, kind and outcome.

use forge_base::metrics::{Counter, Table};

use crate::call::Outcome;
use crate::manifest::EntryKind;

/// Number of services with a row of their own; the others share one.
const SERVICES: usize = 64;
/// Outcomes of a call, as labels.
const OUTCOMES: [&str; 6] = [
    "ok",
    "denied",
    "refused",
    "failed",
    "timeout",
    "unavailable",
];
const KINDS: [EntryKind; 2] = [EntryKind::Command, EntryKind::Query];

#[derive(Debug)]
pub struct Meters {
    /// By `KINDS`, then `OUTCOMES`.
    services: Table<[[Counter; OUTCOMES.len()]; KINDS.len()]>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            services: Table::new(SERVICES),
        }
    }
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        OUTCOMES[self.index()]
    }

    /// Index into `OUTCOMES`.
    fn index(self) -> usize {
        match self {
            Outcome::Done => 0,
            Outcome::Denied => 1,
            Outcome::Refused => 2,
            Outcome::Failed => 3,
            Outcome::TimedOut => 4,
            Outcome::Unavailable(_) => 5,
        }
    }
}

impl Meters {
    /// Counts one call of a known service.
    pub(crate) fn called(&self, service: &str, kind: EntryKind, outcome: Outcome) {
        let kind = usize::from(kind == EntryKind::Query);
        self.services.row(service)[kind][outcome.index()].inc();
    }

    /// Service, kind, outcome and number of calls.
    pub fn calls(&self) -> impl Iterator<Item = (&str, &'static str, &'static str, u64)> {
        self.services.rows().flat_map(|(service, kinds)| {
            KINDS.into_iter().zip(kinds).flat_map(move |(kind, row)| {
                let outcomes = OUTCOMES.into_iter().zip(row);
                outcomes.map(move |(outcome, count)| (service, kind.as_str(), outcome, count.get()))
            })
        })
    }
}
