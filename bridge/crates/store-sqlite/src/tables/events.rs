//! Event log. The events of one write are one row: their positions are `first..=last`, its body a list of `[type,
//! time, data]`, with the attempt where it differs from the row's. The first events of a dispatch are in `body`, and
//! the row number of the dispatch is the position of the first of them. The writer assigns positions; none is
//! assigned twice, because the highest removed position is kept in `meta`.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;

use forge_base::event::{Event, LogName, NewEvent, Written};
use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::recent_events::{self, PAGE_BYTES};
use forge_store::record::{EventFilter, EventPage, EventTotals, LogBounds};
use forge_store::roles::EventLog;

use super::rows::{self, Current, nanos};
use super::{Tx, counters};
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
        // One dispatch has an index of its own, and is not worth holding the events of all others in memory.
        if filter.dispatch.is_none() {
            let issued = *self.published.newest.borrow();
            let recent = &self.recent_events;
            let mut page = recent.page(filter, after, limit, issued);
            if page.is_none() && issued.saturating_sub(after) <= recent_events::REACH {
                let _one = recent.filling.lock().await;
                while let Some(from) = recent.missing(after, issued) {
                    let all = EventFilter::default();
                    let page = self.stored_events(&all, from, FILL_EVENTS).await?;
                    recent.extend(from, issued, page);
                }
                page = recent.page(filter, after, limit, issued);
            }
            if let Some(page) = page {
                return Ok(page);
            }
        }
        self.stored_events(filter, after, limit).await
    }

    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>> {
        let (log, sql) = (self.log().clone(), format!("{} DESC LIMIT 1", of_one()));
        let newest = self.one(Length::Long, sql, (0, *id.as_bytes()), move |row| {
            Batch::read(row, &log)?.events(&log, &EventFilter::default())
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

/// Events read from the file at a time for all readers that follow the log.
const FILL_EVENTS: usize = 256;

impl Sqlite {
    /// Reads events from the file.
    pub async fn stored_events(
        &self,
        filter: &EventFilter,
        after: u64,
        limit: usize,
    ) -> Result<EventPage> {
        let (filter, log) = (filter.clone(), self.log().clone());
        let query = move |connection: &Connection| read(connection, &log, &filter, after, limit);
        self.engine.read(Length::Long, query).await
    }
}

/// Value of `event.provider` for events of no adapter.
const NO_PROVIDER: &str = "";

/// Estimated size of events in a commit, in bytes.
pub(crate) fn size(events: &[NewEvent]) -> usize {
    let data = |event: &NewEvent| event.data.as_ref().map_or(0, |data| data.get().len());
    events.iter().map(|event| 64 + data(event)).sum()
}

/// An event in the body of a row: type, time, data, and the attempt where it differs from the row's.
#[derive(Serialize, Deserialize)]
struct Line<'a>(
    Cow<'a, str>,
    i64,
    Option<Cow<'a, RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<u32>,
);

fn line(event: &NewEvent, attempt: Option<u32>) -> Line<'_> {
    let data = event.data.as_deref().map(Cow::Borrowed);
    let kind = Cow::Borrowed(&*event.kind);
    Line(kind, nanos(event.timestamp), data, attempt)
}

fn body<'a>(lines: impl Iterator<Item = Line<'a>>) -> rusqlite::Result<String> {
    serde_json::to_string(&lines.collect::<Vec<_>>())
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// First events of a dispatch as kept in `body`, with the start of its first attempt if it begins at once.
pub(crate) fn first_body(
    events: &[NewEvent],
    started: Option<&NewEvent>,
) -> rusqlite::Result<String> {
    let before = events.iter().map(|event| line(event, None));
    body(before.chain(started.map(|event| line(event, Some(1)))))
}

/// Appends events of a dispatch, which is given as it was before them. The caller raises `dispatch.events`.
pub(crate) fn append(tx: &mut Tx<'_>, of: &Current, events: &[NewEvent]) -> rusqlite::Result<()> {
    insert(tx, Some(&of.provider), Some(of), events)
}

/// Appends events, with their adapter and their dispatch unless they belong to none.
pub(crate) fn insert(
    tx: &mut Tx<'_>,
    provider: Option<&str>,
    of: Option<&Current>,
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
            of.map_or(0, |of| of.attempts),
            provider.unwrap_or(NO_PROVIDER),
            of.is_none().then(|| nanos(newest)),
            body(events.iter().map(|event| line(event, None)))?
        ],
    )?;
    Ok(())
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

/// Columns of `Batch::read`: of the first events of a dispatch, and of every other row of the log.
const FIRST: &str =
    "d.seq AS first, d.seq + d.first_events - 1, 1, 0, coalesce(b.provider, d.provider), b.events,
       d.id, d.task_id, d.agent_id, d.run_id, d.trace_id";
const LATER: &str = "e.first AS first, e.last, e.seq, e.attempt, e.provider, e.body,
       d.id, d.task_id, d.agent_id, d.run_id, d.trace_id";

