//! Signals of the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::Memory;
use super::state::State;
use crate::record::{
    Acknowledged, Acknowledgement, Charge, Intervention, InterventionFilter, NewSignal, Page,
    SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalRecorded, SignalSession,
    SignalSessionFilter, SignalSource, SignalSums, SignalTotals, SignalVerdict, SweptSignals,
};
use crate::roles::Signals;
use crate::signals;
use crate::{Error, Result};
use forge_base::digest::Digest;
use forge_base::event::NewEvent;

/// Signal in its session.
pub(super) struct Counted {
    /// Key in `signal_sessions`.
    session: u64,
    key_id: String,
    repeat_key: Option<Digest>,
    record: SignalRecord,
}

#[async_trait]
impl Signals for Memory {
    async fn open_signal_session(
        &self,
        session: SignalSession,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        self.write(|state| {
            signals::open(state.signal_place(&session.id).is_some())?;
            state.open_signals(session);
            state.log_unbound(None, events);
            Ok(())
        })
    }

    async fn record_signal(&self, signal: NewSignal) -> Result<SignalRecorded> {
        self.write(|state| state.record_signal(signal))
    }

    async fn end_signal_sessions(
        &self,
        ends: Vec<(String, Timestamp)>,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        self.write(|state| {
            ends.iter().for_each(|end| state.end_signals(end));
            state.log_unbound(None, events);
            Ok(())
        })
    }

