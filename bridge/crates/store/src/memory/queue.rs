//! Queue and attempts of the model.

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::record::{
    self, Approval, ApprovalFilter, ApprovalStatus, Begun, CancelRequest, Claim, ClaimLimits,
    Claimed, Decision, DispatchRecord, Finish, Finished, Interrupted, Lease, Page, Progress, Ready,
    Recorded, Requeue, Reroute,
};
use crate::transition::{self, End, Stage};
use crate::{Error, Result, rules};
use forge_base::event::NewEvent;
use forge_base::id::DispatchId;

use super::state::{Kept, State};

impl State {
    /// Appends the dispatch to the queue of its session.
    pub(super) fn take_turn(&mut self, seq: u64) {
        let kept = &self.dispatches[&seq];
        if kept.record.session.is_none() {
            return;
        }
        let turns = self.same_session(kept).filter_map(|other| other.turn);
        let turn = turns.max().unwrap_or(0) + 1;
        self.kept(seq).turn = Some(turn);
    }

    fn same_session<'a>(&'a self, one: &'a Kept) -> impl Iterator<Item = &'a Kept> {
        self.dispatches.values().filter(move |other| {
            other.record.provider == one.record.provider
                && other.record.session == one.record.session
        })
    }

    fn blocked(&self, kept: &Kept) -> bool {
        kept.turn.is_some_and(|turn| {
            self.same_session(kept)
                .any(|other| other.turn.is_some_and(|before| before < turn))
        })
    }

    /// True if nothing but an earlier dispatch of its session can keep it from the queue.
    fn may_queue(kept: &Kept) -> bool {
        kept.queued() && !kept.record.is_held && !kept.delayed && !kept.record.cancel_requested
    }

    pub(super) fn may_start(&self, kept: &Kept) -> bool {
        Self::may_queue(kept) && (kept.record.session.is_none() || !self.blocked(kept))
    }

    /// The record as it is read, without the result.
    pub(super) fn record(&self, kept: &Kept) -> DispatchRecord {
        DispatchRecord {
            is_blocked: Self::may_queue(kept)
                && kept.record.session.is_some()
                && self.blocked(kept),
            ..kept.record.clone()
        }
    }

    /// Dispatches of this adapter that can start, in their order.
    fn startable(&self, provider: &str) -> Vec<(u64, &Kept)> {
        let mut found: Vec<_> = self
            .dispatches
            .iter()
            .filter(|(_, kept)| kept.record.provider == provider && self.may_start(kept))
            .map(|(seq, kept)| (*seq, kept))
            .collect();
        found.sort_by_key(|(seq, kept)| (-i16::from(kept.record.priority), *seq));
        found
    }

    pub(super) fn ready(&self, provider: &str, limit: usize) -> Vec<Ready> {
        let best = self.startable(provider).into_iter().take(limit);
        best.map(|(_, kept)| Ready {
            id: kept.record.id,
            provider: kept.record.provider.clone(),
            pinned: kept.record.pinned,
            attempts: kept.record.attempts,
        })
        .collect()
    }

    pub(super) fn queues(&self) -> Vec<(String, u64)> {
        let mut queues = std::collections::BTreeMap::new();
        for kept in self.dispatches.values().filter(|kept| kept.queued()) {
            *queues.entry(kept.record.provider.clone()).or_insert(0) += 1;
        }
        queues.into_iter().collect()
    }

    pub(super) fn promote(&mut self, now: Timestamp, limit: usize) -> usize {
        let mut due: Vec<_> = self
            .dispatches
            .iter()
            .filter(|(_, kept)| {
                let is_elsewhere = kept.record.cancel_requested || kept.record.is_held;
                let waits = kept.queued() && kept.delayed && !is_elsewhere;
                waits && kept.record.not_before.is_some_and(|time| time <= now)
            })
            .map(|(seq, kept)| (kept.record.not_before, *seq))
            .collect();
        due.sort();
        due.truncate(limit);
        for (_, seq) in &due {
            self.kept(*seq).delayed = false;
            self.take_turn(*seq);
        }
        due.len()
    }

    fn waiting(&self) -> impl Iterator<Item = (u64, &Kept)> {
        self.dispatches
            .iter()
            .filter(|(_, kept)| kept.queued() && !kept.record.cancel_requested)
            .map(|(seq, kept)| (*seq, kept))
    }

