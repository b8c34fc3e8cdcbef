//! Sums over the records of signals, records to forward, and the removal of old ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use forge_store::record::{
    OtherSignal, SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalSession, SignalSums,
    SignalTotals, SweptSignals,
};
use forge_store::signals::{self, MOST_SUMMED, Summing, tokens_before};
use forge_store::{Error, Result};

use crate::batch::{Needs, Rows};
use crate::rows::statement::{Statement, array, params};
use crate::rows::table::{Fields as _, columns};
use crate::{Columns, Postgres};

const LAST: &str = "SELECT coalesce(pg_catalog.max(seq), 0) FROM signal";
/// Columns of `amounts`.
const AMOUNTS: &str = "g.at, g.error_code IS NOT NULL, g.tokens_in, g.tokens_out, g.cost_micros";
/// Signals of other bridges that one question reads at most.
const MOST_OF_OTHERS: usize = 10_000;

fn amounts(row: &mut Columns<'_>) -> Result<(Timestamp, SignalTotals)> {
    let (at, is_error) = (row.next()?, row.next()?);
    let usage = [row.next()?, row.next()?];
    Ok((at, SignalTotals::of_one(is_error, usage, row.next()?)))
}

impl Postgres {
    pub(super) async fn mark(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64> {
        let needs = Needs {
            reads: vec![Statement::new(LAST, Vec::new())],
            is_alone: true,
            ..Needs::default()
        };
        let change = move |rows: &mut Rows| {
            mark();
            let row = rows.answers[0].first().ok_or(Error::NotFound)?;
            Ok(Columns::of(row).next()?)
        };
        self.write(0, needs, change).await
    }

    pub(super) async fn amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>> {
        let (which, values) = match group {
            SignalGroup::All => ("true", Vec::new()),
            SignalGroup::Users(users) => ("g.user_id = ANY($3)", users),
            SignalGroup::Project(project) => ("g.project_id = ANY($3)", vec![project]),
            SignalGroup::Session(session) => ("g.session = ANY($3)", vec![session]),
        };
        let sql = format!(
            "SELECT {AMOUNTS} FROM signal g WHERE g.at >= $1 AND g.seq <= $2 AND ($3 IS NOT NULL AND {which})"
        );
        let mut params = params![since, last];
        params.push(array(&values));
        let mut sums = BTreeMap::<Timestamp, SignalTotals>::new();
        for (at, amounts) in self.all(sql, params, amounts).await? {
            sums.entry(signals::minute(at))
                .or_default()
                .add_all(&amounts);
        }
        Ok(sums.into_iter().collect())
    }

    pub(super) async fn of_others(&self, after: Option<u64>) -> Result<(u64, Vec<OtherSignal>)> {
        let Some(after) = after else {
            let last = self.one(LAST, Vec::new(), |row| row.next()).await?;
            return Ok((last.unwrap_or(0), Vec::new()));
        };
        let instance = self.published.identity.instance;
        // In the order of the commits: no position follows that is lower. One statement has one state for both parts.
        let sql = format!(
            "SELECT l.last, g.seq IS NOT NULL, coalesce(g.seq, 0), coalesce(g.session, ''), g.user_id, g.project_id,
               coalesce(g.at, 0), g.error_code IS NOT NULL, g.tokens_in, g.tokens_out, g.cost_micros
             FROM ({LAST}) AS l (last) LEFT JOIN (
               SELECT * FROM signal WHERE seq > $1 AND instance IS DISTINCT FROM $2 ORDER BY seq LIMIT $3
             ) g ON true ORDER BY g.seq"
        );
        let mut end = after;
        let rows = self.all(sql, params![after, instance, MOST_OF_OTHERS], |row| {
            let (last, is_there): (u64, bool) = (row.next()?, row.next()?);
            let position = row.next()?;
            let signal = OtherSignal {
                position,
                session: row.next()?,
                user_id: row.next()?,
                project_id: row.next()?,
                at: row.next()?,
                amounts: {
                    let is_error = row.next()?;
                    let usage = [row.next()?, row.next()?];
                    SignalTotals::of_one(is_error, usage, row.next()?)
                },
            };
            Ok((last, is_there.then_some(signal)))
        });
        let mut signals = Vec::new();
        for (last, signal) in rows.await? {
            end = end.max(last);
            signals.extend(signal);
        }
        if signals.len() == MOST_OF_OTHERS {
            end = signals.last().map_or(end, |signal| signal.position);
        }
        Ok((end, signals))
    }

    /// Sums by the values of a property, newest records first.
    pub(super) async fn sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums> {
        let value = match by {
            SignalProperty::User => "g.user_id",
            SignalProperty::Project => "g.project_id",
            SignalProperty::Adapter => "s.adapter",
            SignalProperty::Model => "g.model",
        };
        let sql = format!(
            "SELECT {AMOUNTS}, {value} FROM signal g JOIN signal_session s ON s.id = g.session
             WHERE g.at >= $1 ORDER BY g.at DESC, g.seq DESC LIMIT $2"
        );
        let read = |row: &mut Columns<'_>| Ok((amounts(row)?, row.next()?));
        let mut summing = Summing::default();
        for ((at, amounts), value) in self.all(sql, params![since, MOST_SUMMED + 1], read).await? {
            let value: Option<String> = value;
            if !summing.add(at, value.as_deref(), &amounts) {
                break;
            }
        }
        Ok(summing.finish())
    }

    /// Records after the position that was kept.
    pub(super) async fn entries(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>> {
        let sql = format!("SELECT value, ({LAST}) FROM meta WHERE name = 'forwarded'");
        let read = |row: &mut Columns<'_>| Ok((row.next()?, row.next()?));
        let Some((kept, last)) = self.one(sql, Vec::new(), read).await? else {
            return Ok(None);
        };
        let after = signals::resume(kept, last);
        // One statement, because the totals count the records: those of each session after this one are subtracted.
        let sql = format!(
            "SELECT g.seq, NOT EXISTS (SELECT 1 FROM signal e WHERE e.session = g.session AND e.seq < g.seq),
               coalesce((SELECT pg_catalog.sum(coalesce(l.tokens_in, 0) + coalesce(l.tokens_out, 0))::int8 FROM signal l
                 WHERE l.session = g.session AND l.seq > g.seq), 0), {}, {}
             FROM signal g JOIN signal_session s ON s.id = g.session WHERE g.seq > $1 ORDER BY g.seq LIMIT $2",
            columns::<SignalSession>("s."),
            columns::<SignalRecord>("g.")
        );
        let entries = self.all(sql, params![after, limit], |row| {
            let (position, is_first, later) = (row.next()?, row.next()?, row.next::<u64>()?);
            let session = SignalSession::read(row)?;
            Ok(SignalEntry {
                position,
                is_first,
                tokens: tokens_before(&session.totals, [later]),
                session,
                record: SignalRecord::read(row)?,
            })
        });
        Ok(Some(entries.await?))
    }

    /// Removes old records in the order of arrival, then old interventions, then sessions that have no record left.
    pub(super) async fn sweep_old_signals(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<SweptSignals> {
        let mut swept = SweptSignals::default();
        let oldest =
            "SELECT seq FROM (SELECT seq, at FROM signal ORDER BY seq LIMIT $2) g WHERE at < $1";
        let delete = "DELETE FROM signal WHERE seq = ANY($1)";
        (swept.signals, swept.more) = self.remove_old(oldest, delete, before, limit).await?;
        if swept.more {
            return Ok(swept);
        }
        let oldest =
            "SELECT seq FROM (SELECT seq, at FROM signal_intervention ORDER BY seq LIMIT $2) i
                      WHERE at < $1";
        let delete = "DELETE FROM signal_intervention WHERE seq = ANY($1)";
        (swept.interventions, swept.more) = self.remove_old(oldest, delete, before, limit).await?;
        if swept.more {
            return Ok(swept);
        }
        let empty = "SELECT place FROM signal_session s WHERE started_at < $1 AND last_at < $1
                       AND NOT EXISTS (SELECT 1 FROM signal g WHERE g.session = s.id) ORDER BY place LIMIT $2";
        let delete = "DELETE FROM signal_session s WHERE place = ANY($1)
                        AND NOT EXISTS (SELECT 1 FROM signal g WHERE g.session = s.id)";
        (swept.sessions, swept.more) = self.remove_old(empty, delete, before, limit).await?;
        Ok(swept)
    }

    /// Removes up to `limit` rows; returns their number, and true if there are more.
    async fn remove_old(
        &self,
        select: &'static str,
        delete: &'static str,
        before: Timestamp,
        limit: usize,
    ) -> Result<(u64, bool)> {
        let most = limit.saturating_add(1);
        let params = params![before, most];
        let mut old: Vec<u64> = self.all(select, params, |row| row.next()).await?;
        let has_more = old.len() > limit;
        old.truncate(limit);
        let removed = old.len() as u64;
        if removed > 0 {
            let needs = Needs {
                is_alone: true,
                ..Needs::default()
            };
            let change = move |rows: &mut Rows| {
                rows.execute(delete, vec![array(&old)]);
                Ok(())
            };
            self.write(0, needs, change).await?;
        }
        Ok((removed, has_more))
    }
}
