//! Outbox of the model: deliveries and their attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::destination::{DueQuery, MAX_BREAKERS, OpenBreaker};
use crate::record::{
    Callback, DeliveryAttempt, DeliveryFilter, DeliveryPayload, DeliveryRecord, DeliveryState,
    DueDelivery, NewDelivery, Page, Replay, Settlement,
};
use crate::transition::DeliveryTimes;
use crate::{Error, Result, rules, transition};
use forge_base::id::{DeliveryId, DispatchId};

use super::state::State;

pub(super) struct Owed {
    pub(super) dispatch: u64,
    pub(super) record: DeliveryRecord,
    origin: String,
    since: Timestamp,
    give_up_after: Duration,
}

impl Owed {
    fn due(&self, dispatch: DispatchId) -> DueDelivery {
        DueDelivery {
            id: self.record.id,
            dispatch,
            callback: Callback {
                url: self.record.url.clone(),
                origin: self.origin.clone(),
            },
            attempts: self.record.attempt_count,
            since: self.since,
        }
    }
}

impl State {
    pub(super) fn owe(&mut self, seq: u64, new: &NewDelivery, at: Timestamp) {
        let dispatch = &self.dispatches[&seq].record;
        let callback = dispatch.callback.clone();
        let callback = callback.expect("a delivery without a callback was refused");
        let owed = Owed {
            dispatch: seq,
            record: DeliveryRecord {
                id: DeliveryId::of(dispatch.id),
                dispatch_id: dispatch.id,
                task_id: dispatch.task_id.clone(),
                url: callback.url,
                status: DeliveryState::Pending,
                attempt_count: 0,
                created_at: at,
                due_at: Some(at),
                settled_at: None,
                attempts: Vec::new(),
            },
            origin: callback.origin,
            since: at,
            give_up_after: new.give_up_after,
        };
        self.deliveries.insert(seq, owed);
    }

    /// Makes the delivery of a finished dispatch due again, whatever its state.
    pub(super) fn redeliver(&mut self, seq: u64, now: Timestamp) {
        let own = self.deliveries.values_mut();
        for owed in own.filter(|owed| owed.dispatch == seq) {
            owed.record.status = DeliveryState::Pending;
            owed.record.due_at = Some(now);
            owed.record.settled_at = None;
            owed.since = now;
            if let Some(kept) = self.dispatches.get_mut(&seq) {
                kept.expires_at = None;
            }
        }
    }

    pub(super) fn supersede(&mut self, seq: u64, now: Timestamp) {
        let own = self.deliveries.values_mut();
        for owed in own.filter(|owed| owed.dispatch == seq) {
            match owed.record.status {
                DeliveryState::Pending | DeliveryState::Dead => {
                    owed.record.status = DeliveryState::Superseded;
                    owed.record.due_at = None;
                    owed.record.settled_at = Some(now);
                    if let Some(kept) = self.dispatches.get_mut(&seq) {
                        kept.expires_at = Some(rules::later(now, kept.retention));
                    }
                }
                DeliveryState::Delivered | DeliveryState::Superseded => {}
            }
        }
    }

    pub(super) fn due(&self, query: &DueQuery) -> Vec<DueDelivery> {
        let mut origins: BTreeMap<&str, Vec<(Timestamp, u64)>> = BTreeMap::new();
        for (key, owed) in &self.deliveries {
            let wanted =
                !query.exclude.contains(&owed.origin) && !query.in_flight.contains(&owed.record.id);
            if let Some(due) = owed.record.due_at
                && due <= query.now
                && wanted
            {
                origins.entry(&owed.origin).or_default().push((due, *key));
            }
        }
        let mut served = self.served.borrow_mut();
        let later: Vec<&str> = origins.keys().copied().filter(|o| *o > &**served).collect();
        let earlier: Vec<&str> = origins
            .keys()
            .copied()
            .filter(|o| *o <= &**served)
            .collect();
        let mut found = Vec::new();
        for origin in later.into_iter().chain(earlier) {
            if found.len() >= query.limit {
                break;
            }
            let mut own = origins[origin].clone();
            own.sort_unstable();
            own.truncate(query.per_origin.min(query.limit - found.len()));
            for (_, key) in own {
                let owed = &self.deliveries[&key];
                found.push(owed.due(self.dispatches[&owed.dispatch].record.id));
            }
            origin.clone_into(&mut served);
        }
        found
    }

    pub(super) fn next_due(&self, exclude: &[String]) -> Option<Timestamp> {
        let open = self.deliveries.values();
        open.filter(|owed| !exclude.contains(&owed.origin))
            .filter_map(|owed| owed.record.due_at)
            .min()
    }

    pub(super) fn follow_clock(&mut self, now: Timestamp) -> u64 {
        let mut moved = 0;
        for owed in self.deliveries.values_mut() {
            let Owed { record, since, .. } = owed;
            let Some(due_at) = record.due_at else {
                continue;
            };
            let times = DeliveryTimes {
                since: *since,
                due_at,
                attempted_at: record.attempts.last().map(|attempt| attempt.at),
            };
            let Some(times) = transition::follow_clock(times, now) else {
                continue;
            };
            (*since, record.due_at) = (times.since, Some(times.due_at));
            if let (Some(last), Some(at)) = (record.attempts.last_mut(), times.attempted_at) {
                last.at = at;
            }
            moved += 1;
        }
        moved
    }

