//! Counts and positions as of the last commit, readable without asking the database.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use forge_base::event::LogName;
use forge_store::record::{Counts, DeliveryState, LogBounds};

use crate::batch::{Placed, Rows};
use crate::engine::lock;
use crate::tables::rows::{DeliveryRow, DispatchRow, phase};

/// Names of a store, and of this node in it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) store_id: String,
    pub(crate) log: LogName,
    pub(crate) node: String,
    pub(crate) epoch: u64,
}

pub(crate) struct Published {
    pub(crate) identity: Identity,
    totals: Mutex<Totals>,
    /// Position of the newest committed event; wakes readers.
    pub(crate) newest: watch::Sender<u64>,
}

pub(crate) struct Totals {
    pub(crate) bounds: LogBounds,
    pub(crate) counts: Counts,
    /// Queued dispatches of each adapter.
    pub(crate) queues: BTreeMap<String, u64>,
}

impl Published {
    pub(crate) fn new(identity: Identity, totals: Totals) -> Self {
        Self {
            identity,
            newest: watch::Sender::new(totals.bounds.issued),
            totals: Mutex::new(totals),
        }
    }

    pub(crate) fn totals(&self) -> MutexGuard<'_, Totals> {
        lock(&self.totals)
    }

    /// Publishes what a batch has changed.
    pub(crate) fn apply(&self, rows: &Rows, placed: Placed) {
        let mut totals = self.totals();
        for (before, after) in rows.dispatches.changes() {
            totals.count_dispatch(before, -1);
            totals.count_dispatch(after, 1);
        }
        for (before, after) in rows.deliveries.changes() {
            totals.count_delivery(before, -1);
            totals.count_delivery(after, 1);
        }
        totals.queues.retain(|_, count| *count > 0);
        totals.bounds.removed = totals.bounds.removed.max(rows.removed);
        let events = rows.event_count();
        if events > 0 {
            totals.bounds.issued = totals.bounds.issued.max(placed.base + events);
        }
        let issued = totals.bounds.issued;
        drop(totals);
        self.newest
            .send_if_modified(|seen| mem::replace(seen, issued) != issued);
    }
}

impl Totals {
    fn count_dispatch(&mut self, dispatch: Option<&DispatchRow>, by: i64) {
        let Some(dispatch) = dispatch else { return };
        let add = |count: &mut u64| *count = count.saturating_add_signed(by);
        match dispatch.phase {
            phase::FINISHED => {}
            phase::RUNNING => add(&mut self.counts.running),
            _ => {
                add(&mut self.counts.queued);
                add(self.queues.entry(dispatch.provider.clone()).or_insert(0));
            }
        }
    }

    fn count_delivery(&mut self, delivery: Option<&DeliveryRow>, by: i64) {
        let counts = &mut self.counts;
        let count = match delivery.map(|delivery| delivery.state) {
            Some(DeliveryState::Pending) => &mut counts.deliveries_pending,
            Some(DeliveryState::Dead) => &mut counts.deliveries_dead,
            Some(DeliveryState::Delivered | DeliveryState::Superseded) | None => return,
        };
        *count = count.saturating_add_signed(by);
    }
}
