//! Removal of old signals, interventions and sessions.

use std::time::Instant;

use jiff::Timestamp;
use rusqlite::params;

use forge_store::record::SweptSignals;
use forge_store::signals;

use super::retention::STEP_TIME;
use super::rows::{self, nanos};
use super::{Tx, interventions};
use crate::engine::Failure;

const OLDEST: &str = "SELECT seq, at FROM signal ORDER BY seq LIMIT ?";
pub(super) const EMPTY: &str = "SELECT seq FROM signal_session s WHERE seq < ? AND last_at < ?
   AND NOT EXISTS (SELECT 1 FROM signal g WHERE g.session = s.seq) ORDER BY seq LIMIT ?";

/// Removes old records in the order of arrival, then old interventions, then sessions that have no record left.
pub(crate) fn sweep(
    tx: &mut Tx<'_>,
    before: Timestamp,
    limit: usize,
) -> Result<SweptSignals, Failure> {
    let begun = Instant::now();
    let mut swept = SweptSignals::default();
    let step = rows::limit(limit.saturating_add(1));
    let old = |sql| -> rusqlite::Result<Vec<u64>> {
        let oldest: Vec<(u64, i64)> = rows::all(tx.conn, sql, [step], |row| row.try_into())?;
        let old = oldest.into_iter().take_while(|(_, at)| *at < nanos(before));
        Ok(old.map(|(seq, _)| seq).collect())
    };
    let sql = "DELETE FROM signal WHERE seq = ?";
    let signals = old(OLDEST)?;
    (swept.signals, swept.more) = remove(tx, sql, &signals, limit, begun)?;
    if let Some(last) = signals[..swept.signals as usize].last() {
        let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('signals_removed', ?)";
        tx.execute(sql, [last])?;
    }
    if swept.more {
        return Ok(swept);
    }
    let sql = "DELETE FROM signal_intervention WHERE seq = ?";
    let interventions = old(interventions::OLDEST)?;
    (swept.interventions, swept.more) = remove(tx, sql, &interventions, limit, begun)?;
    if swept.more {
        return Ok(swept);
    }
    let params = params![signals::place(before), nanos(before), step];
    let empty: Vec<u64> = rows::all(tx.conn, EMPTY, params, |row| row.get(0))?;
    let sql = "DELETE FROM signal_session WHERE seq = ?";
    (swept.sessions, swept.more) = remove(tx, sql, &empty, limit, begun)?;
    Ok(swept)
}

/// Removes up to `limit` rows while the step lasts, at least one; returns their number, and true if there are more.
fn remove(
    tx: &Tx<'_>,
    sql: &str,
    rows: &[u64],
    limit: usize,
    begun: Instant,
) -> rusqlite::Result<(u64, bool)> {
    let mut removed = 0;
    for (place, seq) in rows.iter().enumerate() {
        if place == limit || place > 0 && begun.elapsed() > STEP_TIME {
            return Ok((removed, true));
        }
        removed += tx.execute(sql, [seq])? as u64;
    }
    Ok((removed, false))
}
