//! Open circuit breakers, kept so that a restart does not begin by calling receivers that are down.

use rusqlite::{Connection, params};

use super::Tx;
use super::rows::{self, nanos};
use crate::engine::Failure;
use forge_store::destination::{MAX_BREAKERS, OpenBreaker};

pub(crate) fn open(connection: &Connection) -> rusqlite::Result<Vec<OpenBreaker>> {
    let sql = "SELECT origin, opened_at, until, times, reason FROM breaker
               ORDER BY until DESC, origin DESC LIMIT ?";
    let limit = rows::limit(MAX_BREAKERS);
    rows::all(connection, sql, [limit], |row| {
        Ok(OpenBreaker {
            origin: row.get(0)?,
            opened_at: rows::time(row, 1)?,
            until: rows::time(row, 2)?,
            times: row.get(3)?,
            reason: row.get(4)?,
        })
    })
}

pub(crate) fn keep(
    tx: &mut Tx<'_>,
    open: &[OpenBreaker],
    closed: &[String],
) -> Result<(), Failure> {
    for origin in closed {
        tx.execute("DELETE FROM breaker WHERE origin = ?", [origin])?;
    }
    for breaker in open {
        tx.execute(
            "INSERT OR REPLACE INTO breaker (origin, opened_at, until, times, reason)
             VALUES (?, ?, ?, ?, ?)",
            params![
                breaker.origin,
                nanos(breaker.opened_at),
                nanos(breaker.until),
                breaker.times,
                breaker.reason
            ],
        )?;
    }
    tx.execute(
        "DELETE FROM breaker WHERE origin IN (
           SELECT origin FROM breaker ORDER BY until DESC, origin DESC LIMIT -1 OFFSET ?)",
        [rows::limit(MAX_BREAKERS)],
    )?;
    Ok(())
}
