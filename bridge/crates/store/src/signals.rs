//! Rules of signals: repeats, totals, the choice of sessions and their order. Pure functions: SQLite and the model apply
//! what they return.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::record::{
    Acknowledged, Charge, Intervention, InterventionFilter, Judgement, NewSignal, SignalGroup,
    SignalRecord, SignalSession, SignalSessionFilter, SignalSums, SignalTotals, SignalVerdict,
};
use super::{Error, Result};

/// Largest number that every store keeps. Sums stop there.
const MOST: u64 = i64::MAX as u64;

/// Key that a signal is compared under: that of the session it opens, or of its session as it is stored.
pub fn key_of<'a>(new: &'a NewSignal, stored: Option<&'a SignalSession>) -> Result<&'a str> {
    let opened = new.opens.as_ref();
    let own = opened.filter(|session| session.id == new.session_id);
    let session = own.or(stored).ok_or(Error::NotFound)?;
    Ok(&session.key_id)
}

/// Judges a new record of a session, and notes the verdict in it.
pub fn judge(new: &NewSignal, session: &SignalSession) -> (SignalRecord, Judgement) {
    let mut record = new.record.clone();
    let judgement = match &new.judge {
        Some(judge) => judge.judge(session, &record),
        None => Judgement::of(SignalVerdict {
            blocked: record.blocked,
            ..SignalVerdict::default()
        }),
    };
    let verdict = &judgement.verdict;
    record.blocked = verdict.blocked;
    record.intervention_id = verdict.intervention.as_ref().map(|told| told.id.clone());
    (record, judgement)
}

/// Signal of a charge: the part of the usage that was not charged to its session before. `None` if there is none.
pub fn charged(charge: &Charge, before: &SignalTotals) -> Option<NewSignal> {
    let rest = |whole: Option<u64>, before: u64| whole.map(|whole| whole.saturating_sub(before));
    let whole = &charge.record;
    let record = SignalRecord {
        tokens_in: rest(whole.tokens_in, before.tokens_in),
        tokens_out: rest(whole.tokens_out, before.tokens_out),
        cost_micros: rest(whole.cost_micros, before.cost_micros),
        ..whole.clone()
    };
    let amounts = [record.tokens_in, record.tokens_out, record.cost_micros];
    amounts
        .iter()
        .flatten()
        .any(|amount| *amount > 0)
        .then(|| NewSignal {
            session_id: charge.session.id.clone(),
            record,
            repeat_key: None,
            opens: None,
            ends: None,
            paused_at: None,
            events: Vec::new(),
            judge: Some(Arc::clone(&charge.judge)),
        })
}

/// Verdict on a repeat: that of the stored record, with the intervention that it was told.
pub fn repeated(blocked: bool, intervention: Option<Intervention>) -> SignalVerdict {
    SignalVerdict {
        blocked,
        intervention,
        is_noted: false,
    }
}

/// Effect of an acknowledgement of a stored intervention.
pub fn acknowledge(stored: Option<&Intervention>) -> Acknowledged {
    match stored.map(|one| one.acknowledged) {
        None => Acknowledged::Unknown,
        Some(None) => Acknowledged::First,
        Some(Some(_)) => Acknowledged::Again,
    }
}

/// Position to read on from. In a file of an earlier version, positions have begun again after all records were removed.
pub fn resume(kept: u64, last: u64) -> u64 {
    if kept > last { 0 } else { kept }
}

/// Tokens of a session before records that have these, each in and out.
pub fn tokens_before(totals: &SignalTotals, later: impl IntoIterator<Item = u64>) -> u64 {
    let all = totals.tokens_in.saturating_add(totals.tokens_out);
    later.into_iter().fold(all, u64::saturating_sub)
}

/// Beginning of the minute of a time.
pub fn minute(at: Timestamp) -> Timestamp {
    let seconds = at.as_second().div_euclid(60) * 60;
    Timestamp::from_second(seconds).unwrap_or(at)
}