/// Rows of the log that end at or after `?1`: two streams in their order.
fn of_all() -> String {
    format!(
        "SELECT {FIRST} FROM dispatch d JOIN body b ON b.dispatch = d.seq
         WHERE d.seq >= coalesce((SELECT max(seq) FROM dispatch WHERE seq <= ?1), 0)
         UNION ALL
         SELECT {LATER} FROM event e LEFT JOIN dispatch d ON d.seq = e.dispatch
         WHERE e.first >= coalesce((SELECT max(first) FROM event WHERE first <= ?1), 0)
         ORDER BY 1"
    )
}

/// The same for one dispatch, `?2`, whose first events come before all others.
fn of_one() -> String {
    format!(
        "SELECT {FIRST} FROM dispatch d JOIN body b ON b.dispatch = d.seq
         WHERE d.id = ?2 AND d.seq + d.first_events > ?1
         UNION ALL
         SELECT {LATER} FROM dispatch d CROSS JOIN event e INDEXED BY event_dispatch ON e.dispatch = d.seq
         WHERE d.id = ?2
           AND e.first >= coalesce((SELECT max(first) FROM event WHERE dispatch = d.seq AND first <= ?1), 0)
         ORDER BY 1"
    )
}

fn read(
    connection: &Connection,
    log: &LogName,
    filter: &EventFilter,
    after: u64,
    limit: usize,
) -> rusqlite::Result<EventPage> {
    // All statements must see the same commit, or the page would claim to have seen more.
    let transaction = connection.unchecked_transaction()?;
    let issued = counters::issued(&transaction)?;
    let sought = i64::try_from(after).unwrap_or(i64::MAX).saturating_add(1);
    let mut page = EventPage {
        events: Vec::new(),
        scanned: after,
        more: false,
    };
    let of = filter.dispatch.as_ref().map(DispatchId::as_bytes);
    let mut statement = transaction.prepare_cached(&of.map_or_else(of_all, |_| of_one()))?;
    let mut rows = match of {
        None => statement.query([sought])?,
        Some(id) => statement.query(params![sought, id])?,
    };
    let (mut looked_at, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        let batch = Batch::read(row, log)?;
        if batch.last <= after {
            continue;
        }
        let mut events = batch.events(log, filter)?.into_iter();
        for position in batch.first()..=batch.last {
            let event = events.next();
            if position <= after {
                continue;
            }
            if looked_at == limit || bytes > PAGE_BYTES {
                page.more = true;
                return Ok(page);
            }
            looked_at += 1;
            page.scanned = position;
            if let Some(event) = event.filter(|event| filter.matches(event)) {
                bytes += event.data_bytes();
                page.events.push(Arc::new(event));
            }
        }
    }
    page.scanned = after.max(issued);
    Ok(page)
}

/// One row of the log with the columns of its dispatch.
struct Batch {
    /// Common part of its events; number and position are those of the first.
    common: Event,
    last: u64,
    body: String,
}

impl Batch {
    fn read(row: &Row<'_>, log: &LogName) -> rusqlite::Result<Self> {
        let dispatch: Option<[u8; 16]> = row.get(6)?;
        let provider: String = row.get(4)?;
        let common = Event {
            id: log.cursor(row.get(0)?),
            seq: row.get(2)?,
            kind: String::new(),
            task_id: row.get(7)?,
            agent_id: row.get(8)?,
            dispatch_id: dispatch.map(DispatchId::from_bytes),
            provider: Some(provider).filter(|name| name != NO_PROVIDER),
            timestamp: Timestamp::UNIX_EPOCH,
            run_id: row.get(9)?,
            trace_id: row.get(10)?,
            attempt: row.get(3)?,
            data: None,
            written: Written::default(),
        };
        Ok(Self {
            common,
            last: row.get(1)?,
            body: row.get(5)?,
        })
    }

    fn first(&self) -> u64 {
        self.common.id.position
    }

    /// Events of the batch in their order; none, without parsing its body, if none can match.
    fn events(&self, log: &LogName, filter: &EventFilter) -> rusqlite::Result<Vec<Event>> {
        if !filter.matches_source(&self.common) {
            return Ok(Vec::new());
        }
        let lines: Vec<Line<'static>> = serde_json::from_str(&self.body).map_err(|error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(5, kind, Box::new(error))
        })?;
        let events = (0..).zip(lines);
        let events = events.map(|(place, Line(kind, at, data, attempt))| Event {
            id: log.cursor(self.first() + place),
            seq: (self.common.dispatch_id).map_or(0, |_| self.common.seq + place),
            kind: kind.into_owned(),
            timestamp: rows::from_nanos(at),
            attempt: attempt.unwrap_or(self.common.attempt),
            data: data.map(Cow::into_owned),
            ..self.common.clone()
        });
        Ok(events.collect())
    }
}
