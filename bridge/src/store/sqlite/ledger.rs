//! The numbers that the writer keeps in memory: what it gives out next, and how much there is of what.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::id::{DeliveryId, DispatchId};
use crate::store::record::{Counts, LogBounds};

#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// The last `dispatch.seq` given out.
    pub(super) last_dispatch: u64,
    pub(super) bounds: LogBounds,
    pub(super) counts: Counts,
}

impl Numbers {
    /// Whether what comes next has the same places in the tables.
    pub(super) fn same_places(&self, other: &Self) -> bool {
        (self.last_dispatch, self.bounds.issued) == (other.last_dispatch, other.bounds.issued)
    }
}

/// A moment in a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    numbers: Numbers,
    pending: usize,
    turns: usize,
}

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) numbers: Numbers,
    /// Queued dispatches of each adapter.
    pub(super) queues: BTreeMap<String, u64>,
    /// `queues` differs from what was published.
    changed: bool,
    /// Changes to `queues` by the transaction that runs.
    pending: Vec<(String, Change)>,
    /// What the transaction that runs has changed, as far as promises go by it.
    pub(super) turns: Vec<Turn>,
}

/// What has become of one that may be promised about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// It runs, is in this attempt, has so many events, and nobody wants it cancelled.
    Runs(DispatchId, Running),
    RunsNot(DispatchId),
    /// The delivery is pending.
    Owed(DeliveryId),
    Settled(DeliveryId),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) attempt: u32,
    pub(super) events: u64,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Entered,
    Left,
}

/// What waits, by its adapter. The first two, which may be many, read nothing but their indexes.
pub(super) const QUEUED: [&str; 4] = [
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_ready WHERE phase = 0 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_delayed_by_provider WHERE phase = 1 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_turn WHERE turn IS NOT NULL AND phase = 2 GROUP BY provider",
    "SELECT provider, count(*) FROM dispatch INDEXED BY dispatch_cancelled WHERE phase = 3 GROUP BY provider",
];

impl Ledger {
    /// Counts over the partial indexes; the cost grows with what waits, not with history.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
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
        let logged =
            number("SELECT coalesce((SELECT last FROM event ORDER BY first DESC LIMIT 1), 0)")?;
        Ok(Self {
            numbers: Numbers {
                last_dispatch: number("SELECT coalesce(max(seq), 0) FROM dispatch")?,
                bounds: LogBounds {
                    issued: logged.max(removed),
                    removed,
                },
                counts: Counts {
                    queued: queues.values().sum(),
                    running: number("SELECT count(*) FROM dispatch WHERE phase = 4")?,
                    deliveries_pending: number("SELECT count(*) FROM delivery WHERE state = 0")?,
                    deliveries_dead: number("SELECT count(*) FROM delivery WHERE state = 2")?,
                },
            },
            queues,
            changed: true,
            pending: Vec::new(),
            turns: Vec::new(),
        })
    }

    pub(super) fn entered_queue(&mut self, provider: &str) {
        self.numbers.counts.queued += 1;
        self.pending.push((provider.to_owned(), Change::Entered));
    }

    pub(super) fn left_queue(&mut self, provider: &str) {
        self.numbers.counts.queued -= 1;
        self.pending.push((provider.to_owned(), Change::Left));
    }

    /// Where the ledger stands, to come back to.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            numbers: self.numbers,
            pending: self.pending.len(),
            turns: self.turns.len(),
        }
    }

    pub(super) fn back_to(&mut self, mark: Mark) {
        self.numbers = mark.numbers;
        self.pending.truncate(mark.pending);
        self.turns.truncate(mark.turns);
    }

    /// The transaction is committed.
    pub(super) fn keep(&mut self) {
        self.changed |= !self.pending.is_empty();
        for (provider, change) in self.pending.drain(..) {
            let count = self.queues.entry(provider).or_insert(0);
            match change {
                Change::Entered => *count += 1,
                Change::Left => *count -= 1,
            }
        }
        if self.changed {
            self.queues.retain(|_, count| *count > 0);
        }
    }

    /// Whether `queues` has changed since this was asked last.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}
