//! State of the model: its maps, acceptance and queries.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::destination::OpenBreaker;
use crate::record::{
    self, Acceptance, Content, Counts, Decision, DeliveryState, DispatchFilter, DispatchRecord,
    IdempotencyKey, KeyOwner, Known, LogBounds, NewDispatch, Page, Piece, SignalSession,
    SignalTotals, Spending, SpendingSums, Status, Swept,
};
use crate::rules::UNBOUND_RETENTION;
use crate::spending::Summing;
use crate::transition::{self, AcceptDecision, Stage, Standing};
use crate::{Error, Result, rules};
use forge_base::digest::Digest;
use forge_base::event::LogName;
use forge_base::id::DispatchId;

use super::log::Logged;
use super::outbox::Owed;
use super::runs::KeptRun;
use super::signals::Counted;

pub(super) struct State {
    pub(super) log: LogName,
    pub(super) epoch: u64,
    /// In the order of acceptance.
    pub(super) dispatches: BTreeMap<u64, Kept>,
    /// By the dispatch's key in `dispatches`: each has at most one.
    pub(super) deliveries: BTreeMap<u64, Owed>,
    pub(super) events: BTreeMap<u64, Logged>,
    pub(super) bounds: LogBounds,
    pub(super) sealed: BTreeMap<String, Vec<u8>>,
    /// By origin.
    pub(super) breakers: BTreeMap<String, OpenBreaker>,
    /// By the position of their first event, as dispatches.
    pub(super) runs: BTreeMap<u64, KeptRun>,
    /// In the order of their starts.
    pub(super) signal_sessions: BTreeMap<u64, SignalSession>,
    /// In the order of arrival.
    pub(super) signals: BTreeMap<u64, Counted>,
    /// Highest position of a signal that was removed; no position is given twice.
    pub(super) signals_removed: u64,
    pub(super) forwarded: Option<u64>,
    pub(super) interventions: BTreeMap<u64, record::Intervention>,
    /// The origin that `due` served last.
    pub(super) served: std::cell::RefCell<String>,
}

/// Dispatch with everything that belongs to it.
pub(super) struct Kept {
    /// `record.result` stays empty; see `result`.
    pub(super) record: DispatchRecord,
    pub(super) key: IdempotencyKey,
    pub(super) request: Box<RawValue>,
    pub(super) fingerprint: Digest,
    pub(super) secrets: Option<Vec<u8>>,
    /// Waits for `not_before`.
    pub(super) delayed: bool,
    /// Decision of its approval, and true if it was approved.
    pub(super) decision: Option<(Decision, bool)>,
    /// Place in the queue of its session, until finished.
    pub(super) turn: Option<u64>,
    /// Epoch of the latest attempt.
    pub(super) epoch: u64,
    pub(super) recorded_session: Option<String>,
    pub(super) spent: Option<Box<RawValue>>,
    pub(super) spending: Option<Spending>,
    pub(super) events: u64,
    pub(super) result: Option<Box<RawValue>>,
    pub(super) output: Option<String>,
    pub(super) output_files: Vec<Vec<u8>>,
    pub(super) attachments: Vec<Vec<u8>>,
    pub(super) retention: std::time::Duration,
    /// Set while finished with no pending delivery.
    pub(super) expires_at: Option<Timestamp>,
}

impl Kept {
    pub(super) fn queued(&self) -> bool {
        self.record.state == record::DispatchState::Queued
    }

    pub(super) fn standing(&self) -> Standing {
        let stage = match &self.record.state {
            record::DispatchState::Queued if self.record.is_held => Stage::Held,
            record::DispatchState::Queued => Stage::Queued,
            record::DispatchState::Running { .. } => Stage::Running { epoch: self.epoch },
            record::DispatchState::Finished { .. } => Stage::Finished,
        };
        Standing {
            stage,
            attempts: self.record.attempts,
            cancel_requested: self.record.cancel_requested,
            has_callback: self.record.callback.is_some(),
        }
    }

    fn status(&self) -> Status {
        match &self.record.state {
            record::DispatchState::Queued => Status::Queued,
            record::DispatchState::Running { .. } => Status::Running,
            record::DispatchState::Finished {
                error_code: None, ..
            } => Status::Ok,
            record::DispatchState::Finished {
                error_code: Some(_),
                ..
            } => Status::Error,
        }
    }
}

