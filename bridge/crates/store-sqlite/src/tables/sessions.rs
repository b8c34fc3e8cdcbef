//! Sessions of signals: their rows, and the pages of lists.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_store::record::{Page, SignalSession, SignalSessionFilter, SignalSource, SignalTotals};
use forge_store::signals;

use super::Tx;
use super::rows::{self, nanos};

/// The columns that `session` reads, and `seq` after them.
macro_rules! select_session {
    ($rest:literal) => {
        concat!(
            "SELECT id, key_id, source, adapter, user_id, project_id, client_session_id, owner,
               started_at, last_at, paused_at, ended_at, signals, errors, tokens_in, tokens_out, cost_micros, unpriced, seq
             FROM signal_session",
            $rest
        )
    };
}

pub(super) const FIND: &str = select_session!(" WHERE id = ?");
pub(super) const OF_SEQ: &str = select_session!(" WHERE seq = ?");
pub(super) const RECENT: &str =
    select_session!(" WHERE id > ? AND source = ? AND last_at >= ? ORDER BY id LIMIT ?");
pub(super) const NEWEST: &str = select_session!(" WHERE seq < ? ORDER BY seq DESC");
pub(super) const NEWEST_ACTIVE: &str = select_session!(
    " INDEXED BY signal_session_active WHERE ended_at IS NULL AND seq < ? ORDER BY seq DESC"
);

const SEQ: usize = 18;

pub(super) fn session(row: &Row<'_>) -> rusqlite::Result<SignalSession> {
    Ok(SignalSession {
        id: row.get(0)?,
        key_id: row.get(1)?,
        source: source(row, 2)?,
        adapter: row.get(3)?,
        user_id: row.get(4)?,
        project_id: row.get(5)?,
        client_session_id: row.get(6)?,
        owner: row.get(7)?,
        started_at: rows::time(row, 8)?,
        last_at: rows::time(row, 9)?,
        paused_at: rows::time_option(row, 10)?,
        ended_at: rows::time_option(row, 11)?,
        totals: SignalTotals {
            signals: row.get(12)?,
            errors: row.get(13)?,
            tokens_in: row.get(14)?,
            tokens_out: row.get(15)?,
            cost_micros: row.get(16)?,
            unpriced: row.get(17)?,
        },
    })
}

pub(super) fn source_code(source: SignalSource) -> i64 {
    match source {
        SignalSource::Agent => 0,
        SignalSource::Engine => 1,
        SignalSource::Execution => 2,
    }
}

fn source(row: &Row<'_>, column: usize) -> rusqlite::Result<SignalSource> {
    match row.get(column)? {
        0 => Ok(SignalSource::Agent),
        1 => Ok(SignalSource::Engine),
        2 => Ok(SignalSource::Execution),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(column, other)),
    }
}

pub(super) fn find(
    connection: &Connection,
    id: &str,
) -> rusqlite::Result<Option<(u64, SignalSession)>> {
    rows::one(connection, FIND, [id], |row| {
        Ok((row.get(SEQ)?, session(row)?))
    })
}

/// A page looks at no more sessions than this.
const PAGE_ROWS: usize = 10_000;

pub(super) fn page(
    connection: &Connection,
    filter: &SignalSessionFilter,
) -> rusqlite::Result<Page<SignalSession>> {
    let sql = match filter.active {
        Some(true) => NEWEST_ACTIVE,
        Some(false) | None => NEWEST,
    };
    let before = filter.before.and_then(|before| i64::try_from(before).ok());
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([before.unwrap_or(i64::MAX)])?;
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    let (mut looked_at, mut last, mut last_of_page) = (0, None, None);
    while let Some(row) = rows.next()? {
        if looked_at == PAGE_ROWS {
            page.next = last;
            break;
        }
        looked_at += 1;
        let session = session(row)?;
        last = Some(row.get(SEQ)?);
        if !filter.matches(&session) {
            continue;
        }
        if page.items.len() == filter.limit {
            page.next = last_of_page;
            break;
        }
        page.items.push(session);
        last_of_page = last;
    }
    Ok(page)
}

pub(super) fn is_known(tx: &Tx<'_>, id: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM signal_session WHERE id = ?";
    Ok(rows::one(tx.conn, sql, [id], |_| Ok(()))?.is_some())
}

/// Row number of the new session.
pub(super) fn insert(tx: &Tx<'_>, session: &SignalSession) -> rusqlite::Result<u64> {
    let mut seq = signals::place(session.started_at);
    let is_taken = "SELECT 1 FROM signal_session WHERE seq = ?";
    while rows::one(tx.conn, is_taken, [seq], |_| Ok(()))?.is_some() {
        seq += 1;
    }
    let totals = &session.totals;
    tx.execute(
        "INSERT INTO signal_session (seq, id, key_id, source, adapter, user_id, project_id,
           client_session_id, owner, started_at, last_at, paused_at, ended_at, signals, errors, tokens_in,
           tokens_out, cost_micros, unpriced)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            seq,
            session.id,
            session.key_id,
            source_code(session.source),
            session.adapter,
            session.user_id,
            session.project_id,
            session.client_session_id,
            session.owner,
            nanos(session.started_at),
            nanos(session.last_at),
            session.paused_at.map(nanos),
            session.ended_at.map(nanos),
            totals.signals,
            totals.errors,
            totals.tokens_in,
            totals.tokens_out,
            totals.cost_micros,
            totals.unpriced,
        ],
    )?;
    Ok(seq)
}

/// Writes what a record changes: the totals, the project, the time of the last record and the pause.
pub(super) fn update(tx: &Tx<'_>, seq: u64, session: &SignalSession) -> rusqlite::Result<()> {
    let totals = &session.totals;
    tx.execute(
        "UPDATE signal_session SET project_id = ?, last_at = ?, paused_at = ?, signals = ?, errors = ?, tokens_in = ?,
           tokens_out = ?, cost_micros = ?, unpriced = ? WHERE seq = ?",
        params![
            session.project_id,
            nanos(session.last_at),
            session.paused_at.map(nanos),
            totals.signals,
            totals.errors,
            totals.tokens_in,
            totals.tokens_out,
            totals.cost_micros,
            totals.unpriced,
            seq,
        ],
    )?;
    Ok(())
}

pub(super) fn end(tx: &Tx<'_>, (id, at): &(String, Timestamp)) -> rusqlite::Result<()> {
    let sql = "UPDATE signal_session SET ended_at = ? WHERE id = ? AND ended_at IS NULL";
    tx.execute(sql, params![nanos(*at), id]).map(drop)
}