    async fn recent_signal_sessions(
        &self,
        source: SignalSource,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>> {
        let state = self.state();
        let mut found: Vec<_> = state
            .signal_sessions
            .values()
            .filter(|session| session.source == source && session.last_at >= since)
            .filter(|session| Some(&session.id) > after.as_ref())
            .cloned()
            .collect();
        found.sort_by(|one, other| one.id.cmp(&other.id));
        found.truncate(limit);
        Ok(found)
    }

    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>> {
        let state = self.state();
        let Some(place) = state.signal_place(id) else {
            return Ok(None);
        };
        let newest_first = state.signals.values().rev();
        let own = newest_first.filter(|counted| counted.session == place);
        let records = own.take(records).map(|counted| counted.record.clone());
        Ok(Some((
            state.signal_sessions[&place].clone(),
            records.collect(),
        )))
    }

    async fn mark_signals(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64> {
        self.write(|state| {
            mark();
            Ok(state.last_signal())
        })
    }

    async fn signal_amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>> {
        let state = self.state();
        let mut sums = BTreeMap::<Timestamp, SignalTotals>::new();
        for counted in state.signals.range(..=last).map(|(_, counted)| counted) {
            let session = &state.signal_sessions[&counted.session];
            if counted.record.at >= since && group.has(&counted.record, &session.id) {
                let sum = sums.entry(signals::minute(counted.record.at)).or_default();
                sum.add(&counted.record);
            }
        }
        Ok(sums.into_iter().collect())
    }

    async fn signal_sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums> {
        let state = self.state();
        let mut newest_first: Vec<_> = state.signals.values().rev().collect();
        newest_first.sort_by_key(|counted| std::cmp::Reverse(counted.record.at));
        let mut summing = signals::Summing::default();
        for counted in newest_first {
            let record = &counted.record;
            let value = match by {
                SignalProperty::User => record.user_id.as_deref(),
                SignalProperty::Project => record.project_id.as_deref(),
                SignalProperty::Adapter => Some(&*state.signal_sessions[&counted.session].adapter),
                SignalProperty::Model => record.model.as_deref(),
            };
            let amounts = SignalTotals::of(record);
            if record.at < since || !summing.add(record.at, value, &amounts) {
                break;
            }
        }
        Ok(summing.finish())
    }

    async fn open_interventions(&self, limit: usize) -> Result<Vec<Intervention>> {
        let state = self.state();
        let newest_first = state.interventions.values().rev();
        let open = newest_first.filter(|one| one.is_open);
        Ok(open.take(limit).cloned().collect())
    }

    async fn acknowledge_intervention(
        &self,
        id: &str,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged> {
        self.write(|state| {
            let sessions = &state.signal_sessions;
            let is_own = |one: &Intervention| {
                let mut sessions = sessions.values();
                let began_in = sessions.find(|session| session.id == one.session_id);
                owner.is_none() || began_in.is_some_and(|session| session.owner == owner)
            };
            let mut all = state.interventions.values_mut();
            let found = all.find(|one| one.id == id && is_own(one));
            let outcome = signals::acknowledge(found.as_deref());
            if let (Acknowledged::First, Some(found)) = (outcome, found) {
                found.acknowledged = Some(acknowledged);
                state.log_unbound(None, events);
            }
            Ok(outcome)
        })
    }

    async fn interventions(&self, filter: InterventionFilter) -> Result<Page<Intervention>> {
        let state = self.state();
        let before = filter.before.unwrap_or(u64::MAX);
        let newest_first = state.interventions.range(..before).rev();
        let mut found = newest_first.filter(|(_, one)| filter.matches(one));
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(place, _)| **place);
        let items = page.into_iter().map(|(_, one)| one.clone());
        Ok(Page {
            items: items.collect(),
            next,
        })
    }

    async fn signals_to_forward(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>> {
        let state = self.state();
        let last = state.last_signal();
        let after = state.forwarded.map(|kept| signals::resume(kept, last) + 1);
        Ok(after.map(|after| {
            let entries = state.signals.range(after..).take(limit);
            entries.map(|(place, _)| state.entry(*place)).collect()
        }))
    }

    async fn keep_forwarded(&self, position: u64) -> Result<()> {
        self.write(|state| {
            state.forwarded = Some(position);
            Ok(())
        })
    }

    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>> {
        let state = self.state();
        let before = filter.before.unwrap_or(u64::MAX);
        let newest_first = state.signal_sessions.range(..before).rev();
        let mut found = newest_first.filter(|(_, session)| filter.matches(session));
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(place, _)| **place);
        let items = page.into_iter().map(|(_, session)| session.clone());
        Ok(Page {
            items: items.collect(),
            next,
        })
    }
}

impl State {
    fn signal_place(&self, id: &str) -> Option<u64> {
        let mut all = self.signal_sessions.iter();
        all.find(|(_, session)| session.id == id)
            .map(|(place, _)| *place)
    }

    fn open_signals(&mut self, session: SignalSession) {
        let mut place = signals::place(session.started_at);
        while self.signal_sessions.contains_key(&place) {
            place += 1;
        }
        self.signal_sessions.insert(place, session);
    }

    pub(super) fn end_signals(&mut self, (id, at): &(String, Timestamp)) {
        let mut all = self.signal_sessions.values_mut();
        if let Some(session) = all.find(|session| session.id == *id) {
            session.ended_at.get_or_insert(*at);
        }
    }

    fn record_signal(&mut self, new: NewSignal) -> Result<SignalRecorded> {
        let place = self.signal_place(&new.session_id);
        let stored = place.map(|place| &self.signal_sessions[&place]);
        let key_id = signals::key_of(&new, stored)?.to_owned();
        let mut repeated = self.signals.values().filter(|counted| {
            let is_named = new.repeat_key.is_some() && counted.repeat_key == new.repeat_key;
            is_named && counted.key_id == key_id
        });
        let first = repeated.next().map(|counted| {
            let session = &self.signal_sessions[&counted.session];
            (session.id.clone(), self.verdict(&counted.record))
        });
        if let Some((session_id, verdict)) = first {
            return Ok(SignalRecorded::Repeat(session_id, verdict));
        }
        let opens = new.opens.as_ref();
        signals::open(opens.is_some_and(|session| self.signal_place(&session.id).is_some()))?;
        new.ends.iter().for_each(|end| self.end_signals(end));
        if let Some(session) = &new.opens {
            self.open_signals(session.clone());
        }
        let place = self.signal_place(&new.session_id).ok_or(Error::NotFound)?;
        let verdict = self.store_signal(place, key_id, new);
        Ok(SignalRecorded::New(verdict))
    }

    /// Charges the usage of a dispatch.
    pub(super) fn charge(&mut self, charge: &Charge) {
        let place = self.signal_place(&charge.session.id);
        let stored = place.map(|place| &self.signal_sessions[&place]);
        let before = stored.map_or_else(SignalTotals::default, |session| session.totals);
        let Some(new) = signals::charged(charge, &before) else {
            return;
        };
        if place.is_none() {
            self.open_signals(charge.session.clone());
        }
        if let Some(place) = self.signal_place(&charge.session.id) {
            self.store_signal(place, charge.session.key_id.clone(), new);
        }
    }

    fn store_signal(&mut self, place: u64, key_id: String, new: NewSignal) -> SignalVerdict {
        let (record, judgement) = signals::judge(&new, &self.signal_sessions[&place]);
        if let Some(session) = self.signal_sessions.get_mut(&place) {
            session.count(&record);
            session.paused_at = new.paused_at;
        }
        let counted = Counted {
            session: place,
            key_id,
            repeat_key: new.repeat_key,
            record,
        };
        self.signals.insert(self.last_signal() + 1, counted);
        for one in self.interventions.values_mut() {
            one.is_open &= !judgement.ends.contains(&one.id);
        }
        for one in judgement.begins {
            let last = self.interventions.last_key_value();
            let place = last.map_or(1, |(last, _)| last + 1);
            self.interventions.insert(place, one);
        }
        self.log_unbound(None, new.events);
        self.log_unbound(None, judgement.events);
        judgement.verdict
    }

    fn entry(&self, position: u64) -> SignalEntry {
        let counted = &self.signals[&position];
        let of_session = |range: &(u64, &Counted)| range.1.session == counted.session;
        let all = || self.signals.iter().map(|(place, one)| (*place, one));
        let own = || all().filter(of_session);
        let later = own().filter(|(place, _)| *place > position);
        let session = self.signal_sessions[&counted.session].clone();
        SignalEntry {
            position,
            is_first: own().next().is_some_and(|(place, _)| place == position),
            tokens: signals::tokens_before(
                &session.totals,
                later.map(|(_, one)| one.record.tokens()),
            ),
            session,
            record: counted.record.clone(),
        }
    }

    fn last_signal(&self) -> u64 {
        let last = self.signals.last_key_value();
        last.map_or(self.signals_removed, |(last, _)| *last)
    }

    /// Verdict that a stored record was answered with.
    fn verdict(&self, record: &SignalRecord) -> SignalVerdict {
        let mut all = self.interventions.values();
        let told = all.find(|one| Some(&one.id) == record.intervention_id.as_ref());
        signals::repeated(record.blocked, told.cloned())
    }

    pub(super) fn sweep_signals(&mut self, before: Timestamp, limit: usize) -> SweptSignals {
        let mut swept = SweptSignals::default();
        while let Some(oldest) = self.signals.first_entry()
            && oldest.get().record.at < before
        {
            if swept.signals == limit as u64 {
                swept.more = true;
                return swept;
            }
            self.signals_removed = *oldest.key();
            oldest.remove();
            swept.signals += 1;
        }
        while let Some(oldest) = self.interventions.first_entry()
            && oldest.get().at < before
        {
            if swept.interventions == limit as u64 {
                swept.more = true;
                return swept;
            }
            oldest.remove();
            swept.interventions += 1;
        }
        let is_empty = |place: u64| {
            self.signals
                .values()
                .all(|counted| counted.session != place)
        };
        let sessions = self.signal_sessions.range(..signals::place(before));
        let mut gone: Vec<u64> = sessions
            .filter(|(place, session)| session.last_at < before && is_empty(**place))
            .map(|(place, _)| *place)
            .collect();
        swept.more = gone.len() > limit;
        gone.truncate(limit);
        swept.sessions = gone.len() as u64;
        for place in gone {
            self.signal_sessions.remove(&place);
        }
        swept
    }
}