impl State {
    pub(super) fn new(log: LogName) -> Self {
        Self {
            log,
            epoch: 1,
            dispatches: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            events: BTreeMap::new(),
            bounds: LogBounds {
                issued: 0,
                removed: 0,
            },
            sealed: BTreeMap::new(),
            breakers: BTreeMap::new(),
            runs: BTreeMap::new(),
            signal_sessions: BTreeMap::new(),
            signals: BTreeMap::new(),
            signals_removed: 0,
            forwarded: None,
            interventions: BTreeMap::new(),
            served: std::cell::RefCell::default(),
        }
    }

    pub(super) fn seq(&self, id: DispatchId) -> Option<u64> {
        self.dispatches
            .iter()
            .find(|(_, kept)| kept.record.id == id)
            .map(|(seq, _)| *seq)
    }

    pub(super) fn kept(&mut self, seq: u64) -> &mut Kept {
        self.dispatches
            .get_mut(&seq)
            .expect("the caller has just found it")
    }

    pub(super) fn counts(&self) -> Counts {
        let deliveries = |state| {
            let owed = self.deliveries.values();
            owed.filter(|owed| owed.record.status == state).count() as u64
        };
        let dispatches = |status| {
            let kept = self.dispatches.values();
            kept.filter(|kept| kept.status() == status).count() as u64
        };
        Counts {
            queued: dispatches(Status::Queued),
            running: dispatches(Status::Running),
            deliveries_pending: deliveries(DeliveryState::Pending),
            deliveries_dead: deliveries(DeliveryState::Dead),
        }
    }

    fn holder(&self, key: &IdempotencyKey) -> Option<(u64, &Kept)> {
        let mut newest_first = self.dispatches.iter().rev();
        newest_first
            .find(|(_, kept)| &kept.key == key)
            .map(|(seq, kept)| (*seq, kept))
    }

    pub(super) fn recall(&self, key: &IdempotencyKey) -> Option<Known> {
        self.holder(key).map(|(_, kept)| Known {
            dispatch: self.record(kept),
            fingerprint: kept.fingerprint,
        })
    }

    pub(super) fn accept(&mut self, new: NewDispatch) -> Result<Acceptance> {
        let holder = self.holder(&new.key).map(|(seq, _)| seq);
        let known = self.recall(&new.key);
        let accept = transition::accept(&new, known, self.counts().queued)?;
        let retry_of = match accept {
            AcceptDecision::QueueFull => return Ok(Acceptance::QueueFull),
            AcceptDecision::Conflict(id) => return Ok(Acceptance::Conflict(id)),
            AcceptDecision::Duplicate { known, redeliver } => {
                if let Some(seq) = holder.filter(|_| redeliver) {
                    self.redeliver(seq, new.accepted_at);
                }
                return Ok(Acceptance::Duplicate(known));
            }
            AcceptDecision::Insert { retry_of } => {
                if let Some(seq) = holder.filter(|_| retry_of.is_some()) {
                    self.supersede(seq, new.accepted_at);
                }
                retry_of
            }
        };
        let start = new.start.clone();
        let repeated = retry_of.or(new.retry_of);
        let seq = self.insert(new, repeated);
        let start = start.filter(|_| self.may_start(&self.dispatches[&seq]));
        let begun = start.map(|started| Box::new(self.begin(seq, started)));
        Ok(Acceptance::Accepted { retry_of, begun })
    }

    fn insert(&mut self, new: NewDispatch, retry_of: Option<DispatchId>) -> u64 {
        // As on disk, the number of a dispatch is the position of its first event.
        let seq = self.bounds.issued + 1;
        let delayed = transition::is_delayed(&new);
        let record = rules::accepted(&new, retry_of);
        let kept = Kept {
            record,
            key: new.key,
            request: new.request,
            fingerprint: new.fingerprint,
            secrets: new.secrets,
            delayed,
            decision: None,
            turn: None,
            epoch: 0,
            recorded_session: None,
            spent: None,
            spending: None,
            events: 0,
            result: None,
            output: None,
            output_files: Vec::new(),
            attachments: new.attachments,
            retention: std::time::Duration::ZERO,
            expires_at: None,
        };
        let enters = !delayed && !kept.record.is_held;
        self.dispatches.insert(seq, kept);
        if enters {
            self.take_turn(seq);
        }
        self.log_events(seq, new.events);
        seq
    }

    fn with_result(&self, kept: &Kept) -> DispatchRecord {
        DispatchRecord {
            result: kept.result.clone(),
            ..self.record(kept)
        }
    }

    pub(super) fn dispatch(&self, id: DispatchId) -> Option<DispatchRecord> {
        self.seq(id)
            .map(|seq| self.with_result(&self.dispatches[&seq]))
    }

