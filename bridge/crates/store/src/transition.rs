//! Rules that decide what a change does to a dispatch or its delivery. Pure functions: SQLite and the model apply what
//! they return.

use jiff::Timestamp;

use super::record::{
    AfterAttempt, CancelRequest, Claim, DeliveryState, DispatchRecord, Finish, KeyVerdict, Known,
    Lease, NewDispatch, Settlement,
};
use super::{Error, Result, rules};
use crate::record::{DispatchState, KeySpace};
use forge_base::id::DispatchId;
use forge_base::time;

/// Stage of a dispatch as far as claims depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Queued,
    /// Queued, and waits for an approval.
    Held,
    /// The attempt of this epoch runs, or ran when the process of that epoch ended.
    Running {
        epoch: u64,
    },
    Finished,
}

/// State of a dispatch that claims and cancel requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub stage: Stage,
    /// Attempts begun so far.
    pub attempts: u32,
    pub cancel_requested: bool,
    pub has_callback: bool,
}

/// Decision about a request to accept a dispatch.
#[derive(Debug)]
pub enum AcceptDecision {
    Insert {
        /// The dispatch whose key it takes over, and whose delivery it supersedes.
        retry_of: Option<DispatchId>,
    },
    Duplicate {
        known: Box<DispatchRecord>,
        /// Its delivery is made due again.
        redeliver: bool,
    },
    /// The key belongs to another request, this dispatch.
    Conflict(DispatchId),
    QueueFull,
}

/// Record that holds a key: the one of its owner, else the one of a store of before, whose keys had no owners. Those are
/// found by all callers, as they were then.
pub fn holder<T>(own: Option<T>, of_before: Option<T>) -> Option<T> {
    own.or(of_before)
}

/// Decides about a new dispatch while `queued` ones are waiting.
pub fn accept(new: &NewDispatch, known: Option<Known>, queued: u64) -> Result<AcceptDecision> {
    if new.key.space == KeySpace::Task && new.key.value != new.task_id {
        return Err(Error::InvalidState("a task key must equal the task id"));
    }
    if new.events.is_empty() {
        return Err(Error::InvalidState("a dispatch needs at least one event"));
    }
    let mut retry_of = None;
    if let Some(known) = known {
        match known.verdict(new.key.space, &new.fingerprint) {
            KeyVerdict::Same => {
                let redeliver = matches!(known.dispatch.state, DispatchState::Finished { .. });
                let known = Box::new(known.dispatch);
                return Ok(AcceptDecision::Duplicate { known, redeliver });
            }
            KeyVerdict::Conflict => return Ok(AcceptDecision::Conflict(known.dispatch.id)),
            KeyVerdict::TakeOver => retry_of = Some(known.dispatch.id),
        }
    }
    Ok(match queued >= new.queue_limit {
        true => AcceptDecision::QueueFull,
        false => AcceptDecision::Insert { retry_of },
    })
}

/// True if a new dispatch waits for its `not_before`.
pub fn is_delayed(new: &NewDispatch) -> bool {
    waits_until(new.not_before, new.accepted_at)
}

/// True if this time is still to come.
pub fn waits_until(not_before: Option<Timestamp>, now: Timestamp) -> bool {
    not_before.is_some_and(|time| time > now)
}

/// `Error::Stale` unless the claim matches the dispatch's current attempt; `epoch` is that of this boot.
pub fn check_claim(claim: &Claim, standing: &Standing, epoch: u64) -> Result<()> {
    let is_current = match (claim, standing.stage) {
        (Claim::Unstarted(_), Stage::Queued | Stage::Held) => true,
        (Claim::Rejected(..), Stage::Held) => true,
        (Claim::Attempt(lease), Stage::Running { epoch: of }) => {
            lease.attempt == standing.attempts && lease.epoch == of && of == epoch
        }
        (Claim::Interrupted { attempt, .. }, Stage::Running { epoch: of }) => {
            *attempt == standing.attempts && of != epoch
        }
        (Claim::Unstarted(_), Stage::Running { .. } | Stage::Finished)
        | (Claim::Rejected(..), Stage::Queued | Stage::Running { .. } | Stage::Finished)
        | (
            Claim::Attempt(_) | Claim::Interrupted { .. },
            Stage::Queued | Stage::Held | Stage::Finished,
        ) => false,
    };
    match is_current {
        true => Ok(()),
        false => Err(Error::Stale(claim.id())),
    }
}

