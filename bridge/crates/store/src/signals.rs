//! Rules of signals: repeats, totals, the choice of sessions and their order. Pure functions: SQLite and the model apply
//! what they return.

use jiff::Timestamp;

use super::record::{
    NewSignal, SignalRecord, SignalRecorded, SignalSession, SignalSessionFilter, SignalTotals,
};
use super::{Error, Result};

/// Largest number that every store keeps. Sums stop there.
const MOST: u64 = i64::MAX as u64;

/// Part of the store that decides about a new signal.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Session and verdict of the stored signal that has the same key and repeat key.
    pub first: Option<(String, bool)>,
    /// The session that the signal opens is stored.
    pub is_open_known: bool,
}

/// Key that a signal is compared under: that of the session it opens, or of its session as it is stored.
pub fn key_of<'a>(new: &'a NewSignal, stored: Option<&'a SignalSession>) -> Result<&'a str> {
    let opened = new.opens.as_ref();
    let own = opened.filter(|session| session.id == new.session_id);
    let session = own.or(stored).ok_or(Error::NotFound)?;
    Ok(&session.key_id)
}

/// Decides whether a signal is stored or was sent before.
pub fn record(standing: Standing) -> Result<SignalRecorded> {
    match standing.first {
        Some((session_id, blocked)) => Ok(SignalRecorded::Repeat {
            session_id,
            blocked,
        }),
        None => open(standing.is_open_known).map(|()| SignalRecorded::New),
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
    /// Counts a record.
    pub fn count(&mut self, record: &SignalRecord) {
        self.totals.add(record);
        self.last_at = self.last_at.max(record.at);
    }
}

impl SignalTotals {
    /// Adds a record. A sum that would exceed 2^63 − 1 stays there.
    pub fn add(&mut self, record: &SignalRecord) {
        let has_tokens = [record.tokens_in, record.tokens_out]
            .iter()
            .any(|tokens| tokens.is_some_and(|tokens| tokens > 0));
        let is_unpriced = has_tokens && record.cost_micros.is_none();
        for (sum, more) in [
            (&mut self.signals, 1),
            (&mut self.errors, u64::from(record.error_code.is_some())),
            (&mut self.tokens_in, record.tokens_in.unwrap_or(0)),
            (&mut self.tokens_out, record.tokens_out.unwrap_or(0)),
            (&mut self.cost_micros, record.cost_micros.unwrap_or(0)),
            (&mut self.unpriced, u64::from(is_unpriced)),
        ] {
            *sum = sum.saturating_add(more).min(MOST);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tokens: [Option<u64>; 2], cost_micros: Option<u64>) -> SignalRecord {
        SignalRecord {
            at: Timestamp::UNIX_EPOCH,
            ts: Timestamp::UNIX_EPOCH,
            kind: None,
            model: None,
            tool: None,
            user_id: None,
            project_id: None,
            error_code: None,
            tokens_in: tokens[0],
            tokens_out: tokens[1],
            cost_micros,
            cache_read_tokens: None,
            cache_write_tokens: None,
            latency_ms: None,
            blocked: false,
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
    fn a_repeat_is_found_before_a_session_that_is_there() {
        let first = Some(("s".to_owned(), true));
        for is_open_known in [false, true] {
            let first = first.clone();
            let standing = Standing {
                first,
                is_open_known,
            };
            let SignalRecorded::Repeat { blocked, .. } = super::record(standing).unwrap() else {
                panic!("it is not a repeat");
            };
            assert!(blocked);
        }
        let standing = |is_open_known| Standing {
            first: None,
            is_open_known,
        };
        assert_eq!(super::record(standing(false)).unwrap(), SignalRecorded::New);
        let refused = super::record(standing(true));
        assert!(matches!(refused, Err(Error::InvalidState(_))));
    }
}
