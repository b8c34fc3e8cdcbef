//! Queries of operators and callers: records, contents, and the pages of lists.

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::value::RawValue;

use forge_base::id::DispatchId;
use forge_store::record::{
    Content, Counts, DispatchFilter, DispatchRecord, EventTotals, KeyOwner, Page, Piece,
    SignalTotals, Spending, SpendingSums, Status,
};
use forge_store::roles::Records;
use forge_store::signals::MOST_SUMMED;
use forge_store::spending::Summing;
use forge_store::{Error, Result, rules};

use super::rows::{KeyRow, Whole};
use crate::rows::statement::params;
use crate::rows::table::{Fields as _, columns};
use crate::{Columns, Postgres};

/// Columns of a result `r`: its text, the number of the events up to it, and the position of the last of them.
pub(super) const RESULT: &str = "r.body, r.events, (SELECT e.first + r.events - e.seq FROM event e
   WHERE e.dispatch = r.id AND e.seq <= r.events ORDER BY e.first DESC LIMIT 1)";

#[async_trait]
impl Records for Postgres {
    fn counts(&self) -> Counts {
        self.published.totals().numbers.counts
    }

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>> {
        let found = self.records("b.id = $1", params![id]).await?;
        Ok(found.into_iter().next())
    }

    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        let sql = "SELECT request FROM body WHERE id = $1";
        let found = self.one(sql, params![id], |row| row.next()).await?;
        found.ok_or(Error::NotFound)
    }

    async fn by_task(
        &self,
        task_id: &str,
        owner: Option<KeyOwner>,
        limit: usize,
    ) -> Result<Vec<DispatchRecord>> {
        let task_id = task_id.to_owned();
        let owner = owner.map(KeyRow::owned_by);
        let which = "b.task_id = $1
             AND ($3 IS NULL OR pg_catalog.substr(b.key, 2, pg_catalog.length($3)) = $3
               OR pg_catalog.substr(b.key, 2, 1) = '\\x3a'::bytea)
             ORDER BY d.seq DESC LIMIT $2";
        self.records(which, params![task_id, limit, owner]).await
    }

    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>> {
        let status = match filter.status {
            None => "true",
            Some(Status::Queued) => "d.phase < 4",
            Some(Status::Running) => "d.phase = 4",
            Some(Status::Finished) => "d.phase = 5",
            Some(Status::Ok) => "d.phase = 5 AND d.error_code IS NULL",
            Some(Status::Error) => "d.phase = 5 AND d.error_code IS NOT NULL",
        };
        // Few rows, or an index of their own: a page can look at all of them.
        let is_bounded = filter.run_id.is_none() && filter.status != Some(Status::Running);
        let range = self.range(filter.before, is_bounded).await?;
        let sql = format!(
            "SELECT d.seq, v.state, u.id IS NOT NULL, {}, {} FROM dispatch d JOIN body b ON b.id = d.id
               LEFT JOIN delivery v ON v.id = d.id LEFT JOIN spending u ON u.id = d.id
             WHERE d.seq < $1 AND d.seq >= $2 AND {status} AND ($3 IS NULL OR d.provider = $3)
               AND ($4 IS NULL OR b.agent_id = $4) AND ($5 IS NULL OR b.run_id = $5) AND b.accepted_at >= $6
               AND ($8 IS NULL OR v.state = $8) AND ($9 IS NULL OR substring(b.task_id FOR pg_catalog.length($9)) = $9)
             ORDER BY d.seq DESC LIMIT $7",
            columns::<Spending>("u."),
            Whole::columns()
        );
        let (before, floor) = (range.before, range.floor);
        let since = filter.since.unwrap_or(Timestamp::MIN);
        let limit = filter.limit.saturating_add(1);
        let (provider, agent, run) = (&filter.provider, &filter.agent_id, &filter.run_id);
        let (delivery, prefix) = (filter.delivery, &filter.task_prefix);
        let params = params![
            before, floor, *provider, *agent, *run, since, limit, delivery, *prefix
        ];
        let read = |row: &mut Columns<'_>| {
            let (seq, delivery, has_used) = (row.next()?, row.next()?, row.next::<bool>()?);
            let spending = Spending::read(row)?;
            let record = DispatchRecord {
                delivery,
                spending: has_used.then_some(spending),
                ..Whole::read(row)?.record()
            };
            Ok((seq, record))
        };
        let found = self.all(sql, params, read);
        Ok(page(found.await?, filter.limit, range.rest))
    }

    async fn content(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Piece>> {
        self.piece(id, content, offset, limit).await
    }

    async fn spending(&self, since: Timestamp) -> Result<SpendingSums> {
        let sql = "SELECT s.at, d.error_code IS NOT NULL, s.tokens_in, s.tokens_out, s.cost_micros,
               d.provider, b.agent_id, s.model
             FROM spending s JOIN dispatch d ON d.id = s.id JOIN body b ON b.id = s.id
             WHERE s.at >= $1 ORDER BY s.at DESC, s.id DESC LIMIT $2";
        let read = |row: &mut Columns<'_>| {
            let (at, is_error) = (row.next()?, row.next()?);
            let tokens = [row.next()?, row.next()?];
            let usage = SignalTotals::of_one(is_error, tokens, row.next()?);
            let by: (String, String, Option<String>) = (row.next()?, row.next()?, row.next()?);
            Ok((at, usage, by))
        };
        let found = self.all(sql, params![since, MOST_SUMMED + 1], read).await?;
        let mut summing = Summing::default();
        for (at, usage, (adapter, agent, model)) in found {
            if !summing.add(at, &adapter, &agent, model.as_deref(), &usage) {
                break;
            }
        }
        Ok(summing.finish())
    }
}