    pub(super) fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Vec<DueDelivery> {
        let mut overdue: Vec<_> = self
            .deliveries
            .iter()
            .filter_map(|(key, owed)| {
                let is_due = owed.origin == origin && owed.record.due_at.is_some_and(|d| d <= now);
                let is_over = rules::later(owed.since, owed.give_up_after) <= now;
                (is_due && is_over).then_some((owed.record.due_at, *key))
            })
            .collect();
        overdue.sort_unstable();
        let first = overdue.into_iter().take(limit);
        first
            .map(|(_, key)| {
                let owed = &self.deliveries[&key];
                owed.due(self.dispatches[&owed.dispatch].record.id)
            })
            .collect()
    }

    pub(super) fn keep_breakers(&mut self, open: Vec<OpenBreaker>, closed: &[String]) {
        for origin in closed {
            self.breakers.remove(origin);
        }
        for breaker in open {
            self.breakers.insert(breaker.origin.clone(), breaker);
        }
        while self.breakers.len() > MAX_BREAKERS {
            let first = self.breakers.values().min_by_key(|b| (b.until, &b.origin));
            let Some(origin) = first.map(|breaker| breaker.origin.clone()) else {
                return;
            };
            self.breakers.remove(&origin);
        }
    }

    fn owed(&self, id: DeliveryId) -> Option<u64> {
        self.deliveries
            .iter()
            .find(|(_, owed)| owed.record.id == id)
            .map(|(key, _)| *key)
    }

    pub(super) fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        let key = self.owed(id).ok_or(Error::NotFound)?;
        let kept = &self.dispatches[&self.deliveries[&key].dispatch];
        let result = kept.result.as_ref().ok_or(Error::NotFound)?;
        Ok(DeliveryPayload {
            body: result.get().as_bytes().to_vec(),
            trace_id: kept.record.trace_id.clone(),
            request: kept.request.clone(),
            secrets: kept.secrets.clone(),
        })
    }

    pub(super) fn settle(&mut self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        let key = self.owed(id).ok_or(Error::NotFound)?;
        let owed = self
            .deliveries
            .get_mut(&key)
            .expect("its key was just found");
        let settled = transition::settle(owed.record.status, &settlement)?;
        if let Some(attempt) = settlement.attempt {
            owed.record.attempt_count += 1;
            owed.record.attempts.push(DeliveryAttempt {
                number: owed.record.attempt_count,
                ..attempt
            });
        }
        let attempts = &mut owed.record.attempts;
        let (first, last) = (
            rules::FIRST_ATTEMPTS as usize,
            rules::LAST_ATTEMPTS as usize,
        );
        if attempts.len() > first + last {
            attempts.remove(first);
        }
        owed.record.status = settled.state;
        owed.record.due_at = settled.due_at;
        owed.record.settled_at = settled.settled_at;
        let seq = owed.dispatch;
        if settled.expires_at.is_some() {
            let kept = self.kept(seq);
            kept.retention = settlement.retention;
            kept.expires_at = settled.expires_at;
        }
        self.log_events(seq, settlement.events);
        Ok(())
    }

    pub(super) fn replay(&mut self, replay: &Replay, now: Timestamp) -> Result<u64> {
        let chosen = self.chosen(replay)?;
        for seq in &chosen {
            self.redeliver(*seq, now);
        }
        Ok(chosen.len() as u64)
    }

    /// Dispatches whose deliveries `replay` makes due.
    pub(super) fn chosen(&self, replay: &Replay) -> Result<BTreeSet<u64>> {
        match replay {
            Replay::One(id) => {
                let key = self.owed(*id).ok_or(Error::NotFound)?;
                Ok([self.deliveries[&key].dispatch].into())
            }
            Replay::Many {
                host,
                since,
                status,
            } => {
                let owed = self.deliveries.values().filter(|owed| {
                    owed.record.status == *status
                        && since.is_none_or(|since| owed.record.created_at >= since)
                        && rules::at_host(&owed.origin, host.as_deref())
                });
                Ok(owed.map(|owed| owed.dispatch).collect())
            }
        }
    }

    pub(super) fn delivery(&self, id: DeliveryId) -> Option<DeliveryRecord> {
        self.owed(id)
            .map(|key| self.deliveries[&key].record.clone())
    }

    pub(super) fn deliveries(&self, filter: &DeliveryFilter) -> Page<DeliveryRecord> {
        let before = filter.before.unwrap_or(u64::MAX);
        let mut found = self.deliveries.range(..before).rev().filter(|(_, owed)| {
            filter
                .status
                .is_none_or(|status| owed.record.status == status)
                && filter
                    .since
                    .is_none_or(|since| owed.record.created_at >= since)
                && rules::at_host(&owed.origin, filter.host.as_deref())
        });
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(key, _)| **key);
        let items = page.into_iter().map(|(_, owed)| {
            let mut delivery = owed.record.clone();
            let earlier = delivery.attempts.len().saturating_sub(1);
            delivery.attempts.drain(..earlier);
            for attempt in &mut delivery.attempts {
                attempt.answer = None;
            }
            delivery
        });
        Page {
            items: items.collect(),
            next,
        }
    }

    pub(super) fn deliveries_of(&self, id: DispatchId) -> Vec<DeliveryRecord> {
        let all = self.deliveries.values();
        all.filter(|owed| owed.record.dispatch_id == id)
            .map(|owed| owed.record.clone())
            .collect()
    }
}
