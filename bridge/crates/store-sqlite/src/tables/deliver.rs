//! Changes of a delivery: made due again, superseded, settled after an attempt. A dispatch has at most one delivery,
//! which is part of its row and has the same id with another prefix.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::params;

use forge_base::id::DeliveryId;
use forge_store::record::{DeliveryState, Settlement};
use forge_store::transition::DeliveryTimes;
use forge_store::{Error, Result, rules, transition};

use super::Tx;
use super::events;
use super::rows::{self, Current, nanos, state_code};
use crate::engine::Failure;

pub(crate) fn retention(retention: Duration) -> i64 {
    i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX)
}

fn state(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<Option<DeliveryState>> {
    let sql = "SELECT delivery FROM dispatch WHERE seq = ? AND delivery IS NOT NULL";
    rows::one(tx.conn, sql, [seq], |row| rows::delivery_state(row, 0))
}

/// Makes the delivery of a finished dispatch due again, whatever its state.
pub(crate) fn redeliver(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> rusqlite::Result<u64> {
    match state(tx, seq)? {
        Some(state) => replay(tx, &[seq], state, now),
        None => Ok(0),
    }
}

/// Makes those deliveries due again that have not left the state in which they were chosen; returns their number.
pub(crate) fn replay(
    tx: &mut Tx<'_>,
    chosen: &[i64],
    still: DeliveryState,
    now: Timestamp,
) -> rusqlite::Result<u64> {
    let sql = "UPDATE dispatch SET delivery = 0, due_at = ?1, since = ?1, settled_at = NULL, expires_at = NULL
               WHERE seq = ?2 AND delivery = ?3";
    let mut replayed = 0;
    for seq in chosen {
        if tx.execute(sql, params![nanos(now), seq, state_code(still)])? > 0 {
            count(tx, Some(still), Some(DeliveryState::Pending));
            replayed += 1;
        }
    }
    Ok(replayed)
}

pub(crate) fn replay_one(tx: &mut Tx<'_>, id: DeliveryId, now: Timestamp) -> Result<u64, Failure> {
    let found = Current::find(tx.conn, id.as_bytes())?.ok_or(Error::NotFound)?;
    let state = found.delivery.ok_or(Error::NotFound)?;
    Ok(replay(tx, &[found.seq], state, now)?)
}

/// Moves the times of those deliveries that are pending; returns the number of those that moved.
pub(crate) fn follow_clock(
    tx: &mut Tx<'_>,
    chosen: &[i64],
    now: Timestamp,
) -> rusqlite::Result<u64> {
    let read = "SELECT since, due_at, last_at FROM dispatch WHERE seq = ? AND delivery = 0";
    let write = "UPDATE dispatch SET since = ?1, due_at = ?2, last_at = ?3 WHERE seq = ?4";
    let mut moved = 0;
    for seq in chosen {
        let times = rows::one(tx.conn, read, [seq], |row| {
            Ok(DeliveryTimes {
                since: rows::time(row, 0)?,
                due_at: rows::time(row, 1)?,
                attempted_at: rows::time_option(row, 2)?,
            })
        })?;
        if let Some(times) = times.and_then(|times| transition::follow_clock(times, now)) {
            let DeliveryTimes {
                since,
                due_at,
                attempted_at,
            } = times;
            let params = params![nanos(since), nanos(due_at), attempted_at.map(nanos), seq];
            moved += tx.execute(write, params)? as u64;
        }
    }
    Ok(moved)
}

pub(crate) fn supersede(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> rusqlite::Result<()> {
    let Some(state @ (DeliveryState::Pending | DeliveryState::Dead)) = state(tx, seq)? else {
        return Ok(());
    };
    tx.execute(
        "UPDATE dispatch SET delivery = 3, due_at = NULL, settled_at = ?1, expires_at = ?1 + retention WHERE seq = ?2",
        params![nanos(now), seq],
    )?;
    count(tx, Some(state), Some(DeliveryState::Superseded));
    Ok(())
}

/// Counts the move of one delivery from state to state; `None` is outside of the store.
pub(crate) fn count(tx: &mut Tx<'_>, from: Option<DeliveryState>, to: Option<DeliveryState>) {
    let counts = &mut tx.counters.counts;
    for (state, by) in [(from, -1), (to, 1)] {
        let count = match state {
            Some(DeliveryState::Pending) => &mut counts.deliveries_pending,
            Some(DeliveryState::Dead) => &mut counts.deliveries_dead,
            Some(DeliveryState::Delivered | DeliveryState::Superseded) | None => continue,
        };
        *count = count.saturating_add_signed(by);
    }
}

pub(crate) fn settle(
    tx: &mut Tx<'_>,
    id: DeliveryId,
    settlement: &Settlement,
) -> Result<(), Failure> {
    let found = Current::find(tx.conn, id.as_bytes())?.ok_or(Error::NotFound)?;
    let state = found.delivery.ok_or(Error::NotFound)?;
    let settled = transition::settle(state, settlement)?;
    let attempt = settlement.attempt.as_ref();
    let attempts = found.delivery_attempts + u32::from(attempt.is_some());
    if attempt.is_some() && attempts > 1 {
        set_aside(tx, found.seq, attempts)?;
    }
    let (ended, tried) = (settled.settled_at.is_some(), attempt.is_some());
    // One statement for every case: unchanged columns keep their values.
    tx.execute(
        "UPDATE dispatch SET events = events + ?1, delivery = ?2, due_at = ?3, settled_at = ?4,
           expires_at = iif(?5, ?6, expires_at), retention = iif(?5, ?7, retention), delivery_attempts = ?8,
           last_at = iif(?9, ?10, last_at), last_duration_ms = iif(?9, ?11, last_duration_ms),
           last_status = iif(?9, ?12, last_status), last_error = iif(?9, ?13, last_error),
           last_answer = iif(?9, ?14, last_answer)
         WHERE seq = ?15",
        params![
            settlement.events.len(),
            state_code(settled.state),
            settled.due_at.map(nanos),
            settled.settled_at.map(nanos),
            ended,
            settled.expires_at.map(nanos),
            retention(settlement.retention),
            attempts,
            tried,
            attempt.map(|attempt| nanos(attempt.at)),
            attempt.map(|attempt| i64::try_from(attempt.duration_ms).unwrap_or(i64::MAX)),
            attempt.and_then(|attempt| attempt.status),
            attempt.and_then(|attempt| attempt.error.as_deref()),
            attempt.and_then(|attempt| attempt.answer.as_deref()),
            found.seq
        ],
    )?;
    events::append(tx, &found, &settlement.events)?;
    count(tx, Some(DeliveryState::Pending), Some(settled.state));
    Ok(())
}

/// Moves the last attempt to `attempt`, before attempt `number` takes its place, and forgets one in the middle.
fn set_aside(tx: &Tx<'_>, seq: i64, number: u32) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO attempt (dispatch, number, at, duration_ms, status, error, answer)
         SELECT seq, delivery_attempts, last_at, last_duration_ms, last_status, last_error, last_answer
         FROM dispatch WHERE seq = ? AND last_at IS NOT NULL",
        [seq],
    )?;
    let forgotten = number.saturating_sub(rules::LAST_ATTEMPTS);
    if forgotten > rules::FIRST_ATTEMPTS {
        let sql = "DELETE FROM attempt WHERE dispatch = ? AND number = ?";
        tx.execute(sql, params![seq, forgotten])?;
    }
    Ok(())
}
