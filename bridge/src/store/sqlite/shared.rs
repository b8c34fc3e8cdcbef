//! What the writer tells everybody, readable without asking it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::ledger::Ledger;
use super::readers::Readers;
use super::tail::Tail;
use crate::event::LogName;
use crate::store::meters::Meters;
use crate::store::record::Counts;

pub(super) struct Shared {
    pub(super) store_id: String,
    pub(super) log: LogName,
    pub(super) epoch: u64,
    pub(super) readers: Readers,
    pub(super) status: Mutex<std::result::Result<(), String>>,
    pub(super) published: Mutex<Published>,
    pub(super) removed: AtomicU64,
    pub(super) issued: watch::Sender<u64>,
    pub(super) tail: Tail,
    pub(super) meters: Arc<Meters>,
}

#[derive(Default)]
pub(super) struct Published {
    pub(super) counts: Counts,
    pub(super) queues: BTreeMap<String, u64>,
}

impl Shared {
    pub(super) fn set_status(&self, status: std::result::Result<(), String>) {
        *lock(&self.status) = status;
    }

    /// Called after a commit.
    pub(super) fn publish(&self, ledger: &mut Ledger) {
        let numbers = ledger.numbers;
        {
            let mut published = lock(&self.published);
            published.counts = numbers.counts;
            if ledger.take_changed() {
                published.queues.clone_from(&ledger.queues);
            }
        }
        let bounds = numbers.bounds;
        self.removed.store(bounds.removed, Ordering::Release);
        self.issued
            .send_if_modified(|seen| std::mem::replace(seen, bounds.issued) != bounds.issued);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
