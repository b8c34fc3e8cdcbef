//! What is counted of the calls into one instance of an adapter.

use forge_base::metrics::{Counter, Table};

/// Ops that have a row of their own; there are fewer.
const OPS: usize = 64;

#[derive(Debug)]
pub struct Meters {
    /// By op.
    pub calls: Table<Op>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            calls: Table::new(OPS),
        }
    }
}

/// How calls of one op went.
#[derive(Debug, Default)]
pub struct Op {
    ok: Counter,
    error: Counter,
    /// Given up before there was an answer.
    dropped: Counter,
    /// The adapter was not even asked.
    pub(super) refused: Counter,
}

impl Op {
    pub(super) fn answered<T, E>(&self, answer: &Result<T, E>) {
        match answer {
            Ok(_) => self.ok.inc(),
            Err(_) => self.error.inc(),
        }
    }

    pub(super) fn dropped(&self) {
        self.dropped.inc();
    }

    /// How often it went how.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        [
            ("ok", self.ok.get()),
            ("error", self.error.get()),
            ("dropped", self.dropped.get()),
            ("refused", self.refused.get()),
        ]
    }
}
