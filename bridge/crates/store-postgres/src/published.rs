//! Numbers and positions as of the last commit or poll, readable without asking the database.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;
use uuid::Uuid;

use forge_base::event::LogName;
use forge_store::node::Node;
use forge_store::record::LogBounds;

use crate::batch::{Placed, Rows};
use crate::engine::lock;
use crate::totals::Numbers;

/// Dispatches of one adapter that a round of a scheduler starts at most.
const ROUND: u64 = 64;

/// Names of a store, and of this process in it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) store_id: String,
    pub(crate) log: LogName,
    pub(crate) instance: Uuid,
}

pub(crate) struct Published {
    pub(crate) identity: Identity,
    pub(crate) node: Node,
    epoch: AtomicU64,
    totals: Mutex<Totals>,
    /// Position of the newest committed event; wakes readers.
    pub(crate) newest: watch::Sender<u64>,
}

pub(crate) struct Totals {
    pub(crate) bounds: LogBounds,
    pub(crate) numbers: Numbers,
}

impl Published {
    pub(crate) fn new(identity: Identity, node: Node, epoch: u64, totals: Totals) -> Self {
        Self {
            identity,
            node,
            epoch: AtomicU64::new(epoch),
            newest: watch::Sender::new(totals.bounds.issued),
            totals: Mutex::new(totals),
        }
    }

    /// The present epoch of this node, which can have ended.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn begin_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    pub(crate) fn totals(&self) -> MutexGuard<'_, Totals> {
        lock(&self.totals)
    }

    /// Queued dispatches of each adapter. Of adapters with dispatches that can start there are enough for a whole round,
    /// because the count of another node can be behind.
    pub(crate) fn queues(&self) -> Vec<(String, u64)> {
        let mut queues = self.totals().numbers.queues.clone();
        if !self.node.others.borrow().is_empty() {
            for provider in &self.node.notices.borrow().ready {
                let count = queues.entry(provider.clone()).or_insert(0);
                *count = (*count).max(ROUND);
            }
        }
        queues.into_iter().collect()
    }

    /// Publishes what a batch has changed.
    pub(crate) fn apply(&self, rows: &mut Rows, placed: Placed) {
        let mut totals = self.totals();
        if let Some(counted) = rows.counted.take() {
            totals.numbers = counted;
        }
        let numbers = &mut totals.numbers;
        for (before, after) in rows.dispatches.changes() {
            numbers.count_dispatch(before, -1);
            numbers.count_dispatch(after, 1);
        }
        for (before, after) in rows.deliveries.changes() {
            numbers.count_delivery(before, -1);
            numbers.count_delivery(after, 1);
        }
        numbers.queues.retain(|_, count| *count > 0);
        let events = rows.event_count();
        let issued = if events > 0 { placed.base + events } else { 0 };
        drop(totals);
        self.observe(issued, rows.removed);
    }

    /// Publishes positions up to which everything has committed and is removed.
    pub(crate) fn observe(&self, issued: u64, removed: u64) {
        let mut totals = self.totals();
        let bounds = &mut totals.bounds;
        bounds.removed = bounds.removed.max(removed);
        bounds.issued = bounds.issued.max(issued).max(removed);
        let issued = bounds.issued;
        drop(totals);
        self.newest
            .send_if_modified(|seen| mem::replace(seen, issued) != issued);
    }
}