impl Judgement {
    /// Judgement without a further effect.
    pub fn of(verdict: SignalVerdict) -> Self {
        Self {
            verdict,
            begins: Vec::new(),
            ends: Vec::new(),
            events: Vec::new(),
            undo: Box::new(|| {}),
        }
    }
}

/// Decides about a new session; `is_known` if one of its id is stored.
pub fn open(is_known: bool) -> Result<()> {
    match is_known {
        true => Err(Error::InvalidState("there is a session of this id")),
        false => Ok(()),
    }
}

/// Place of a session among the others by its start, in nanoseconds since 1970. A store takes the next free one.
pub fn place(started_at: Timestamp) -> u64 {
    let nanos = started_at.as_nanosecond().clamp(0, i128::from(MOST));
    u64::try_from(nanos).expect("it was clamped to the range")
}

impl SignalSession {
    /// Counts a record. The session belongs to the project of the last record that names one.
    pub fn count(&mut self, record: &SignalRecord) {
        self.totals.add(record);
        if record.project_id.is_some() {
            self.project_id.clone_from(&record.project_id);
        }
        self.last_at = self.last_at.max(record.at);
    }
}

impl SignalRecord {
    /// Tokens in and out.
    pub fn tokens(&self) -> u64 {
        let [tokens_in, tokens_out] =
            [self.tokens_in, self.tokens_out].map(|tokens| tokens.unwrap_or(0));
        tokens_in.saturating_add(tokens_out)
    }

    /// Removes tokens and cost.
    pub fn clear_usage(&mut self) {
        self.tokens_in = None;
        self.tokens_out = None;
        self.cost_micros = None;
        self.cache_read_tokens = None;
        self.cache_write_tokens = None;
    }
}

impl SignalTotals {
    /// Adds a record. A sum that would exceed 2^63 − 1 stays there.
    pub fn add(&mut self, record: &SignalRecord) {
        self.add_all(&Self::of(record));
    }

    /// Amounts of one record.
    pub fn of(record: &SignalRecord) -> Self {
        let tokens = [record.tokens_in, record.tokens_out];
        Self::of_one(record.error_code.is_some(), tokens, record.cost_micros)
    }

    /// Amounts of a record with these tokens in and out.
    pub fn of_one(is_error: bool, tokens: [Option<u64>; 2], cost_micros: Option<u64>) -> Self {
        let [tokens_in, tokens_out] = tokens.map(|tokens| tokens.unwrap_or(0));
        let has_tokens = tokens_in > 0 || tokens_out > 0;
        Self {
            signals: 1,
            errors: u64::from(is_error),
            tokens_in,
            tokens_out,
            cost_micros: cost_micros.unwrap_or(0),
            unpriced: u64::from(has_tokens && cost_micros.is_none()),
        }
    }

    pub fn add_all(&mut self, other: &Self) {
        self.change(other, |sum, more| sum.saturating_add(more).min(MOST));
    }

    /// Takes back amounts that were added.
    pub fn subtract(&mut self, other: &Self) {
        self.change(other, u64::saturating_sub);
    }

    fn change(&mut self, other: &Self, by: impl Fn(u64, u64) -> u64) {
        for (sum, amount) in [
            (&mut self.signals, other.signals),
            (&mut self.errors, other.errors),
            (&mut self.tokens_in, other.tokens_in),
            (&mut self.tokens_out, other.tokens_out),
            (&mut self.cost_micros, other.cost_micros),
            (&mut self.unpriced, other.unpriced),
        ] {
            *sum = by(*sum, amount);
        }
    }
}

/// Maximum number of records, and of values, that one question adds up.
pub const MOST_SUMMED: usize = 1_000_000;
const MOST_VALUES: usize = 10_000;

/// Sums by the values of a property while they grow. Records are added newest first.
#[derive(Debug, Default)]
pub struct Summing {
    values: HashMap<String, SignalTotals>,
    /// Sum of records without the property.
    without: Option<SignalTotals>,
    records: usize,
    left_out: Option<Timestamp>,
}

