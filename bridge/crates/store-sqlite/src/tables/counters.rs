//! Counts and positions that the writer keeps in memory: the next ones it assigns, and how many records are in which
//! state.

use std::collections::BTreeMap;

use rusqlite::Connection;

use forge_store::record::{Counts, LogBounds};

/// A point in a transaction that the counters can be rolled back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savepoint {
    bounds: LogBounds,
    counts: Counts,
    pending: usize,
}

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) bounds: LogBounds,
    pub(crate) counts: Counts,
    /// Queued dispatches of each adapter, as committed.
    pub(crate) queues: BTreeMap<String, u64>,
    /// True if `queues` differs from the published one.
    queues_changed: bool,
    /// Changes to `queues` by the open transaction.
    pending: Vec<(String, QueueChange)>,
}

#[derive(Clone, Copy, Debug)]
enum QueueChange {
    Entered,
    Left,
}

/// Queued dispatches by adapter. The first two, which can be many, read nothing but their indexes.
pub(crate) const QUEUED: [&str; 4] = [
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_ready WHERE phase = 0 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_delayed_by_provider WHERE phase = 1 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_turn WHERE turn IS NOT NULL AND phase = 2 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_cancelled WHERE phase = 3 GROUP BY provider",
];

impl Counters {
    /// Counts over the partial indexes; the cost grows with unfinished records, not with history.
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u64>(0));
        let mut queues = BTreeMap::new();
        for sql in QUEUED {
            let mut statement = connection.prepare(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                *queues.entry(row.get(0)?).or_insert(0) += row.get::<_, u64>(1)?;
            }
        }
        let removed = number("SELECT value FROM meta WHERE name = 'removed'")?;
        let logged = newest(connection)?;
        Ok(Self {
            bounds: LogBounds {
                issued: logged.max(removed),
                removed,
            },
            counts: Counts {
                queued: queues.values().sum(),
                running: number("SELECT count(*) FROM dispatch WHERE phase = 4")?,
                deliveries_pending: number("SELECT count(*) FROM dispatch WHERE delivery = 0")?,
                deliveries_dead: number("SELECT count(*) FROM dispatch WHERE delivery = 2")?,
            },
            queues,
            queues_changed: true,
            pending: Vec::new(),
        })
    }

    pub(crate) fn entered_queue(&mut self, provider: &str) {
        self.counts.queued += 1;
        self.pending
            .push((provider.to_owned(), QueueChange::Entered));
    }

    pub(crate) fn left_queue(&mut self, provider: &str) {
        self.counts.queued -= 1;
        self.pending.push((provider.to_owned(), QueueChange::Left));
    }

    /// Assigns the positions of this many events; returns the first of them.
    pub(crate) fn assign_positions(&mut self, events: usize) -> u64 {
        let first = self.bounds.issued + 1;
        self.bounds.issued += events as u64;
        first
    }

    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint {
            bounds: self.bounds,
            counts: self.counts,
            pending: self.pending.len(),
        }
    }

    pub(crate) fn rollback_to(&mut self, savepoint: Savepoint) {
        self.bounds = savepoint.bounds;
        self.counts = savepoint.counts;
        self.pending.truncate(savepoint.pending);
    }

    /// Applies the changes of a committed transaction to `queues`; true if the result has to be published.
    pub(crate) fn apply_pending(&mut self) -> bool {
        let mut changed = std::mem::take(&mut self.queues_changed);
        changed |= !self.pending.is_empty();
        for (provider, change) in self.pending.drain(..) {
            let count = self.queues.entry(provider).or_insert(0);
            match change {
                QueueChange::Entered => *count += 1,
                QueueChange::Left => *count -= 1,
            }
        }
        if changed {
            self.queues.retain(|_, count| *count > 0);
        }
        changed
    }
}

/// Position of the newest event; 0 if there is none.
pub(crate) fn newest(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT max(
                 coalesce((SELECT last FROM event ORDER BY first DESC LIMIT 1), 0),
                 coalesce((SELECT seq + first_events - 1 FROM dispatch ORDER BY seq DESC LIMIT 1), 0))";
    Ok(super::rows::one(connection, sql, [], |row| row.get(0))?.unwrap_or(0))
}
