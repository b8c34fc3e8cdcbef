//! Queries of operators and callers: records, lists, outputs, deliveries.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use serde_json::value::RawValue;

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::record::{
    Counts, DeliveryAttempt, DeliveryFilter, DeliveryRecord, DeliveryState, DispatchFilter,
    DispatchRecord, Output, Page, Status,
};
use forge_store::roles::Records;
use forge_store::{Error, Result};

use super::execute::OUTPUT_PART_BYTES;
use super::rows::{self, nanos, select_dispatch, state_code};
use crate::Sqlite;

#[async_trait]
impl Records for Sqlite {
    fn counts(&self) -> Counts {
        self.published.counts()
    }

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>> {
        self.look_up(move |connection| dispatch(connection, id))
            .await
    }

    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        let found = self.read(move |connection| request(connection, id));
        found.await?.ok_or(Error::NotFound)
    }

    async fn by_task(&self, task_id: &str, limit: usize) -> Result<Vec<DispatchRecord>> {
        let task_id = task_id.to_owned();
        self.read(move |connection| by_task(connection, &task_id, limit))
            .await
    }

    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>> {
        self.read(move |connection| dispatches(connection, &filter))
            .await
    }

    async fn output(&self, id: DispatchId, offset: u64, limit: usize) -> Result<Option<Output>> {
        self.read(move |connection| output(connection, id, offset, limit))
            .await
    }
}

/// A page of a list looks at no more rows than this.
const PAGE_ROWS: i64 = 50_000;

fn with_result(row: &Row<'_>) -> rusqlite::Result<DispatchRecord> {
    Ok(DispatchRecord {
        result: rows::json_option(row, rows::MORE)?,
        ..rows::dispatch(row)?
    })
}

pub(crate) fn dispatch(
    connection: &Connection,
    id: DispatchId,
) -> rusqlite::Result<Option<DispatchRecord>> {
    let sql = select_dispatch!(
        ", r.body FROM dispatch d JOIN body b ON b.dispatch = d.seq
         LEFT JOIN result r ON r.dispatch = d.seq WHERE d.id = ?"
    );
    rows::one(connection, sql, [id.as_bytes()], with_result)
}

pub(crate) fn request(
    connection: &Connection,
    id: DispatchId,
) -> rusqlite::Result<Option<Box<RawValue>>> {
    rows::one(
        connection,
        "SELECT b.request FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.id = ?",
        [id.as_bytes()],
        |row| rows::opaque(row, 0),
    )
}

pub(crate) fn by_task(
    connection: &Connection,
    task_id: &str,
    limit: usize,
) -> rusqlite::Result<Vec<DispatchRecord>> {
    let sql = select_dispatch!(
        ", r.body FROM dispatch d JOIN body b ON b.dispatch = d.seq
         LEFT JOIN result r ON r.dispatch = d.seq WHERE d.task_id = ? ORDER BY d.seq DESC LIMIT ?"
    );
    let params = params![task_id, rows::limit(limit)];
    rows::all(connection, sql, params, with_result)
}

pub(crate) fn dispatches(
    connection: &Connection,
    filter: &DispatchFilter,
) -> rusqlite::Result<Page<DispatchRecord>> {
    let rows = match (&filter.run_id, filter.status) {
        (Some(_), _) => Rows::FewByIndex("INDEXED BY dispatch_run"),
        (None, Some(Status::Running)) => Rows::FewByIndex("INDEXED BY dispatch_running"),
        (None, Some(Status::Queued | Status::Ok | Status::Error) | None) => Rows::InOrder,
    };
    let status = match filter.status {
        None => "1",
        Some(Status::Queued) => "d.phase < 4",
        Some(Status::Running) => "d.phase = 4",
        Some(Status::Ok) => "d.phase = 5 AND d.error_code IS NULL",
        Some(Status::Error) => "d.phase = 5 AND d.error_code IS NOT NULL",
    };
    // A partial index is used only where the query spells its condition.
    let run = match &filter.run_id {
        None => "?6 IS NULL",
        Some(_) => "d.run_id = ?6 AND d.run_id IS NOT NULL",
    };
    let range = Range::new(connection, filter.before, &rows)?;
    let select = select_dispatch!("");
    let sql = format!(
        "{select} FROM dispatch d {} CROSS JOIN body b ON b.dispatch = d.seq
         WHERE d.seq < ?1 AND d.seq >= ?2 AND {status} AND {run}
           AND (?3 IS NULL OR d.provider = ?3) AND (?4 IS NULL OR d.agent_id = ?4)
           AND d.accepted_at >= ?5
         ORDER BY d.seq DESC LIMIT ?7",
        rows.hint()
    );
    let found = rows::all(
        connection,
        &sql,
        params![
            range.before,
            range.floor,
            filter.provider,
            filter.agent_id,
            filter.since.map_or(i64::MIN, nanos),
            filter.run_id,
            rows::limit(filter.limit.saturating_add(1)),
        ],
        |row| Ok((row.get(rows::SEQ)?, rows::dispatch(row)?)),
    )?;
    Ok(range.page(found, filter.limit))
}