    pub(super) fn overdue(&self, now: Timestamp, limit: usize) -> Vec<DispatchId> {
        let mut late: Vec<_> = self
            .waiting()
            .filter(|(_, kept)| kept.record.start_by <= now)
            .collect();
        late.sort_by_key(|(seq, kept)| (kept.record.start_by, *seq));
        let late = late.into_iter().take(limit);
        late.map(|(_, kept)| kept.record.id).collect()
    }

    pub(super) fn cancelled_in_queue(&self, limit: usize) -> Vec<DispatchId> {
        let queued = self.dispatches.values().filter(|kept| kept.queued());
        queued
            .filter(|kept| kept.record.cancel_requested)
            .map(|kept| kept.record.id)
            .take(limit)
            .collect()
    }

    pub(super) fn next_queue_event(&self) -> Option<Timestamp> {
        let starts = self.waiting().map(|(_, kept)| kept.record.start_by);
        let delays = self
            .waiting()
            .filter(|(_, kept)| kept.delayed && !kept.record.is_held)
            .filter_map(|(_, kept)| kept.record.not_before);
        starts.chain(delays).min()
    }

    pub(super) fn reroute(&mut self, reroute: Reroute) -> Result<()> {
        let seq = self.seq(reroute.id).ok_or(Error::NotFound)?;
        let kept = self.kept(seq);
        if !kept.queued() || kept.record.attempts > 0 || kept.record.cancel_requested {
            return Err(Error::Stale(reroute.id));
        }
        let moves =
            kept.record.provider != reroute.provider || kept.record.session != reroute.session;
        kept.record.provider = reroute.provider;
        kept.record.session = reroute.session;
        kept.record.routing = reroute.routing;
        if moves {
            kept.turn = None;
            if !kept.delayed && !kept.record.is_held {
                self.take_turn(seq);
            }
        }
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        provider: &str,
        limits: ClaimLimits,
        started: &NewEvent,
    ) -> Vec<Claimed> {
        let is_last = |attempt| rules::is_last_attempt(attempt, limits.max_attempts);
        let mut last_runs = self.dispatches.values().any(|kept| {
            let is_running = kept.standing().stage == Stage::Running { epoch: self.epoch };
            is_running && is_last(kept.record.attempts)
        });
        let mut chosen = self.startable(provider);
        chosen.retain(|(_, kept)| {
            !is_last(kept.record.attempts + 1) || !std::mem::replace(&mut last_runs, true)
        });
        let chosen = chosen.into_iter().take(limits.count);
        let chosen: Vec<_> = chosen.map(|(seq, _)| seq).collect();
        let claims = chosen.into_iter().map(|seq| Claimed {
            begun: self.begin(seq, started.clone()),
            request: self.dispatches[&seq].request.clone(),
        });
        claims.collect()
    }

    /// Starts the next attempt.
    pub(super) fn begin(&mut self, seq: u64, started: NewEvent) -> Begun {
        let epoch = self.epoch;
        let kept = self.kept(seq);
        kept.epoch = epoch;
        kept.record = rules::started(kept.record.clone(), started.timestamp);
        self.log_events(seq, vec![started]);
        let kept = &self.dispatches[&seq];
        Begun {
            lease: Lease {
                id: kept.record.id,
                attempt: kept.record.attempts,
                epoch,
            },
            dispatch: kept.record.clone(),
            secrets: kept.secrets.clone(),
            recorded_session: kept.recorded_session.clone(),
            spent: kept.spent.clone(),
        }
    }

    pub(super) fn append(&mut self, lease: &Lease, progress: Progress) -> Result<()> {
        let seq = self.seq(lease.id).ok_or(Error::Stale(lease.id))?;
        let epoch = self.epoch;
        let kept = self.kept(seq);
        transition::append(lease, &kept.standing(), epoch)?;
        if progress.session.is_some() {
            kept.recorded_session = progress.session;
        }
        if progress.spent.is_some() {
            kept.spent = progress.spent;
        }
        self.log_events(seq, progress.events);
        progress
            .charge
            .iter()
            .for_each(|charge| self.charge(charge));
        Ok(())
    }

