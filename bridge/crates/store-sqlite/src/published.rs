//! State that the writer publishes after each commit, readable without asking it: counts, queues, bounds of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::watch;

use super::engine::TransactionState;
use super::tables::Tx;
use super::tables::counters::{Counters, Savepoint};
use super::tables::schema::{self, Identity};
use forge_store::record::{Counts, LogBounds};

pub(super) struct Published {
    pub(super) identity: Identity,
    state: Mutex<State>,
    /// Position of the newest committed event; wakes readers.
    pub(super) newest: watch::Sender<u64>,
}

struct State {
    counts: Counts,
    queues: BTreeMap<String, u64>,
    bounds: LogBounds,
}

impl Published {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            state: Mutex::new(State {
                counts: Counts::default(),
                queues: BTreeMap::new(),
                bounds: LogBounds {
                    issued: 0,
                    removed: 0,
                },
            }),
            newest: watch::Sender::new(0),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    pub(super) fn queues(&self) -> Vec<(String, u64)> {
        let state = self.state();
        let queues = state.queues.iter();
        queues.map(|(name, count)| (name.clone(), *count)).collect()
    }

    pub(super) fn bounds(&self) -> LogBounds {
        self.state().bounds
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's own counters, published when a transaction is committed.
pub(super) struct Committed {
    counters: Counters,
    published: Arc<Published>,
}

impl Committed {
    pub(super) fn new(counters: Counters, published: Arc<Published>) -> Self {
        Self {
            counters,
            published,
        }
    }

    pub(super) fn tx<'a>(&'a mut self, conn: &'a Connection) -> Tx<'a> {
        Tx {
            conn,
            counters: &mut self.counters,
            log: &self.published.identity.log,
            epoch: self.published.identity.epoch,
        }
    }
}

impl TransactionState for Committed {
    type Savepoint = Savepoint;

    fn savepoint(&self) -> Savepoint {
        self.counters.savepoint()
    }

    fn rollback_to(&mut self, savepoint: Savepoint) {
        self.counters.rollback_to(savepoint);
    }

    fn committed(&mut self) {
        let queues_changed = self.counters.apply_pending();
        let bounds = self.counters.bounds;
        {
            let mut state = self.published.state();
            state.counts = self.counters.counts;
            state.bounds = bounds;
            if queues_changed {
                state.queues.clone_from(&self.counters.queues);
            }
        }
        self.published
            .newest
            .send_if_modified(|seen| std::mem::replace(seen, bounds.issued) != bounds.issued);
    }

    fn reload(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        if schema::identity(connection)?.as_ref() != Some(&self.published.identity) {
            return Ok(false);
        }
        schema::try_to_write(connection)?;
        self.counters = Counters::load(connection)?;
        Ok(true)
    }
}