    pub(super) fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        let seq = self.seq(id).ok_or(Error::NotFound)?;
        Ok(self.dispatches[&seq].request.clone())
    }

    pub(super) fn by_task(
        &self,
        task_id: &str,
        owner: Option<KeyOwner>,
        limit: usize,
    ) -> Vec<DispatchRecord> {
        let newest_first = self.dispatches.values().rev();
        newest_first
            .filter(|kept| kept.record.task_id == task_id)
            .filter(|kept| owner.is_none_or(|owner| kept.key.owner == owner))
            .take(limit)
            .map(|kept| self.with_result(kept))
            .collect()
    }

    pub(super) fn spending(&self, since: Timestamp) -> SpendingSums {
        let ended = self.dispatches.values().filter_map(|kept| {
            let record::DispatchState::Finished { at, error_code } = &kept.record.state else {
                return None;
            };
            Some((*at, error_code, kept, kept.spending.as_ref()?))
        });
        let mut newest_first: Vec<_> = ended.filter(|(at, ..)| *at >= since).collect();
        newest_first.sort_by_key(|(at, ..)| Reverse(*at));
        let mut summing = Summing::default();
        for (at, error_code, kept, spending) in newest_first {
            let tokens = [spending.tokens_in, spending.tokens_out];
            let usage = SignalTotals::of_one(error_code.is_some(), tokens, spending.cost_micros);
            let (record, model) = (&kept.record, spending.model.as_deref());
            if !summing.add(at, &record.provider, &record.agent_id, model, &usage) {
                break;
            }
        }
        summing.finish()
    }

    pub(super) fn dispatches(&self, filter: &DispatchFilter) -> Page<DispatchRecord> {
        let before = filter.before.unwrap_or(u64::MAX);
        let same = |wanted: &Option<String>, value: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == value
        };
        let delivery = |seq: &u64| self.deliveries.get(seq).map(|owed| owed.record.status);
        let mut found = self.dispatches.range(..before).rev().filter(|(seq, kept)| {
            let record = &kept.record;
            let prefix = filter.task_prefix.as_deref().unwrap_or_default();
            let is = |wanted| match (wanted, kept.status()) {
                (Status::Finished, status) => matches!(status, Status::Ok | Status::Error),
                (wanted, status) => wanted == status,
            };
            filter.status.is_none_or(is)
                && same(&filter.provider, Some(&record.provider))
                && same(&filter.agent_id, Some(&record.agent_id))
                && same(&filter.run_id, record.run_id.as_deref())
                && filter.since.is_none_or(|since| record.accepted_at >= since)
                && record.task_id.starts_with(prefix)
                && (filter.delivery.is_none() || filter.delivery == delivery(seq))
        });
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(seq, _)| **seq);
        let items = page.into_iter().map(|(seq, kept)| DispatchRecord {
            delivery: delivery(seq),
            spending: kept.spending.clone(),
            ..self.record(kept)
        });
        Page {
            items: items.collect(),
            next,
        }
    }

    pub(super) fn content(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Option<Piece> {
        let kept = &self.dispatches[&self.seq(id)?];
        let whole = match content {
            Content::Output => kept.output.as_ref()?.as_bytes(),
            Content::OutputFile(number) => kept.output_files.get(number)?,
            Content::Attachment(number) => kept.attachments.get(number)?,
        };
        if whole.is_empty() {
            return None;
        }
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(whole.len());
        let end = start.saturating_add(limit).min(whole.len());
        Some(Piece {
            bytes: whole[start..end].to_vec(),
            total: whole.len() as u64,
        })
    }

    pub(super) fn sweep(&mut self, now: Timestamp, limit: usize) -> Swept {
        let mut expired: Vec<_> = self.dispatches.iter().collect();
        expired.retain(|(_, kept)| kept.expires_at.is_some_and(|time| time <= now));
        expired.sort_by_key(|(seq, kept)| (kept.expires_at, **seq));
        let more = expired.len() > limit;
        let gone: Vec<u64> = expired.iter().take(limit).map(|(seq, _)| **seq).collect();
        for seq in &gone {
            self.dispatches.remove(seq);
            self.deliveries.retain(|_, owed| owed.dispatch != *seq);
            self.forget_events(|logged| logged.owner == Some(*seq));
        }
        let (runs, more_runs) = self.sweep_runs(now, limit);
        let oldest = now
            .saturating_sub(UNBOUND_RETENTION)
            .unwrap_or(Timestamp::MIN);
        self.forget_events(|logged| logged.owner.is_none() && logged.event.timestamp < oldest);
        Swept {
            dispatches: gone.len() as u64,
            runs,
            more: more || more_runs,
        }
    }
}
