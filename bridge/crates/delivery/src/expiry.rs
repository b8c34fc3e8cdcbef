//! Expiry of deliveries whose deadline passes while the receiver's breaker is open: each becomes a dead
//! letter without a further attempt, so a receiver that never recovers does not keep deliveries pending for
//! ever.

use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::Timestamp;

use forge_base::time;
use forge_store as store;
use forge_store::record::{AfterAttempt, DueDelivery, Settlement};

use super::{Deliverer, attempt};

/// Deliveries ended per step; other deliveries are sent between steps.
const STEP: usize = 256;

impl Deliverer {
    /// Runs one step for each receiver whose breaker has opened since the last call.
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

    /// Ends one batch; returns true if more might be left.
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
                "{count} deliveries to {origin} are dead letters: their deadline passed while its circuit breaker was open"
            );
        }
        // A batch can consist of deliveries in flight only; the next opening checks these again.
        Ok(more && !ended.is_empty())
    }

    async fn end(
        &self,
        due: &DueDelivery,
        now: Timestamp,
        retention: Duration,
    ) -> store::Result<()> {
        let after = time::wall_age(due.since, now).as_secs();
        let reason = format!(
            "given up after {} attempts and {after} s: the receiver's circuit breaker is open",
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
            // Superseded or removed meanwhile: nothing left to end.
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
