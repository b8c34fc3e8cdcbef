//! Deliveries whose time is over while nothing is sent to their receiver: they are dead letters without
//! a further attempt, so that a receiver that never comes back keeps nothing pending for ever.

use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::Timestamp;

use forge_base::time;
use forge_store as store;
use forge_store::record::{AfterAttempt, DueDelivery, Settlement};

use super::{Deliverer, attempt};

/// Ended in one go; others are sent before the next.
const STEP: usize = 256;

impl Deliverer {
    /// A step for each receiver that was given up, or given up again, since the last time.
    pub(super) async fn end_overdue(&self) -> store::Result<()> {
        let in_flight = &self.shared.in_flight;
        for origin in in_flight.destinations(|all| all.take_overdue()) {
            let more = self.end_overdue_at(&origin).await;
            if !matches!(more, Ok(false)) {
                in_flight.destinations(|all| all.look_again(origin));
                self.wake();
            }
            more?;
        }
        Ok(())
    }

    /// Whether there may be more.
    async fn end_overdue_at(&self, origin: &str) -> store::Result<bool> {
        let setup = &self.shared.setup;
        let now = setup.clock.now();
        let found = setup.store.overdue_deliveries(origin, now, STEP).await?;
        let more = found.len() == STEP;
        let idle = found
            .iter()
            .filter(|due| !self.shared.in_flight.has(due.id));
        let retention = *setup.retention.get();
        let ended = try_join_all(idle.map(|due| self.end(due, now, retention))).await?;
        self.shared.meters.dead.add(ended.len() as u64);
        if !ended.is_empty() {
            let count = ended.len();
            tracing::warn!(
                delivery.origin = origin,
                count,
                "{count} deliveries to {origin} are dead letters: their time is over and it does not answer"
            );
        }
        // Of what is under way there may be a whole step: then the next time is early enough.
        Ok(more && !ended.is_empty())
    }

    async fn end(
        &self,
        due: &DueDelivery,
        now: Timestamp,
        retention: Duration,
    ) -> store::Result<()> {
        let after = time::between(due.since, now).as_secs();
        let reason = format!(
            "given up after {} attempts and {after} s: its receiver is not called for the time being",
            due.attempts
        );
        let settlement = Settlement {
            at: now,
            attempt: None,
            next: AfterAttempt::Dead,
            events: vec![attempt::dead(due.id, due.attempts, &reason, now)],
            retention,
        };
        match self.shared.setup.store.settle(due.id, settlement).await {
            Err(error @ store::Error::Unavailable(_)) => Err(error),
            // Superseded or removed meanwhile: there is nothing left to end.
            Ok(())
            | Err(
                store::Error::InvalidState(_)
                | store::Error::NotFound
                | store::Error::Stale(_)
                | store::Error::Unreadable(_),
            ) => Ok(()),
        }
    }
}
