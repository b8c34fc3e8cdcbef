//! Forwarding of signals: the position that was kept, and the records after it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rusqlite::{Connection, params};

use forge_store::record::{SignalEntry, SignalSession};
use forge_store::signals::{resume, tokens_before};

use super::rows;
use super::signal_records::{AFTER, stored_record};
use super::{Tx, amounts, sessions};

pub(super) const EARLIER: &str = "SELECT 1 FROM signal WHERE session = ? AND seq < ? LIMIT 1";
pub(super) const LATER: &str =
    "SELECT tokens_in, tokens_out FROM signal WHERE session = ? AND seq > ?";

/// Columns after those of a record.
const SEQ: usize = 19;
const SESSION: usize = 20;

pub(super) fn keep(tx: &Tx<'_>, position: u64) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('forwarded', ?)";
    tx.execute(sql, [position]).map(drop)
}

/// Records after the position that was kept.
pub(super) fn entries(
    connection: &Connection,
    limit: usize,
) -> rusqlite::Result<Option<Vec<SignalEntry>>> {
    // All statements must see the same commit: the totals count the records.
    let transaction = connection.unchecked_transaction()?;
    let kept = "SELECT value FROM meta WHERE name = 'forwarded'";
    let Some(kept) = rows::one(&transaction, kept, [], |row| row.get::<_, u64>(0))? else {
        return Ok(None);
    };
    let after = resume(kept, amounts::last(&transaction)?);
    let params = params![after, rows::limit(limit)];
    let records = rows::all(&transaction, AFTER, params, |row| {
        let (seq, session): (u64, u64) = (row.get(SEQ)?, row.get(SESSION)?);
        Ok((seq, session, stored_record(row)?))
    })?;
    let mut of_batch = BTreeMap::<u64, (SignalSession, u64)>::new();
    let mut entries = Vec::with_capacity(records.len());
    // Newest first, so that the later ones of each session are known.
    for (position, seq, record) in records.into_iter().rev() {
        let (session, tokens) = match of_batch.entry(seq) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(session(&transaction, seq, position)?),
        };
        let entry = SignalEntry {
            position,
            session: session.clone(),
            is_first: rows::one(&transaction, EARLIER, [seq, position], |_| Ok(()))?.is_none(),
            tokens: *tokens,
            record,
        };
        *tokens = tokens.saturating_sub(entry.record.tokens());
        entries.push(entry);
    }
    entries.reverse();
    Ok(Some(entries))
}

/// A session, and its tokens up to and with the record at a position.
fn session(
    connection: &Connection,
    seq: u64,
    position: u64,
) -> rusqlite::Result<(SignalSession, u64)> {
    let session = rows::one(connection, sessions::OF_SEQ, [seq], sessions::session)?;
    let session = session.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    let later: Vec<u64> = rows::all(connection, LATER, [seq, position], |row| {
        let [tokens_in, tokens_out]: [Option<u64>; 2] = [row.get(0)?, row.get(1)?];
        Ok(tokens_in
            .unwrap_or(0)
            .saturating_add(tokens_out.unwrap_or(0)))
    })?;
    let tokens = tokens_before(&session.totals, later);
    Ok((session, tokens))
}
