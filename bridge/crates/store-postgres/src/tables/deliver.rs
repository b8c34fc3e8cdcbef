//! Changes of a delivery: made due again, superseded, settled after an attempt. A dispatch has at most one delivery, which
//! has the same id with another prefix, and changes under the lock of the dispatch only.

use jiff::Timestamp;

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::record::{DeliveryAttempt, DeliveryState, Settlement};
use forge_store::transition::DeliveryTimes;
use forge_store::{Error, Result, rules, transition};

use super::rows::{AttemptRow, DeliveryRow};
use crate::batch::{Needs, Rows, Stop};
use crate::rows::statement::params;

/// Number of a delivery's attempts, and the time at which the last one began.
pub(super) type Attempted = (u32, Option<Timestamp>);

/// The dispatch of a delivery.
pub(super) fn dispatch_of(id: DeliveryId) -> DispatchId {
    DispatchId::from_bytes(*id.as_bytes())
}

/// Rows that a change of deliveries needs.
pub(super) fn needs(dispatches: Vec<DispatchId>) -> Needs {
    Needs {
        deliveries: dispatches.clone(),
        dispatches,
        ..Needs::default()
    }
}

impl Rows {
    /// Makes a delivery due again, whatever its state, and returns true. False if there is none.
    pub(super) fn redeliver(&mut self, id: DispatchId, now: Timestamp) -> bool {
        let Some(delivery) = self.deliveries.get_mut(&id) else {
            return false;
        };
        (delivery.state, delivery.epoch) = (DeliveryState::Pending, 0);
        (delivery.since, delivery.due_at, delivery.settled_at) = (now, Some(now), None);
        if let Some(dispatch) = self.dispatches.get_mut(&id) {
            dispatch.expires_at = None;
        }
        true
    }

    /// Moves the times of a delivery that is pending; returns true if they moved, false if it was attempted meanwhile.
    pub(super) fn follow_clock(
        &mut self,
        id: DispatchId,
        (number, attempted_at): Attempted,
        now: Timestamp,
    ) -> bool {
        let delivery = self.deliveries.get_mut(&id);
        let Some(delivery) = delivery.filter(|delivery| delivery.attempts == number) else {
            return false;
        };
        let times = delivery.due_at.and_then(|due_at| {
            let times = DeliveryTimes {
                since: delivery.since,
                due_at,
                attempted_at,
            };
            transition::follow_clock(times, now)
        });
        let Some(times) = times else {
            return false;
        };
        (delivery.since, delivery.due_at) = (times.since, Some(times.due_at));
        if let Some(at) = times.attempted_at {
            let sql = "UPDATE attempt SET at = $3 WHERE id = $1 AND number = $2";
            self.execute(sql, params![id, number, at]);
        }
        true
    }

    pub(super) fn supersede(&mut self, id: DispatchId, now: Timestamp) {
        let is_open = |delivery: &&mut DeliveryRow| {
            matches!(delivery.state, DeliveryState::Pending | DeliveryState::Dead)
        };
        let Some(delivery) = self.deliveries.get_mut(&id).filter(is_open) else {
            return;
        };
        delivery.state = DeliveryState::Superseded;
        (delivery.due_at, delivery.settled_at) = (None, Some(now));
        let expires_at = rules::later(now, delivery.retention);
        if let Some(dispatch) = self.dispatches.get_mut(&id) {
            dispatch.expires_at = Some(expires_at);
        }
    }

    pub(super) fn settle(&mut self, id: DispatchId, settlement: &Settlement) -> Result<(), Stop> {
        let epoch = self.epoch;
        let delivery = self.deliveries.get(&id).ok_or(Error::NotFound)?;
        let settled = transition::settle(delivery.state, settlement)?;
        if ![0, epoch].contains(&delivery.epoch) {
            return Err(Error::InvalidState("another node attempts the delivery").into());
        }
        let delivery = self.deliveries.get_mut(&id).ok_or(Error::NotFound)?;
        // A retry is made by whichever node comes first.
        (delivery.state, delivery.epoch) = (settled.state, 0);
        (delivery.due_at, delivery.settled_at) = (settled.due_at, settled.settled_at);
        if settled.settled_at.is_some() {
            delivery.retention = settlement.retention;
        }
        if let Some(attempt) = &settlement.attempt {
            delivery.attempts += 1;
            let number = delivery.attempts;
            self.add_attempt(id, number, attempt);
        }
        self.append(id, &settlement.events);
        if let (Some(dispatch), Some(_)) = (self.dispatches.get_mut(&id), settled.settled_at) {
            dispatch.expires_at = settled.expires_at;
        }
        Ok(())
    }

    /// Adds an attempt, and forgets one in the middle.
    fn add_attempt(&mut self, id: DispatchId, number: u32, attempt: &DeliveryAttempt) {
        let attempt = attempt.clone();
        self.attempts.push(AttemptRow {
            id,
            attempt: DeliveryAttempt { number, ..attempt },
        });
        let forgotten = number.saturating_sub(rules::LAST_ATTEMPTS);
        if forgotten > rules::FIRST_ATTEMPTS {
            let sql = "DELETE FROM attempt WHERE id = $1 AND number = $2";
            self.execute(sql, params![id, forgotten]);
        }
    }
}
