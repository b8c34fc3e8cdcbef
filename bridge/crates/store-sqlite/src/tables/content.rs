//! Contents stored apart from a dispatch's request and result. A content is cut into parts, so that a piece of it can be
//! read without the rest.

use rusqlite::{Connection, ToSql, params};

use forge_base::id::DispatchId;
use forge_store::record::{Content, Piece};

use super::{Tx, rows};

const PART_BYTES: usize = 256 << 10;

/// The column `number`.
fn number(content: Content) -> i64 {
    let number = |position: usize| i64::try_from(position).unwrap_or(i64::MAX - 1);
    match content {
        Content::Output => 0,
        Content::OutputFile(position) => number(position) + 1,
        Content::Attachment(position) => -1 - number(position),
    }
}

pub(super) fn insert(
    tx: &Tx<'_>,
    dispatch: impl ToSql + Copy,
    content: Content,
    bytes: &[u8],
) -> rusqlite::Result<()> {
    for (part, bytes) in bytes.chunks(PART_BYTES).enumerate() {
        tx.execute(
            "INSERT INTO content (dispatch, number, part, bytes) VALUES (?, ?, ?, ?)",
            params![dispatch, number(content), part, bytes],
        )?;
    }
    Ok(())
}

/// At most `limit` bytes from `offset`; `None` if nothing is stored.
pub(super) fn read(
    connection: &Connection,
    id: DispatchId,
    content: Content,
    offset: u64,
    limit: usize,
) -> rusqlite::Result<Option<Piece>> {
    let last = "SELECT c.dispatch, c.part * ?3 + length(c.bytes) FROM dispatch d
                JOIN content c ON c.dispatch = d.seq AND c.number = ?2 WHERE d.id = ?1
                ORDER BY c.part DESC LIMIT 1";
    let parts = "SELECT substr(bytes, 1 + max(?3 - part * ?5, 0),
                   min(?4 - part * ?5, ?5) - max(?3 - part * ?5, 0))
                 FROM content WHERE dispatch = ?1 AND number = ?2 AND part BETWEEN ?3 / ?5 AND ?4 / ?5
                 ORDER BY part";
    let params = params![id.as_bytes(), number(content), PART_BYTES];
    let found = rows::one(connection, last, params, |row| row.try_into())?;
    let Some((dispatch, total)): Option<(i64, u64)> = found else {
        return Ok(None);
    };
    let end = offset.saturating_add(limit as u64).min(total);
    let params = params![dispatch, number(content), offset.min(end), end, PART_BYTES];
    let parts = rows::all(connection, parts, params, |row| row.get::<_, Vec<u8>>(0))?;
    let bytes = parts.concat();
    Ok(Some(Piece { bytes, total }))
}
