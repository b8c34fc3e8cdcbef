//! Judgement of recorded signals without a store.

use std::collections::HashMap;

use jiff::Timestamp;

use forge_store::record::{SignalSource, SignalTotals};

use crate::evaluate::{Stored, Subject, Teams};
use crate::{Evaluator, Record, Rules, Verdict};

/// Rules over the signals that it is given, and no others.
#[derive(Debug)]
pub struct Offline {
    evaluator: Evaluator,
    sessions: HashMap<String, SignalTotals>,
}

impl Offline {
    pub fn new(rules: Rules, teams: Teams) -> Self {
        Self {
            evaluator: Evaluator::new(rules, teams),
            sessions: HashMap::new(),
        }
    }

    /// Judges a record that arrived at `at` in this session. The record is in the totals.
    pub fn judge(&mut self, record: &Record, session: &str, at: Timestamp) -> Verdict {
        let stored = record.stored(record.user_id.clone(), at);
        let totals = self.sessions.entry(session.to_owned()).or_default();
        let subject = Subject {
            source: SignalSource::Agent,
            adapter: &record.adapter,
            session_id: session,
            former: *totals,
            record: &stored,
        };
        // Nothing was stored before.
        for key in self.evaluator.missing(&subject) {
            self.evaluator.begin(&key, 0);
            self.evaluator.complete(&key, 0, &Stored::default());
        }
        let verdict = self.evaluator.judge(&subject, at);
        totals.add(&stored);
        verdict
    }
}