impl Summing {
    /// Adds the amounts of a record. False if it is left out: then older ones are, too.
    pub fn add(&mut self, at: Timestamp, value: Option<&str>, amounts: &SignalTotals) -> bool {
        let is_full = self.values.len() == MOST_VALUES;
        let known = match value {
            Some(value) => self.values.get_mut(value),
            None => self.without.as_mut(),
        };
        let has_room = self.records < MOST_SUMMED && (known.is_some() || !is_full);
        if self.left_out.is_some() || !has_room {
            self.left_out.get_or_insert(at);
            return false;
        }
        match (known, value) {
            (Some(sum), _) => sum.add_all(amounts),
            (None, Some(value)) => drop(self.values.insert(value.to_owned(), *amounts)),
            (None, None) => self.without = Some(*amounts),
        }
        self.records += 1;
        true
    }

    pub fn finish(self) -> SignalSums {
        let with = self.values.into_iter();
        let with = with.map(|(value, sum)| (Some(value), sum));
        SignalSums {
            values: with.chain(self.without.map(|sum| (None, sum))).collect(),
            left_out: self.left_out,
        }
    }
}

impl SignalGroup {
    /// True if a record of this session belongs to the group.
    pub fn has(&self, record: &SignalRecord, session_id: &str) -> bool {
        let is = |value: &Option<String>, wanted: &String| value.as_ref() == Some(wanted);
        match self {
            SignalGroup::All => true,
            SignalGroup::Users(users) => users.iter().any(|user| is(&record.user_id, user)),
            SignalGroup::Project(project) => is(&record.project_id, project),
            SignalGroup::Session(session) => session == session_id,
        }
    }
}

impl SignalSessionFilter {
    /// True if the filter selects the session.
    pub fn matches(&self, session: &SignalSession) -> bool {
        let same = |wanted: &Option<String>, value: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == value
        };
        same(&self.adapter, Some(&session.adapter))
            && same(&self.user, session.user_id.as_deref())
            && same(&self.project, session.project_id.as_deref())
            && self
                .active
                .is_none_or(|active| active == session.ended_at.is_none())
    }
}

impl InterventionFilter {
    /// True if the filter selects the intervention.
    pub fn matches(&self, intervention: &Intervention) -> bool {
        let session = self.session.as_ref();
        session.is_none_or(|session| *session == intervention.session_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tokens: [Option<u64>; 2], cost_micros: Option<u64>) -> SignalRecord {
        SignalRecord {
            tokens_in: tokens[0],
            tokens_out: tokens[1],
            cost_micros,
            ..SignalRecord::default()
        }
    }

    #[test]
    fn a_cost_is_missing_only_where_there_are_tokens() {
        for (tokens, cost, unpriced) in [
            ([Some(1), Some(2)], None, 1),
            ([None, Some(2)], None, 1),
            ([Some(1), None], Some(0), 0),
            ([Some(0), None], None, 0),
            ([None, None], None, 0),
        ] {
            let mut totals = SignalTotals::default();
            totals.add(&record(tokens, cost));
            assert_eq!(totals.unpriced, unpriced, "{tokens:?} {cost:?}");
            assert_eq!((totals.signals, totals.errors), (1, 0));
        }
    }

    #[test]
    fn a_sum_stops_at_the_largest_number_that_is_kept() {
        let mut totals = SignalTotals::default();
        for _ in 0..3 {
            totals.add(&record([Some(MOST - 1), None], Some(MOST / 2)));
        }
        assert_eq!((totals.tokens_in, totals.cost_micros), (MOST, MOST));
        assert_eq!((totals.tokens_out, totals.signals), (0, 3));
    }

    #[test]
    fn amounts_are_taken_back() {
        let mut totals = SignalTotals::default();
        let (one, other) = (
            record([Some(3), None], None),
            record([None, Some(4)], Some(9)),
        );
        totals.add(&one);
        let before = totals;
        totals.add(&other);
        totals.subtract(&SignalTotals::of(&other));
        assert_eq!(totals, before);
    }
}
