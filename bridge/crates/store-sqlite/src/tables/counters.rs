//! Counts and positions that the writer keeps in memory: the next ones it assigns, and how many records are in which
//! state. After each commit they are published, readable without asking the writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::Connection;
use tokio::sync::watch;

use super::rows;
use super::schema::{self, Identity};
use crate::engine::{TransactionState, lock};
use forge_base::event::LogName;
use forge_store::record::{Counts, LogBounds};

/// Counts and positions as of the last commit.
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
}

/// Queued dispatches by adapter. The first two, which can be many, read nothing but their indexes. The last one names no
/// index, because a file of version 1 that is checked has none.
pub(crate) const QUEUED: [&str; 5] = [
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_ready WHERE phase = 0 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_delayed_by_provider WHERE phase = 1 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_turn WHERE turn IS NOT NULL AND phase = 2 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_cancelled WHERE phase = 3 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch WHERE phase = -1 GROUP BY provider",
];

impl Totals {
    /// Counts over the partial indexes; the cost grows with unfinished records, not with history.
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u64>(0));
        let mut queues = BTreeMap::new();
        for sql in QUEUED {
            let counted: Vec<(String, u64)> = rows::all(connection, sql, [], |row| row.try_into())?;
            for (provider, count) in counted {
                *queues.entry(provider).or_insert(0) += count;
            }
        }
        let removed = number("SELECT value FROM meta WHERE name = 'removed'")?;
        Ok(Self {
            bounds: LogBounds {
                issued: issued(connection)?,
                removed,
            },
            counts: Counts {
                queued: queues.values().sum(),
                running: number("SELECT count(*) FROM dispatch WHERE phase = 4")?,
                deliveries_pending: number("SELECT count(*) FROM dispatch WHERE delivery = 0")?,
                deliveries_dead: number("SELECT count(*) FROM dispatch WHERE delivery = 2")?,
            },
            queues,
        })
    }
}

/// The writer's own counters.
pub(crate) struct Counters {
    pub(crate) log: LogName,
    pub(crate) epoch: u64,
    pub(crate) bounds: LogBounds,
    pub(crate) counts: Counts,
    /// Changes of the queue of an adapter by the open transaction, by one each.
    moves: Vec<(String, i64)>,
    /// Take back the effects of the open transaction on judges of signals.
    undo: Vec<Box<dyn FnOnce() + Send>>,
    published: Arc<Published>,
}

impl Counters {
    pub(crate) fn new(published: Arc<Published>) -> Self {
        let Totals { bounds, counts, .. } = *published.totals();
        Self {
            log: published.identity.log.clone(),
            epoch: published.identity.epoch,
            bounds,
            counts,
            moves: Vec::new(),
            undo: Vec::new(),
            published,
        }
    }

    pub(crate) fn entered_queue(&mut self, provider: &str) {
        self.counts.queued += 1;
        self.moves.push((provider.to_owned(), 1));
    }

    pub(crate) fn left_queue(&mut self, provider: &str) {
        self.counts.queued -= 1;
        self.moves.push((provider.to_owned(), -1));
    }

    /// Calls `undo` if the open transaction is rolled back.
    pub(crate) fn on_rollback(&mut self, undo: Box<dyn FnOnce() + Send>) {
        self.undo.push(undo);
    }

    /// Assigns the positions of this many events; returns the first of them.
    pub(crate) fn assign_positions(&mut self, events: usize) -> u64 {
        let first = self.bounds.issued + 1;
        self.bounds.issued += events as u64;
        first
    }
}

impl TransactionState for Counters {
    type Savepoint = (LogBounds, Counts, usize, usize);

    fn savepoint(&self) -> Self::Savepoint {
        (self.bounds, self.counts, self.moves.len(), self.undo.len())
    }

    fn rollback_to(&mut self, (bounds, counts, moves, undo): Self::Savepoint) {
        (self.bounds, self.counts) = (bounds, counts);
        self.moves.truncate(moves);
        let taken_back = self.undo.drain(undo..).rev();
        taken_back.for_each(|undo| undo());
    }

    fn committed(&mut self) {
        self.undo.clear();
        let mut totals = self.published.totals();
        totals.bounds = self.bounds;
        totals.counts = self.counts;
        if !self.moves.is_empty() {
            for (provider, by) in self.moves.drain(..) {
                let count = totals.queues.entry(provider).or_insert(0);
                *count = count.saturating_add_signed(by);
            }
            totals.queues.retain(|_, count| *count > 0);
        }
        drop(totals);
        let issued = self.bounds.issued;
        let newest = &self.published.newest;
        newest.send_if_modified(|seen| std::mem::replace(seen, issued) != issued);
    }

    fn reload(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        if schema::identity(connection)?.as_ref() != Some(&self.published.identity) {
            return Ok(false);
        }
        schema::try_to_write(connection)?;
        let totals = Totals::load(connection)?;
        (self.bounds, self.counts) = (totals.bounds, totals.counts);
        self.moves.clear();
        *self.published.totals() = totals;
        self.committed();
        Ok(true)
    }
}

/// Highest position ever assigned, to an event that is there or was removed; 0 if there was none.
pub(crate) fn issued(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT max(
                 coalesce((SELECT last FROM event ORDER BY first DESC LIMIT 1), 0),
                 coalesce((SELECT seq + first_events - 1 FROM dispatch ORDER BY seq DESC LIMIT 1), 0),
                 (SELECT value FROM meta WHERE name = 'removed'))";
    Ok(rows::one(connection, sql, [], |row| row.get(0))?.unwrap_or(0))
}
