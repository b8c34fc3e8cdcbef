//! Retention: what is past its time goes, a little at a time.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::params;

use super::deliver;
use super::op::{Failure, Tx};
use super::table::{self, nanos};
use crate::store::record::{DeliveryState, Swept};
use crate::store::rules;

/// One step ends after so many rows, however few dispatches they are,
const STEP_ROWS: usize = 2_000;
/// and after so long: whoever writes meanwhile waits for it.
const STEP_TIME: Duration = Duration::from_millis(5);

pub(super) fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> Result<Swept, Failure> {
    let begun = Instant::now();
    let mut swept = Swept::default();
    let mut rows = 0;
    let expired: Vec<(i64, bool)> = table::all(
        tx.conn,
        "SELECT d.seq, coalesce(v.state = 2, 0) FROM dispatch d INDEXED BY dispatch_expires
         LEFT JOIN delivery v ON v.dispatch = d.seq
         WHERE d.expires_at IS NOT NULL AND d.expires_at <= ?
         ORDER BY d.expires_at, d.seq LIMIT ?",
        params![nanos(now), table::limit(limit.saturating_add(1))],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    for (place, (seq, dead)) in expired.into_iter().enumerate() {
        if place == limit || rows > STEP_ROWS || begun.elapsed() > STEP_TIME {
            swept.more = true;
            break;
        }
        let last = table::one(
            tx.conn,
            "SELECT last FROM event WHERE dispatch = ? ORDER BY first DESC LIMIT 1",
            [seq],
            |row| row.get(0),
        )?;
        removed(tx, last);
        rows += tx.execute("DELETE FROM event WHERE dispatch = ?", [seq])?;
        // The rest of its rows goes with it.
        rows += tx.execute("DELETE FROM dispatch WHERE seq = ?", [seq])?;
        if dead {
            deliver::count(tx, Some(DeliveryState::Dead), None);
        }
        swept.dispatches += 1;
    }
    sweep_unbound(tx, now, limit)?;
    tx.execute(
        "UPDATE meta SET value = ?1 WHERE name = 'removed' AND value < ?1",
        [tx.ledger.numbers.bounds.removed],
    )?;
    Ok(swept)
}

fn sweep_unbound(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> Result<(), Failure> {
    let oldest = now
        .saturating_sub(rules::UNBOUND_RETENTION)
        .unwrap_or(Timestamp::MIN);
    let old: Vec<(i64, u64)> = table::all(
        tx.conn,
        "SELECT first, last FROM event INDEXED BY event_unbound
         WHERE unbound_at IS NOT NULL AND unbound_at < ? ORDER BY unbound_at LIMIT ?",
        params![nanos(oldest), table::limit(limit)],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    for (first, last) in old {
        removed(tx, Some(last));
        tx.execute("DELETE FROM event WHERE first = ?", [first])?;
    }
    Ok(())
}

fn removed(tx: &mut Tx<'_>, last: Option<u64>) {
    let bounds = &mut tx.ledger.numbers.bounds;
    bounds.removed = bounds.removed.max(last.unwrap_or(0));
}