pub fn append(lease: &Lease, standing: &Standing, epoch: u64) -> Result<()> {
    check_claim(&Claim::Attempt(lease.clone()), standing, epoch)
}

/// Decision about a finish.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Record {
        was_queued: bool,
        /// Set if there is no delivery; otherwise retention starts when the delivery ends.
        expires_at: Option<Timestamp>,
    },
    /// A cancel was requested first and the result is not `cancelled`.
    CancelRequested,
}

pub fn finish(claim: &Claim, finish: &Finish, standing: &Standing, epoch: u64) -> Result<End> {
    check_claim(claim, standing, epoch)?;
    if standing.cancel_requested && finish.error_code.as_deref() != Some("cancelled") {
        return Ok(End::CancelRequested);
    }
    if finish.delivery.is_some() && !standing.has_callback {
        return Err(Error::InvalidState("the dispatch has no callback"));
    }
    let expires_at = match finish.delivery {
        None => Some(rules::later(finish.at, finish.retention)),
        Some(_) => None,
    };
    Ok(End::Record {
        was_queued: matches!(standing.stage, Stage::Queued | Stage::Held),
        expires_at,
    })
}

pub fn requeue(claim: &Claim, standing: &Standing, epoch: u64) -> Result<()> {
    check_claim(claim, standing, epoch)?;
    if matches!(standing.stage, Stage::Queued | Stage::Held) {
        return Err(Error::InvalidState("the dispatch is already queued"));
    }
    if standing.cancel_requested {
        return Err(Error::InvalidState("a cancel was requested"));
    }
    Ok(())
}

pub fn approve(standing: &Standing) -> Result<()> {
    match standing.stage {
        Stage::Held => Ok(()),
        Stage::Queued | Stage::Running { .. } | Stage::Finished => Err(Error::InvalidState(
            "the dispatch does not wait for an approval",
        )),
    }
}

pub fn request_cancel(standing: &Standing) -> CancelRequest {
    match standing.stage {
        Stage::Finished => CancelRequest::Finished,
        Stage::Queued | Stage::Held => CancelRequest::Queued,
        Stage::Running { .. } => CancelRequest::Running {
            attempt: standing.attempts,
        },
    }
}

/// Times of a pending delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryTimes {
    pub since: Timestamp,
    pub due_at: Timestamp,
    /// Begin of its last attempt.
    pub attempted_at: Option<Timestamp>,
}

/// Times of a pending delivery after the clock was set back: what happened ahead of the clock has happened now, and the
/// wait after it is as long as it was. `None` if nothing has happened ahead, or the delivery is due.
pub fn follow_clock(times: DeliveryTimes, now: Timestamp) -> Option<DeliveryTimes> {
    let DeliveryTimes {
        since,
        due_at,
        attempted_at,
    } = times;
    let ahead = time::left(now, since.max(attempted_at.unwrap_or(since)));
    (!ahead.is_zero() && due_at > now).then(|| DeliveryTimes {
        since: rules::earlier(since, ahead),
        due_at: rules::earlier(due_at, ahead),
        attempted_at: attempted_at.map(|at| at.min(now)),
    })
}

/// Delivery after a settlement.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled {
    pub state: DeliveryState,
    pub due_at: Option<Timestamp>,
    pub settled_at: Option<Timestamp>,
    /// Expiry of the dispatch, set when its delivery has ended.
    pub expires_at: Option<Timestamp>,
}

pub fn settle(state: DeliveryState, settlement: &Settlement) -> Result<Settled> {
    if state != DeliveryState::Pending {
        return Err(Error::InvalidState("the delivery is not pending"));
    }
    let (state, due_at) = match settlement.next {
        AfterAttempt::Delivered => (DeliveryState::Delivered, None),
        AfterAttempt::Dead => (DeliveryState::Dead, None),
        AfterAttempt::Retry { due } => (DeliveryState::Pending, Some(due)),
    };
    let settled_at = due_at.is_none().then_some(settlement.at);
    Ok(Settled {
        state,
        due_at,
        settled_at,
        expires_at: settled_at.map(|at| rules::later(at, settlement.retention)),
    })
}
