//! Reading of the records of signals.

use rusqlite::{Connection, Row, params};

use forge_store::record::{SignalRecord, SignalSession};

use super::rows;
use super::sessions;

/// The columns that `stored_record` reads, and `seq` and `session` after them.
macro_rules! select_records {
    ($rest:literal) => {
        concat!(
            "SELECT at, ts, kind, model, tool, user_id, project_id, error_code, tokens_in, tokens_out, cost_micros,
       cache_read_tokens, cache_write_tokens, latency_ms, drift_score, confidence, details, blocked, intervention,
       seq, session FROM signal ",
            $rest
        )
    };
}

pub(super) const RECORDS: &str = select_records!("WHERE session = ? ORDER BY seq DESC LIMIT ?");
pub(super) const AFTER: &str = select_records!("WHERE seq > ? ORDER BY seq LIMIT ?");

/// A session and its last records, newest first.
pub(super) fn with_records(
    connection: &Connection,
    id: &str,
    records: usize,
) -> rusqlite::Result<Option<(SignalSession, Vec<SignalRecord>)>> {
    // Both statements must see the same commit: the totals count the records.
    let transaction = connection.unchecked_transaction()?;
    let Some((seq, session)) = sessions::find(&transaction, id)? else {
        return Ok(None);
    };
    let params = params![seq, rows::limit(records)];
    let records = rows::all(&transaction, RECORDS, params, stored_record)?;
    Ok(Some((session, records)))
}

pub(super) fn stored_record(row: &Row<'_>) -> rusqlite::Result<SignalRecord> {
    Ok(SignalRecord {
        at: rows::time(row, 0)?,
        ts: rows::time(row, 1)?,
        kind: row.get(2)?,
        model: row.get(3)?,
        tool: row.get(4)?,
        user_id: row.get(5)?,
        project_id: row.get(6)?,
        error_code: row.get(7)?,
        tokens_in: row.get(8)?,
        tokens_out: row.get(9)?,
        cost_micros: row.get(10)?,
        cache_read_tokens: row.get(11)?,
        cache_write_tokens: row.get(12)?,
        latency_ms: row.get(13)?,
        drift_score: row.get(14)?,
        confidence: row.get(15)?,
        details: row.get(16)?,
        blocked: row.get(17)?,
        intervention_id: row.get(18)?,
    })
}
