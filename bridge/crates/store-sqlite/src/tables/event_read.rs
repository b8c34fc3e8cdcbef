//! Reading of the event log: its rows in the order of their positions, cut into pages.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_base::event::{Event, LogName, Written};
use forge_base::id::{DispatchId, RunId};
use forge_store::event_batch::{EventBatch, GrowingPage};
use forge_store::record::{EventFilter, EventPage};

use super::counters;
use super::events::NO_PROVIDER;

/// Columns of `batch` for the first events of a dispatch.
const FIRST: &str =
    "d.seq AS first, d.seq + d.first_events - 1, 1, 0, coalesce(b.provider, d.provider), b.events,
       d.id, d.task_id, d.agent_id, d.run_id, d.trace_id, NULL";
/// The same for every other row of the log: its own, and those of its dispatch.
const LATER: &str = "e.first AS first, e.last, e.seq, e.attempt, e.provider, e.body";
const DISPATCH: &str = "d.id, d.task_id, d.agent_id, d.run_id";

/// Rows of the log that end at or after `?1`: two streams in their order. Rows of a run that was removed are left out.
pub(super) fn of_all() -> String {
    format!(
        "SELECT {FIRST} FROM dispatch d JOIN body b ON b.dispatch = d.seq
         WHERE d.seq >= coalesce((SELECT max(seq) FROM dispatch WHERE seq <= ?1), 0)
         UNION ALL
         SELECT {LATER}, {DISPATCH}, coalesce(d.trace_id, r.trace_id), r.id
         FROM event e LEFT JOIN dispatch d ON d.seq = e.dispatch LEFT JOIN run r ON r.seq = e.run
         WHERE e.first >= coalesce((SELECT max(first) FROM event WHERE first <= ?1), 0)
           AND (e.run IS NULL OR r.id IS NOT NULL)
         ORDER BY 1"
    )
}

/// The same for one dispatch, `?2`, whose first events come before all others.
pub(super) fn of_dispatch() -> String {
    format!(
        "SELECT {FIRST} FROM dispatch d JOIN body b ON b.dispatch = d.seq
         WHERE d.id = ?2 AND d.seq + d.first_events > ?1
         UNION ALL
         SELECT {LATER}, {DISPATCH}, d.trace_id, NULL
         FROM dispatch d CROSS JOIN event e INDEXED BY event_dispatch ON e.dispatch = d.seq
         WHERE d.id = ?2
           AND e.first >= coalesce((SELECT max(first) FROM event WHERE dispatch = d.seq AND first <= ?1), 0)
         ORDER BY 1"
    )
}

/// The same for one run, `?2`.
pub(super) fn of_run() -> String {
    format!(
        "SELECT {LATER}, NULL, NULL, NULL, NULL, r.trace_id, r.id
         FROM run r CROSS JOIN event e INDEXED BY event_run ON e.run = r.seq
         WHERE r.id = ?2
           AND e.first >= coalesce((SELECT max(first) FROM event WHERE run = r.seq AND first <= ?1), 0)
         ORDER BY 1"
    )
}

/// Page of events, of all of them without a filter.
pub(super) fn read(
    connection: &Connection,
    log: &LogName,
    filter: Option<&EventFilter>,
    after: u64,
    limit: usize,
) -> rusqlite::Result<EventPage> {
    // All statements must see the same commit, or the page would claim to have seen more.
    let transaction = connection.unchecked_transaction()?;
    let issued = counters::issued(&transaction)?;
    let sought = i64::try_from(after).unwrap_or(i64::MAX).saturating_add(1);
    let mut page = GrowingPage::new(log, filter, after, limit);
    let dispatch = filter.and_then(|filter| filter.dispatch.as_ref());
    let run = filter.and_then(|filter| filter.run.as_ref());
    let (sql, of) = match (dispatch, run) {
        (None, None) => (of_all(), None),
        (Some(id), _) => (of_dispatch(), Some(id.as_bytes())),
        (None, Some(id)) => (of_run(), Some(id.as_bytes())),
    };
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = match of {
        None => statement.query([sought])?,
        Some(id) => statement.query(params![sought, id])?,
    };
    while let Some(row) = rows.next()?
        && page.add(&batch(row, log)?).map_err(unreadable)?
    {}
    Ok(page.finish(issued))
}

fn unreadable(error: serde_json::Error) -> rusqlite::Error {
    let kind = rusqlite::types::Type::Text;
    rusqlite::Error::FromSqlConversionFailure(5, kind, Box::new(error))
}

pub(super) fn events(batch: &EventBatch, log: &LogName) -> rusqlite::Result<Vec<Event>> {
    batch.events(log, None).map_err(unreadable)
}

/// One row of the log with the columns of its dispatch or run.
pub(super) fn batch(row: &Row<'_>, log: &LogName) -> rusqlite::Result<EventBatch> {
    let dispatch: Option<[u8; 16]> = row.get(6)?;
    let provider: String = row.get(4)?;
    let run: Option<[u8; 16]> = row.get(11)?;
    let run = run.map(|id| RunId::from_bytes(id).to_string());
    let common = Event {
        id: log.cursor(row.get(0)?),
        seq: row.get(2)?,
        kind: String::new(),
        task_id: row.get(7)?,
        agent_id: row.get(8)?,
        dispatch_id: dispatch.map(DispatchId::from_bytes),
        provider: Some(provider).filter(|name| name != NO_PROVIDER),
        timestamp: Timestamp::UNIX_EPOCH,
        run_id: run.or(row.get(9)?),
        trace_id: row.get(10)?,
        attempt: row.get(3)?,
        data: None,
        written: Written::default(),
    };
    Ok(EventBatch {
        common,
        last: row.get(1)?,
        text: row.get(5)?,
    })
}
