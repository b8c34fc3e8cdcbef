//! What the writer tells everybody, readable without asking it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::ledger::{Ledger, Numbers};
use super::readers::Readers;
use super::schema;
use super::tail::Tail;
use super::writer::Unwritable;
use crate::event::LogName;
use crate::store::Error;
use crate::store::meters::Meters;
use crate::store::record::{Counts, LogBounds};

pub(super) struct Shared {
    pub(super) file: PathBuf,
    pub(super) store_id: String,
    pub(super) log: LogName,
    pub(super) epoch: u64,
    pub(super) readers: Readers,
    pub(super) status: Mutex<std::result::Result<(), String>>,
    pub(super) published: Mutex<Published>,
    pub(super) removed: AtomicU64,
    /// The last event that somebody may know of, and the last one that is in the tables.
    pub(super) last_event: AtomicU64,
    pub(super) issued: watch::Sender<u64>,
    /// The number of the last promise that somebody was told of.
    pub(super) promised: AtomicU64,
    /// The number of the last one that somebody waits for in the tables.
    pub(super) wanted: AtomicU64,
    pub(super) in_tables: watch::Sender<InTables>,
    pub(super) tail: Tail,
    pub(super) meters: Arc<Meters>,
}

/// How far the tables have come with what was promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct InTables {
    pub(super) number: u64,
    /// They will not come further before the file is opened anew.
    pub(super) stuck: bool,
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

    /// Everybody sees it from now on.
    pub(super) fn unwritable(&self, error: &rusqlite::Error) -> Unwritable {
        let is_damage = schema::is_damage(error);
        let reason = match is_damage {
            true => format!("{} is damaged ({error})", self.file.display()),
            false => error.to_string(),
        };
        self.set_status(Err(reason.clone()));
        self.in_tables.send_modify(|seen| seen.stuck = true);
        Unwritable { reason, is_damage }
    }

    /// Returns when the tables have all that was promised until now.
    pub(super) async fn made(&self, call: impl FnOnce()) -> Result<(), Error> {
        let promised = self.promised.load(Ordering::Acquire);
        let has = |seen: &InTables| seen.number >= promised;
        let mut in_tables = self.in_tables.subscribe();
        if has(&in_tables.borrow_and_update()) {
            return Ok(());
        }
        self.want();
        call();
        match in_tables.wait_for(|seen| has(seen) || seen.stuck).await {
            Ok(seen) if has(&seen) => Ok(()),
            Ok(_) | Err(_) => Err(Error::Unavailable(
                "it cannot be read before it can be written again".to_owned(),
            )),
        }
    }

    /// Somebody waits until the tables have all that is promised.
    pub(super) fn want(&self) {
        let promised = self.promised.load(Ordering::Acquire);
        self.wanted.fetch_max(promised, Ordering::AcqRel);
    }

    /// Whether the tables do not have yet what somebody waits for.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > self.in_tables.borrow().number
    }

    /// Called after a commit.
    pub(super) fn publish(&self, ledger: &mut Ledger) {
        {
            let mut published = lock(&self.published);
            published.counts = ledger.numbers.counts;
            if ledger.take_changed() {
                published.queues.clone_from(&ledger.queues);
            }
        }
        let bounds = ledger.numbers.bounds;
        self.last_event.store(bounds.issued, Ordering::Release);
        self.publish_log(bounds);
    }

    /// What there is of what, as soon as it is promised.
    pub(super) fn publish_promised(&self, numbers: &Numbers, last: u64) {
        lock(&self.published).counts = numbers.counts;
        self.last_event
            .store(numbers.bounds.issued, Ordering::Release);
        self.promised.store(last, Ordering::Release);
    }

    /// Who waited for the tables goes on. What is published besides comes before: he looks at it.
    pub(super) fn publish_made(&self, last: Option<u64>) {
        if let Some(last) = last {
            self.in_tables.send_modify(|seen| seen.number = last);
        }
    }

    /// Who reads what has changed finds it in the tables.
    pub(super) fn publish_log(&self, bounds: LogBounds) {
        self.removed.store(bounds.removed, Ordering::Release);
        self.issued
            .send_if_modified(|seen| std::mem::replace(seen, bounds.issued) != bounds.issued);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