/// A page of a list that is read in the order of the table looks at no more row numbers than this.
const PAGE_ROWS: u64 = 50_000;

/// Row numbers that one page looks at: `floor..before`.
pub(super) struct Range {
    pub(super) before: u64,
    pub(super) floor: u64,
    /// Continues below the floor, if there are rows.
    pub(super) rest: Option<u64>,
}

/// `found` holds one row more than the page can if there are that many.
pub(super) fn page<T>(mut found: Vec<(u64, T)>, limit: usize, rest: Option<u64>) -> Page<T> {
    let is_full = found.len() > limit;
    found.truncate(limit);
    let next = match found.last() {
        Some((last, _)) if is_full => Some(*last),
        Some(_) | None => rest,
    };
    Page {
        items: found.into_iter().map(|(_, item)| item).collect(),
        next,
    }
}

impl Postgres {
    pub(super) async fn range(&self, before: Option<u64>, is_bounded: bool) -> Result<Range> {
        let sql = "SELECT coalesce(pg_catalog.min(seq), 0), coalesce(pg_catalog.max(seq), 0) FROM dispatch";
        let read = |row: &mut Columns<'_>| Ok((row.next()?, row.next()?));
        let (lowest, highest): (u64, u64) =
            self.one(sql, Vec::new(), read).await?.unwrap_or_default();
        let before = before.unwrap_or(u64::MAX).min(highest.saturating_add(1));
        let floor = match is_bounded {
            true => before.saturating_sub(PAGE_ROWS).max(lowest),
            false => lowest,
        };
        let rest = (floor > lowest).then_some(floor);
        Ok(Range {
            before,
            floor,
            rest,
        })
    }

    /// Records with their results.
    async fn records(
        &self,
        which: &str,
        params: Vec<crate::Param<'_>>,
    ) -> Result<Vec<DispatchRecord>> {
        let sql = format!(
            "SELECT {}, {RESULT} FROM body b JOIN dispatch d ON d.id = b.id
               LEFT JOIN result r ON r.id = b.id
             WHERE {which}",
            Whole::columns()
        );
        self.all(sql, params, |row| {
            let record = Whole::read(row)?.record();
            let result = self.result(row)?;
            Ok(DispatchRecord { result, ..record })
        })
        .await
    }

    /// Result in its delivered form, if there is one.
    pub(super) fn result(&self, columns: &mut Columns<'_>) -> Result<Option<Box<RawValue>>> {
        let result: Option<Box<RawValue>> = columns.next()?;
        let (count, last): (Option<u64>, Option<u64>) = (columns.next()?, columns.next()?);
        let Some((result, count)) = result.zip(count) else {
            return Ok(None);
        };
        let last = last.unwrap_or(0);
        let totals = EventTotals { count, last };
        let text = rules::with_events(&result, &self.published.identity.log, totals)?;
        let json = RawValue::from_string(text);
        Ok(Some(
            json.map_err(|error| Error::Unreadable(error.to_string()))?,
        ))
    }
}