pub(crate) fn deliveries(
    connection: &Connection,
    filter: &DeliveryFilter,
) -> rusqlite::Result<Page<DeliveryRecord>> {
    let rows = match (filter.status, &filter.host) {
        // In the order of the list, so that a page takes no more steps than it has rows.
        (Some(DeliveryState::Dead), None) => Rows::FewByIndex("INDEXED BY delivery_dead"),
        (Some(_) | None, _) => Rows::InOrder,
    };
    let range = Range::new(connection, filter.before, &rows)?;
    let state = filter
        .status
        .map_or("delivery IS NOT NULL".to_owned(), |state| {
            format!("delivery = {}", state_code(state))
        });
    let sql = format!(
        "{DELIVERY} {} WHERE seq < ?1 AND seq >= ?2 AND {state} AND {AT_HOST}
         ORDER BY seq DESC LIMIT ?4",
        rows.hint()
    );
    let found = rows::all(
        connection,
        &sql,
        params![
            range.before,
            range.floor,
            filter.host,
            rows::limit(filter.limit.saturating_add(1))
        ],
        |row| Ok((row.get(8)?, read_delivery(row)?)),
    )?;
    Ok(range.page(found, filter.limit))
}

/// Access path of a list to its rows.
enum Rows {
    /// An index that holds few rows, or has them in the order of the list: reads all matches at once.
    FewByIndex(&'static str),
    /// The table, newest first, a bounded number of rows at a time.
    InOrder,
}

impl Rows {
    fn hint(&self) -> &'static str {
        match self {
            Rows::FewByIndex(hint) => hint,
            Rows::InOrder => "",
        }
    }
}

/// Range of row numbers that one page can look at.
struct Range {
    before: i64,
    floor: i64,
    /// There are rows below the floor.
    rest: bool,
}

impl Range {
    fn new(connection: &Connection, before: Option<u64>, rows: &Rows) -> rusqlite::Result<Self> {
        // One step in the table for each end; a single statement for both would be a scan.
        let end = |of: &str| {
            let end = rows::one(connection, of, [], |row| row.get::<_, Option<i64>>(0))?;
            Ok::<_, rusqlite::Error>(end.flatten().unwrap_or(0))
        };
        let lowest = end("SELECT min(seq) FROM dispatch")?;
        let highest = end("SELECT max(seq) FROM dispatch")?;
        let before = before
            .map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX))
            .min(highest.saturating_add(1));
        let floor = match rows {
            Rows::FewByIndex(_) => lowest,
            Rows::InOrder => before.saturating_sub(PAGE_ROWS).max(lowest),
        };
        Ok(Self {
            before,
            floor,
            rest: floor > lowest,
        })
    }

    /// `found` holds one row more than the page can if there are that many.
    fn page<T>(&self, mut found: Vec<(i64, T)>, limit: usize) -> Page<T> {
        let full = found.len() > limit;
        found.truncate(limit);
        let next = match found.last() {
            Some((last, _)) if full => Some(*last),
            Some(_) | None => self.rest.then_some(self.floor),
        };
        Page {
            items: found.into_iter().map(|(_, item)| item).collect(),
            next: next.and_then(|next| u64::try_from(next).ok()),
        }
    }
}

