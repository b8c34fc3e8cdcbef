//! Signals: records of what AI tools use and do, and rules over them that warn or block. *Invariants: a signal is stored
//! before it is answered, and once; a total is never below the sum of the records of its window.*
#![forbid(unsafe_code)]

pub mod agent;
pub mod config;
pub mod engine;
pub mod evaluate;
pub mod forward;
pub mod ledger;
pub mod meters;
pub mod money;
pub mod offline;
pub mod record;
pub mod refusal;
pub mod rule;
mod session;
pub mod sign;
pub mod terms;
pub mod window;

pub use evaluate::{Evaluator, Teams, Verdict};
pub use ledger::Ledger;
pub use offline::Offline;
pub use record::Record;
pub use rule::Rules;
pub use terms::Terms;

/// Problem of one field of a record or a rules file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FieldProblem {
    /// Path such as `rules[2].window`; empty for the whole.
    pub field: String,
    pub message: String,
}

impl FieldProblem {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }

    /// Problem of the whole, which is the only one.
    pub fn whole(message: impl Into<String>) -> Vec<Self> {
        vec![Self::new("", message)]
    }
}
