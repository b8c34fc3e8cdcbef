//! Tables: SQL for the domain, one file per concern. Every change runs inside a transaction of the engine, which
//! commits it.

pub(super) mod accept;
pub(super) mod amounts;
pub(super) mod approval;
pub(super) mod content;
pub(super) mod copied;
pub(super) mod counters;
pub(super) mod deliver;
mod event_read;
pub(super) mod events;
pub(super) mod execute;
pub(super) mod forward;
mod interventions;
mod nodes;
pub(super) mod outbox;
#[cfg(test)]
mod plans;
pub(super) mod queue;
pub(super) mod read;
pub(super) mod retention;
pub(super) mod rows;
mod run_sweep;
mod runs;
pub(super) mod schema;
pub(super) mod seal;
pub(super) mod sessions;
pub(super) mod signal_records;
mod signal_sweep;
pub(super) mod signals;
mod spending;

use rusqlite::Connection;

use counters::Counters;

/// An open transaction, with the counters that change with it.
pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) counters: &'a mut Counters,
}

impl Tx<'_> {
    /// Runs one statement, which is prepared once.
    pub(super) fn execute(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<usize> {
        self.conn.prepare_cached(sql)?.execute(params)
    }
}
