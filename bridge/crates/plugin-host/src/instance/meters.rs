//! Counters of the calls into one instance of an adapter.

use forge_base::metrics::{Counter, Table};

/// Capacity of the table of ops; there are fewer ops.
const OPS: usize = 64;

#[derive(Debug)]
pub struct Meters {
    /// Outcomes by op.
    pub calls: Table<Op>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            calls: Table::new(OPS),
        }
    }
}

/// Outcomes of the calls of one op.
#[derive(Debug, Default)]
pub struct Op {
    ok: Counter,
    error: Counter,
    /// Abandoned by the bridge before an answer.
    dropped: Counter,
    /// Refused before reaching the adapter.
    pub(crate) refused: Counter,
}

impl Op {
    pub(crate) fn answered<T, E>(&self, answer: &Result<T, E>) {
        match answer {
            Ok(_) => self.ok.inc(),
            Err(_) => self.error.inc(),
        }
    }

    pub(crate) fn dropped(&self) {
        self.dropped.inc();
    }

    /// Number of calls by outcome.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        [
            ("ok", self.ok.get()),
            ("error", self.error.get()),
            ("dropped", self.dropped.get()),
            ("refused", self.refused.get()),
        ]
    }
}
