//! Event log. The events of one write are one row with the positions `first..=last`. The first events of a dispatch are
//! in `body`, and the row number of a dispatch or run is the position of its first event. The writer assigns positions;
//! none is assigned twice, because the highest removed position is kept in `meta`.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tokio::sync::watch;

use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::event_batch;
pub(crate) use forge_store::event_batch::size;
use forge_store::recent_events::{FILL_EVENTS, StoredEvents};
use forge_store::record::{EventFilter, EventPage, EventTotals, LogBounds, RunEvent};
use forge_store::roles::EventLog;

use super::Tx;
use super::event_read::{self, of_dispatch};
use super::rows::{self, Current, nanos};
use crate::Sqlite;
use crate::engine::{Length, Urgency};

#[async_trait]
impl EventLog for Sqlite {
    fn log(&self) -> &LogName {
        &self.published.identity.log
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.published.newest.subscribe()
    }

    fn log_bounds(&self) -> LogBounds {
        self.published.totals().bounds
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage> {
        let issued = *self.published.newest.borrow();
        self.recent_events
            .events(self, issued, filter, after, limit)
            .await
    }

    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>> {
        let (log, sql) = (
            self.log().clone(),
            format!("{} DESC LIMIT 1", of_dispatch()),
        );
        let newest = self.one(Length::Long, sql, (0, *id.as_bytes()), move |row| {
            event_read::events(&event_read::batch(row, &log)?, &log)
        });
        Ok(newest.await?.and_then(|mut events| events.pop()))
    }

    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()> {
        let provider = provider.to_owned();
        let bytes = size(&events);
        let change = move |tx: &mut Tx<'_>| Ok(insert(tx, Some(&provider), None, &events)?);
        self.write(Urgency::Now, bytes, change).await
    }
}

#[async_trait]
impl StoredEvents for Sqlite {
    async fn stored_events(
        &self,
        filter: Option<&EventFilter>,
        after: u64,
        limit: usize,
    ) -> Result<EventPage> {
        let (filter, log) = (filter.cloned(), self.log().clone());
        let query = move |connection: &Connection| {
            event_read::read(connection, &log, filter.as_ref(), after, limit)
        };
        self.engine.read(Length::Long, query).await
    }
}

/// Value of `event.provider` for events of no adapter.
pub(super) const NO_PROVIDER: &str = "";

/// Dispatch to which events are appended.
pub(crate) struct EventOwner {
    pub(crate) seq: i64,
    /// Number of its events before them.
    pub(crate) events: u64,
    pub(crate) attempt: u32,
}

/// Appends events of a dispatch, which is given as it was before them. The caller raises `dispatch.events`.
pub(crate) fn append(tx: &mut Tx<'_>, of: &Current, events: &[NewEvent]) -> rusqlite::Result<()> {
    let owner = EventOwner {
        seq: of.seq,
        events: of.events,
        attempt: of.attempts,
    };
    insert(tx, Some(&of.provider), Some(&owner), events)
}

/// Appends events, with their adapter and their dispatch unless they belong to none.
pub(crate) fn insert(
    tx: &mut Tx<'_>,
    provider: Option<&str>,
    of: Option<&EventOwner>,
    events: &[NewEvent],
) -> rusqlite::Result<()> {
    let Some(newest) = events.iter().map(|event| event.timestamp).max() else {
        return Ok(());
    };
    let first = tx.counters.assign_positions(events.len());
    tx.execute(
        "INSERT INTO event (first, last, dispatch, seq, attempt, provider, unbound_at, body)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            first,
            tx.counters.bounds.issued,
            of.map(|of| of.seq),
            of.map_or(0, |of| of.events + 1),
            of.map_or(0, |of| of.attempt),
            provider.unwrap_or(NO_PROVIDER),
            of.is_none().then(|| nanos(newest)),
            event_batch::of_events(events)
        ],
    )?;
    Ok(())
}

/// Appends events of a run, by its row number and the number of the first one. Returns the position of the last one. The
/// caller raises `run.events`.
pub(crate) fn insert_of_run(
    tx: &mut Tx<'_>,
    run: u64,
    seq: u64,
    events: &[RunEvent],
) -> rusqlite::Result<u64> {
    // A page that begins within a row reads all of it, and a plan of 10,000 tasks is 30,000 events.
    for (row, events) in (0..).zip(events.chunks(FILL_EVENTS)) {
        let first = tx.counters.assign_positions(events.len());
        tx.execute(
            "INSERT INTO event (first, last, seq, attempt, provider, body, run) VALUES (?, ?, ?, 0, ?, ?, ?)",
            params![
                first,
                tx.counters.bounds.issued,
                seq + row * FILL_EVENTS as u64,
                NO_PROVIDER,
                event_batch::of_run(events),
                run
            ],
        )?;
    }
    Ok(tx.counters.bounds.issued)
}

/// Position of the newest event of one dispatch, by its row number.
pub(crate) fn newest_of(connection: &Connection, seq: i64) -> rusqlite::Result<Option<u64>> {
    let sql = "SELECT coalesce(
                 (SELECT last FROM event WHERE dispatch = ?1 ORDER BY first DESC LIMIT 1),
                 (SELECT seq + first_events - 1 FROM dispatch WHERE seq = ?1))";
    Ok(rows::one(connection, sql, [seq], |row| row.get(0))?.flatten())
}

/// Totals of the dispatch after this many more events.
pub(crate) fn totals_with(tx: &Tx<'_>, of: &Current, more: usize) -> rusqlite::Result<EventTotals> {
    let more = more as u64;
    let last = match more {
        0 => newest_of(tx.conn, of.seq)?.unwrap_or(0),
        more => tx.counters.bounds.issued + more,
    };
    Ok(EventTotals {
        count: of.events + more,
        last,
    })
}
