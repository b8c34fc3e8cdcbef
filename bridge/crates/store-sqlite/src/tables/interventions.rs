//! Interventions of rules over signals: their rows.

use rusqlite::{Connection, Row, params};

use forge_store::record::{Acknowledgement, Intervention, InterventionFilter, Page, Severity};

use super::Tx;
use super::rows::{self, nanos};

/// The columns that `intervention` reads, and `seq` after them.
macro_rules! select_intervention {
    ($rest:literal) => {
        concat!(
            "SELECT id, rule_id, blocks, severity, message, scope_value, period, session_id, at, is_open,
               acknowledged_at, ack_delay_ms, seq
             FROM signal_intervention",
            $rest
        )
    };
}

pub(super) const OPEN: &str = select_intervention!(
    " INDEXED BY signal_intervention_open WHERE is_open AND seq > 0 ORDER BY seq DESC LIMIT ?"
);
pub(super) const NEWEST: &str = select_intervention!(" WHERE seq < ? ORDER BY seq DESC LIMIT ?");
pub(super) const OF_SESSION: &str =
    select_intervention!(" WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?");
pub(super) const OLDEST: &str = "SELECT seq, at FROM signal_intervention ORDER BY seq LIMIT ?";

const SEQ: usize = 12;

pub(super) fn intervention(row: &Row<'_>) -> rusqlite::Result<Intervention> {
    let acknowledged = match rows::time_option(row, 10)? {
        None => None,
        Some(at) => Some(Acknowledgement {
            at,
            delay_ms: row.get(11)?,
        }),
    };
    Ok(Intervention {
        id: row.get(0)?,
        rule_id: row.get(1)?,
        blocks: row.get(2)?,
        severity: severity(row, 3)?,
        message: row.get(4)?,
        scope_value: row.get(5)?,
        period: row.get(6)?,
        session_id: row.get(7)?,
        at: rows::time(row, 8)?,
        is_open: row.get(9)?,
        acknowledged,
    })
}

fn severity_code(severity: Severity) -> i64 {
    match severity {
        Severity::Info => 0,
        Severity::Warning => 1,
        Severity::Critical => 2,
    }
}

fn severity(row: &Row<'_>, column: usize) -> rusqlite::Result<Severity> {
    match row.get(column)? {
        0 => Ok(Severity::Info),
        1 => Ok(Severity::Warning),
        2 => Ok(Severity::Critical),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(column, other)),
    }
}

pub(super) fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<Intervention>> {
    let sql = select_intervention!(" WHERE id = ?");
    rows::one(connection, sql, [id], intervention)
}

pub(super) fn page(
    connection: &Connection,
    filter: &InterventionFilter,
) -> rusqlite::Result<Page<Intervention>> {
    let before = filter.before.and_then(|before| i64::try_from(before).ok());
    let before = before.unwrap_or(i64::MAX);
    let limit = rows::limit(filter.limit.saturating_add(1));
    let read = |row: &Row<'_>| Ok((row.get(SEQ)?, intervention(row)?));
    let mut found: Vec<(u64, Intervention)> = match &filter.session {
        None => rows::all(connection, NEWEST, params![before, limit], read)?,
        Some(session) => {
            let params = params![session, before, limit];
            rows::all(connection, OF_SESSION, params, read)?
        }
    };
    let has_more = found.len() > filter.limit;
    found.truncate(filter.limit);
    let next = found.last().filter(|_| has_more).map(|(seq, _)| *seq);
    let items = found.into_iter().map(|(_, one)| one).collect();
    Ok(Page { items, next })
}

pub(super) fn insert(tx: &Tx<'_>, interventions: &[Intervention]) -> rusqlite::Result<()> {
    for one in interventions {
        tx.execute(
            "INSERT INTO signal_intervention (id, rule_id, blocks, severity, message, scope_value, period,
               session_id, at, is_open, acknowledged_at, ack_delay_ms)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                one.id,
                one.rule_id,
                one.blocks,
                severity_code(one.severity),
                one.message,
                one.scope_value,
                one.period,
                one.session_id,
                nanos(one.at),
                one.is_open,
                one.acknowledged.map(|one| nanos(one.at)),
                one.acknowledged.map(|one| one.delay_ms),
            ],
        )?;
    }
    Ok(())
}

/// Closes the interventions of these ids.
pub(super) fn end(tx: &Tx<'_>, ids: &[String]) -> rusqlite::Result<()> {
    let sql = "UPDATE signal_intervention SET is_open = 0 WHERE id = ?";
    ids.iter()
        .try_for_each(|id| tx.execute(sql, [id]).map(drop))
}

pub(super) fn acknowledge(
    tx: &Tx<'_>,
    id: &str,
    acknowledged: Acknowledgement,
) -> rusqlite::Result<()> {
    let sql = "UPDATE signal_intervention SET acknowledged_at = ?, ack_delay_ms = ? WHERE id = ?";
    let params = params![nanos(acknowledged.at), acknowledged.delay_ms, id];
    tx.execute(sql, params).map(drop)
}
