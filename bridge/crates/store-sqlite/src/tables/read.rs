//! Queries of operators and callers: records, contents, and the pages of lists.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::value::RawValue;

use forge_base::id::DispatchId;
use forge_store::record::{
    Content, Counts, DispatchFilter, DispatchRecord, KeyOwner, Page, Piece, SpendingSums, Status,
};
use forge_store::roles::Records;
use forge_store::{Error, Result};

use super::rows::{self, nanos, select_dispatch};
use super::{content, spending};
use crate::Sqlite;
use crate::engine::Length;

#[async_trait]
impl Records for Sqlite {
    fn counts(&self) -> Counts {
        self.published.totals().counts
    }

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>> {
        let sql = select_dispatch!(
            ", r.body FROM dispatch d JOIN body b ON b.dispatch = d.seq
             LEFT JOIN result r ON r.dispatch = d.seq WHERE d.id = ?"
        );
        let params = [*id.as_bytes()];
        self.one(Length::Short, sql, params, with_result).await
    }

    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        let sql =
            "SELECT b.request FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.id = ?";
        let params = [*id.as_bytes()];
        let found = self.one(Length::Long, sql, params, |row| rows::opaque(row, 0));
        found.await?.ok_or(Error::NotFound)
    }

    async fn by_task(
        &self,
        task_id: &str,
        owner: Option<KeyOwner>,
        limit: usize,
    ) -> Result<Vec<DispatchRecord>> {
        let sql = select_dispatch!(
            ", r.body FROM dispatch d JOIN body b ON b.dispatch = d.seq
             LEFT JOIN result r ON r.dispatch = d.seq
             WHERE d.task_id = ?1 AND (?3 IS NULL OR d.key_owner IS NULL OR d.key_owner = ?3)
             ORDER BY d.seq DESC LIMIT ?2"
        );
        let owner = owner.map(|owner| owner.to_string());
        let params = (task_id.to_owned(), rows::limit(limit), owner);
        self.all(Length::Long, sql, params, with_result).await
    }

    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>> {
        let query = move |connection: &Connection| dispatches(connection, &filter);
        self.engine.read(Length::Long, query).await
    }

    async fn content(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Piece>> {
        let query =
            move |connection: &Connection| content::read(connection, id, content, offset, limit);
        self.engine.read(Length::Long, query).await
    }

    async fn spending(&self, since: Timestamp) -> Result<SpendingSums> {
        let query = move |connection: &Connection| spending::sums(connection, since);
        self.engine.read(Length::Long, query).await
    }
}

fn with_result(row: &Row<'_>) -> rusqlite::Result<DispatchRecord> {
    Ok(DispatchRecord {
        result: rows::json_option(row, rows::MORE)?,
        ..rows::dispatch(row)?
    })
}

fn dispatches(
    connection: &Connection,
    filter: &DispatchFilter,
) -> rusqlite::Result<Page<DispatchRecord>> {
    let index = match (&filter.run_id, filter.status) {
        (Some(_), _) => "INDEXED BY dispatch_run",
        (None, Some(Status::Running)) => "INDEXED BY dispatch_running",
        (None, Some(Status::Queued | Status::Finished | Status::Ok | Status::Error) | None) => "",
    };
    let status = match filter.status {
        None => "1",
        Some(Status::Queued) => "d.phase < 4",
        Some(Status::Running) => "d.phase = 4",
        Some(Status::Finished) => "d.phase = 5",
        Some(Status::Ok) => "d.phase = 5 AND d.error_code IS NULL",
        Some(Status::Error) => "d.phase = 5 AND d.error_code IS NOT NULL",
    };
    // A partial index is used only where the query spells its condition.
    let run = match &filter.run_id {
        None => "?6 IS NULL",
        Some(_) => "d.run_id = ?6 AND d.run_id IS NOT NULL",
    };
    let range = Range::new(connection, filter.before, index)?;
    let select = select_dispatch!(
        ", d.delivery, u.dispatch, u.model, u.tokens_in, u.tokens_out, u.cost_micros"
    );
    let sql = format!(
        "{select} FROM dispatch d {index} CROSS JOIN body b ON b.dispatch = d.seq
         LEFT JOIN spending u ON u.dispatch = d.seq
         WHERE d.seq < ?1 AND d.seq >= ?2 AND {status} AND {run}
           AND (?3 IS NULL OR d.provider = ?3) AND (?4 IS NULL OR d.agent_id = ?4)
           AND d.accepted_at >= ?5 AND (?8 IS NULL OR d.delivery = ?8)
           AND (?9 IS NULL OR substr(d.task_id, 1, length(?9)) = ?9)
         ORDER BY d.seq DESC LIMIT ?7"
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
            filter.delivery.map(rows::state_code),
            filter.task_prefix,
        ],
        |row| {
            let delivery: Option<i64> = row.get(rows::MORE)?;
            let state = delivery.map(|_| rows::delivery_state(row, rows::MORE));
            let record = DispatchRecord {
                delivery: state.transpose()?,
                spending: spending::read(row, rows::MORE + 1)?,
                ..rows::dispatch(row)?
            };
            Ok((row.get(rows::SEQ)?, record))
        },
    )?;
    Ok(range.page(found, filter.limit))
}

/// A page of a list that is read in the order of the table looks at no more row numbers than this.
const PAGE_ROWS: i64 = 50_000;

/// Row numbers that one page looks at: `floor..before`.
pub(crate) struct Range {
    pub(crate) before: i64,
    pub(crate) floor: i64,
    /// There are rows below the floor.
    rest: bool,
}

impl Range {
    /// An `index`, if one is named, holds few rows or has them in the order of the list: a page can look at all of it.
    pub(crate) fn new(
        connection: &Connection,
        before: Option<u64>,
        index: &str,
    ) -> rusqlite::Result<Self> {
        // One step in the table for each end; `min` and `max` in one SELECT would be a scan.
        let sql = "SELECT coalesce((SELECT min(seq) FROM dispatch), 0), coalesce((SELECT max(seq) FROM dispatch), 0)";
        let (lowest, highest): (i64, i64) =
            rows::one(connection, sql, [], |row| row.try_into())?.unwrap_or((0, 0));
        let before = before
            .map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX))
            .min(highest.saturating_add(1));
        let floor = match index {
            "" => before.saturating_sub(PAGE_ROWS).max(lowest),
            _ => lowest,
        };
        Ok(Self {
            before,
            floor,
            rest: floor > lowest,
        })
    }

    /// `found` holds one row more than the page can if there are that many.
    pub(crate) fn page<T>(&self, mut found: Vec<(i64, T)>, limit: usize) -> Page<T> {
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