pub(crate) fn output(
    connection: &Connection,
    id: DispatchId,
    offset: u64,
    limit: usize,
) -> rusqlite::Result<Option<Output>> {
    let sql = "SELECT o.dispatch, o.part, length(o.bytes) FROM dispatch d
               JOIN output o ON o.dispatch = d.seq WHERE d.id = ? ORDER BY o.part DESC LIMIT 1";
    let last: Option<(i64, u64, u64)> = rows::one(connection, sql, [id.as_bytes()], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    let Some((seq, last_part, last_bytes)) = last else {
        return Ok(None);
    };
    let part_bytes = OUTPUT_PART_BYTES as u64;
    let total = last_part * part_bytes + last_bytes;
    let end = offset.saturating_add(limit as u64).min(total);
    let mut bytes = Vec::new();
    if offset < end {
        let (first, last) = (offset / part_bytes, (end - 1) / part_bytes);
        let sql = "SELECT part, bytes FROM output WHERE dispatch = ? AND part BETWEEN ? AND ?
                   ORDER BY part";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![seq, first, last])?;
        while let Some(row) = rows.next()? {
            let starts = row.get::<_, u64>(0)? * part_bytes;
            let part = row.get_ref(1)?.as_blob()?;
            let within = |place: u64| {
                let place = place.saturating_sub(starts);
                usize::try_from(place).map_or(part.len(), |place| place.min(part.len()))
            };
            bytes.extend_from_slice(&part[within(offset)..within(end)]);
        }
    }
    Ok(Some(Output { bytes, total }))
}

const DELIVERY: &str = "
SELECT id, task_id, callback_url, delivery, delivery_attempts, finished_at, due_at, settled_at,
       seq, last_at, last_duration_ms, last_status, last_error
FROM dispatch";

/// Reads a delivery with its last attempt only, and that without the receiver's answer, as lists show it.
fn read_delivery(row: &Row<'_>) -> rusqlite::Result<DeliveryRecord> {
    let attempt_count = row.get(4)?;
    let last = match rows::time_option(row, 9)? {
        None => None,
        Some(at) => Some(DeliveryAttempt {
            number: attempt_count,
            at,
            duration_ms: row.get(10)?,
            status: row.get(11)?,
            error: row.get(12)?,
            answer: None,
        }),
    };
    let dispatch_id = rows::dispatch_id(row, 0)?;
    Ok(DeliveryRecord {
        id: DeliveryId::of(dispatch_id),
        dispatch_id,
        task_id: row.get(1)?,
        url: row.get(2)?,
        status: rows::delivery_state(row, 3)?,
        attempt_count,
        created_at: rows::time(row, 5)?,
        due_at: rows::time_option(row, 6)?,
        settled_at: rows::time_option(row, 7)?,
        attempts: last.into_iter().collect(),
    })
}

/// A delivery with all attempts that are kept.
pub(crate) fn delivery(
    connection: &Connection,
    id: DeliveryId,
) -> rusqlite::Result<Option<DeliveryRecord>> {
    let transaction = connection.unchecked_transaction()?;
    let sql = format!("{DELIVERY} WHERE id = ? AND delivery IS NOT NULL");
    let found = rows::one(&transaction, &sql, [id.as_bytes()], |row| {
        Ok((row.get::<_, i64>(8)?, read_delivery(row)?))
    })?;
    let Some((seq, mut delivery)) = found else {
        return Ok(None);
    };
    let sql =
        "SELECT number, at, duration_ms, status, error, answer FROM attempt WHERE dispatch = ?1
               UNION ALL
               SELECT delivery_attempts, last_at, last_duration_ms, last_status, last_error, last_answer
               FROM dispatch WHERE seq = ?1 AND last_at IS NOT NULL
               ORDER BY 1";
    delivery.attempts = rows::all(&transaction, sql, [seq], read_attempt)?;
    Ok(Some(delivery))
}

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<DeliveryAttempt> {
    Ok(DeliveryAttempt {
        number: row.get(0)?,
        at: rows::time(row, 1)?,
        duration_ms: row.get(2)?,
        status: row.get(3)?,
        error: row.get(4)?,
        answer: row.get(5)?,
    })
}

/// `rules::at_host` for the host in parameter 3.
pub(crate) const AT_HOST: &str = "(?3 IS NULL
  OR substr(callback_origin, instr(callback_origin, '://') + 3) = ?3
  OR substr(callback_origin, instr(callback_origin, '://') + 3, length(?3) + 1) = ?3 || ':')";
