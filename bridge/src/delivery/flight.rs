//! Which deliveries are under way in this process: what may be taken on, and what must not be taken
//! twice. Holds no payload, only ids.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::id::DeliveryId;
use crate::store::record::{DueDelivery, DueQuery};

use super::Deliverer;

/// Attempts whose outcome is being written; above it nothing new is begun.
const SETTLING: usize = 256;

pub(super) struct Flights {
    table: Mutex<Table>,
    /// How many there are in all.
    count: watch::Sender<usize>,
    concurrency: usize,
    per_origin: usize,
}

#[derive(Default)]
struct Table {
    phases: HashMap<DeliveryId, Phase>,
    /// Only those with at least one.
    sending: HashMap<String, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Sending,
    /// The receiver's slot is free again.
    Settling,
}

/// One delivery that is under way; its end is the end of this value, however that comes.
pub(super) struct Flight {
    deliverer: Deliverer,
    id: DeliveryId,
    origin: String,
}

impl Flights {
    pub(super) fn new(concurrency: NonZeroUsize, per_origin: NonZeroUsize) -> Self {
        Self {
            table: Mutex::default(),
            count: watch::Sender::new(0),
            concurrency: concurrency.get(),
            per_origin: per_origin.get(),
        }
    }

    /// What to ask the store for; `None` while nothing more may be begun.
    pub(super) fn query(&self, now: Timestamp) -> Option<DueQuery> {
        let table = self.table();
        let sending: usize = table.sending.values().sum();
        let settling = table.phases.len() - sending;
        let limit = self.concurrency.saturating_sub(sending);
        if limit == 0 || settling >= SETTLING {
            return None;
        }
        Some(DueQuery {
            now,
            exclude: table.full(self.per_origin),
            per_origin: self.per_origin,
            limit,
            in_flight: table.phases.keys().copied().collect(),
        })
    }

    /// Takes a delivery on, unless it is under way or its origin has enough.
    pub(super) fn take(&self, due: &DueDelivery, deliverer: &Deliverer) -> Option<Flight> {
        let mut table = self.table();
        let origin = &due.callback.origin;
        let busy = table.sending.get(origin).copied().unwrap_or(0);
        if busy >= self.per_origin || table.phases.contains_key(&due.id) {
            return None;
        }
        table.phases.insert(due.id, Phase::Sending);
        table.sending.insert(origin.clone(), busy + 1);
        self.count.send_replace(table.phases.len());
        Some(Flight {
            deliverer: deliverer.clone(),
            id: due.id,
            origin: origin.clone(),
        })
    }

    /// Origins that take no more at present.
    pub(super) fn full(&self) -> Vec<String> {
        self.table().full(self.per_origin)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table().phases.is_empty()
    }

    pub(super) async fn none_left(&self) {
        let mut count = self.count.subscribe();
        // The sender is in `self`, so it cannot go away meanwhile.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Table {
    fn full(&self, per_origin: usize) -> Vec<String> {
        let busy = self.sending.iter();
        busy.filter(|(_, sending)| **sending >= per_origin)
            .map(|(origin, _)| origin.clone())
            .collect()
    }

    fn free_slot(&mut self, origin: &str) {
        if let Some(sending) = self.sending.get_mut(origin) {
            *sending -= 1;
            if *sending == 0 {
                self.sending.remove(origin);
            }
        }
    }
}

impl Flight {
    /// The receiver is done; its slot goes to the next while the outcome is written.
    pub(super) fn landed(&self) {
        let mut table = self.deliverer.shared.flights.table();
        if table.phases.insert(self.id, Phase::Settling) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
        }
        drop(table);
        self.deliverer.wake();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let flights = &self.deliverer.shared.flights;
        let mut table = flights.table();
        if table.phases.remove(&self.id) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
        }
        flights.count.send_replace(table.phases.len());
        drop(table);
        self.deliverer.wake();
    }
}