    pub(super) fn finish(&mut self, claim: &Claim, finish: Finish) -> Result<Finished> {
        let seq = self.seq(claim.id()).ok_or(Error::NotFound)?;
        let standing = self.dispatches[&seq].standing();
        let expires_at = match transition::finish(claim, &finish, &standing, self.epoch)? {
            End::CancelRequested => return Ok(Finished::CancelRequested),
            End::Record { expires_at, .. } => expires_at,
        };
        let totals = self.totals_with(seq, finish.events.len() as u64);
        let result = rules::with_events(&finish.result, &self.log, totals)?;
        self.log_events(seq, finish.events);
        if let Some(charge) = &finish.charge {
            self.charge(charge);
            self.end_signals(&(charge.session.id.clone(), finish.at));
        }
        let kept = self.kept(seq);
        kept.result =
            Some(RawValue::from_string(result.clone()).expect("one more member leaves it JSON"));
        kept.output = finish.output;
        kept.output_files = finish.output_files;
        kept.turn = None;
        kept.delayed = false;
        kept.record.is_held = false;
        if let Claim::Rejected(_, decision) = claim {
            kept.decision = Some((decision.clone(), false));
        }
        kept.retention = finish.retention;
        kept.spending = finish.spending;
        kept.record.state = record::DispatchState::Finished {
            at: finish.at,
            error_code: finish.error_code,
        };
        kept.expires_at = expires_at;
        if let Some(delivery) = finish.delivery {
            self.owe(seq, &delivery, finish.at);
        }
        Ok(Finished::Recorded(Recorded {
            totals,
            body: result,
        }))
    }

    pub(super) fn requeue(&mut self, claim: &Claim, requeue: Requeue) -> Result<()> {
        let seq = self.seq(claim.id()).ok_or(Error::NotFound)?;
        let epoch = self.epoch;
        let kept = self.kept(seq);
        transition::requeue(claim, &kept.standing(), epoch)?;
        kept.record.state = record::DispatchState::Queued;
        kept.record.start_by = rules::start_again_by(&kept.record, requeue.event.timestamp);
        self.log_events(seq, vec![requeue.event]);
        Ok(())
    }

    pub(super) fn request_cancel(&mut self, id: DispatchId) -> CancelRequest {
        let Some(seq) = self.seq(id) else {
            return CancelRequest::Unknown;
        };
        let kept = self.kept(seq);
        let answer = transition::request_cancel(&kept.standing());
        if answer != CancelRequest::Finished {
            kept.record.cancel_requested = true;
            kept.record.is_held = false;
        }
        answer
    }

    pub(super) fn approve(
        &mut self,
        id: DispatchId,
        decision: Decision,
        event: NewEvent,
    ) -> Result<()> {
        let seq = self.seq(id).ok_or(Error::NotFound)?;
        let kept = self.kept(seq);
        transition::approve(&kept.standing())?;
        kept.record.is_held = false;
        kept.delayed = transition::waits_until(kept.record.not_before, decision.at);
        let enters = !kept.delayed;
        kept.decision = Some((decision, true));
        if enters {
            self.take_turn(seq);
        }
        self.log_events(seq, vec![event]);
        Ok(())
    }

    pub(super) fn approvals(&self, filter: &ApprovalFilter) -> Page<Approval> {
        let before = filter.before.unwrap_or(u64::MAX);
        let mut found = self.dispatches.range(..before).rev().filter(|(_, kept)| {
            let decided = kept.decision.as_ref().map(|(_, approved)| *approved);
            match filter.status {
                ApprovalStatus::Waiting => kept.record.is_held,
                ApprovalStatus::Approved => decided == Some(true),
                ApprovalStatus::Rejected => decided == Some(false),
            }
        });
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(seq, _)| **seq);
        let items = page.into_iter().map(|(_, kept)| Approval {
            dispatch: self.record(kept),
            status: filter.status,
            decision: kept.decision.clone().map(|(decision, _)| decision),
        });
        Page {
            items: items.collect(),
            next,
        }
    }

    pub(super) fn interrupted(&self, limit: usize) -> Vec<Interrupted> {
        let older = self
            .dispatches
            .values()
            .filter(|kept| kept.epoch < self.epoch);
        older
            .filter_map(|kept| match kept.record.state {
                record::DispatchState::Running { attempt, .. } => Some(Interrupted {
                    dispatch: kept.record.clone(),
                    attempt,
                    request: kept.request.clone(),
                    recorded_session: kept.recorded_session.clone(),
                    cancel_requested: kept.record.cancel_requested,
                    spent: kept.spent.clone(),
                }),
                record::DispatchState::Queued | record::DispatchState::Finished { .. } => None,
            })
            .take(limit)
            .collect()
    }
}
