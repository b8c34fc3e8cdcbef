//! The outbox. A dispatch has at most one delivery, so they share their row number.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::events::{self, Owner};
use super::ledger::Turn;
use super::op::{Failure, Tx};
use super::table::{self, nanos, state_code};
use crate::id::DeliveryId;
use crate::store::destination::DueQuery;
use crate::store::record::{
    AfterAttempt, Callback, DeliveryPayload, DeliveryState, DueDelivery, NewDelivery, Settlement,
};
use crate::store::{Error, rules};

pub(super) fn retention(retention: Duration) -> i64 {
    i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn owe(
    tx: &mut Tx<'_>,
    seq: i64,
    new: &NewDelivery,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let at = nanos(at);
    tx.execute(
        "INSERT INTO delivery
         (dispatch, id, state, origin, url, created_at, since, due_at, give_up_after)
         VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?)",
        params![
            seq,
            new.id.as_bytes(),
            new.callback.origin,
            new.callback.url,
            at,
            at,
            at,
            retention(new.give_up_after)
        ],
    )?;
    tx.ledger.numbers.counts.deliveries_pending += 1;
    tx.ledger.turns.push(Turn::Owed(new.id));
    Ok(())
}

fn state(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<Option<DeliveryState>> {
    let sql = "SELECT state FROM delivery WHERE dispatch = ?";
    table::one(tx.conn, sql, [seq], |row| table::delivery_state(row, 0))
}

/// Makes the delivery of a finished dispatch due again, whatever became of it.
pub(super) fn owe_again(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> rusqlite::Result<()> {
    let Some(state) = state(tx, seq)? else {
        return Ok(());
    };
    tx.execute(
        "UPDATE delivery SET state = 0, due_at = ?1, since = ?1, settled_at = NULL
         WHERE dispatch = ?2",
        params![nanos(now), seq],
    )?;
    tx.execute("UPDATE dispatch SET expires_at = NULL WHERE seq = ?", [seq])?;
    count(tx, Some(state), Some(DeliveryState::Pending));
    Ok(())
}

/// The same, unless the delivery has left the state in which it was chosen.
pub(super) fn replay(
    tx: &mut Tx<'_>,
    chosen: &[i64],
    still: DeliveryState,
    now: Timestamp,
) -> Result<u64, Failure> {
    let mut replayed = 0;
    for seq in chosen {
        if state(tx, *seq)? == Some(still) {
            owe_again(tx, *seq, now)?;
            replayed += 1;
        }
    }
    Ok(replayed)
}

pub(super) fn replay_one(tx: &mut Tx<'_>, id: DeliveryId, now: Timestamp) -> Result<u64, Failure> {
    let sql = "SELECT dispatch FROM delivery WHERE id = ?";
    let seq = table::one(tx.conn, sql, [id.as_bytes()], |row| row.get(0))?;
    owe_again(tx, seq.ok_or(Error::NotFound)?, now)?;
    Ok(1)
}

/// The deliveries of one step of a replay, after the one where the last step ended.
pub(super) struct Chosen<'a> {
    pub(super) status: DeliveryState,
    pub(super) host: Option<&'a str>,
    pub(super) since: Option<Timestamp>,
    pub(super) after: i64,
}

pub(super) fn choose(
    connection: &Connection,
    chosen: &Chosen<'_>,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    // The state is spelled out so that the index of the dead is used.
    let sql = format!(
        "SELECT dispatch FROM delivery
         WHERE state = {} AND dispatch > ?1 AND created_at >= ?2 AND {AT_HOST}
         ORDER BY dispatch LIMIT ?4",
        state_code(chosen.status)
    );
    let since = chosen.since.map_or(i64::MIN, nanos);
    let params = params![chosen.after, since, chosen.host, table::limit(limit)];
    table::all(connection, &sql, params, |row| row.get(0))
}

/// `rules::at_host` for the host in parameter 3.
pub(super) const AT_HOST: &str = "(?3 IS NULL
  OR substr(origin, instr(origin, '://') + 3) = ?3
  OR substr(origin, instr(origin, '://') + 3, length(?3) + 1) = ?3 || ':')";

pub(super) fn supersede(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> rusqlite::Result<()> {
    let Some(state @ (DeliveryState::Pending | DeliveryState::Dead)) = state(tx, seq)? else {
        return Ok(());
    };
    let id = table::one(
        tx.conn,
        "UPDATE delivery SET state = 3, due_at = NULL, settled_at = ? WHERE dispatch = ? RETURNING id",
        params![nanos(now), seq],
        |row| table::delivery_id(row, 0),
    )?;
    tx.ledger.turns.extend(id.map(Turn::Settled));
    tx.execute(
        "UPDATE dispatch SET expires_at = ? + retention WHERE seq = ?",
        params![nanos(now), seq],
    )?;
    count(tx, Some(state), Some(DeliveryState::Superseded));
    Ok(())
}

/// Moves one delivery from state to state in the ledger; `None` is outside of the store.
pub(super) fn count(tx: &mut Tx<'_>, from: Option<DeliveryState>, to: Option<DeliveryState>) {
    let counts = &mut tx.ledger.numbers.counts;
    match from {
        Some(DeliveryState::Pending) => counts.deliveries_pending -= 1,
        Some(DeliveryState::Dead) => counts.deliveries_dead -= 1,
        Some(DeliveryState::Delivered | DeliveryState::Superseded) | None => {}
    }
    match to {
        Some(DeliveryState::Pending) => counts.deliveries_pending += 1,
        Some(DeliveryState::Dead) => counts.deliveries_dead += 1,
        Some(DeliveryState::Delivered | DeliveryState::Superseded) | None => {}
    }
}

pub(super) fn settle(
    tx: &mut Tx<'_>,
    id: DeliveryId,
    settlement: &Settlement,
) -> Result<(), Failure> {
    struct Row {
        seq: i64,
        pending: bool,
        attempts: u32,
        events: u64,
        provider: String,
        attempt: u32,
    }
    let found = table::one(
        tx.conn,
        "SELECT v.dispatch, v.state = 0, v.attempts, d.events, d.provider, d.attempts
         FROM delivery v JOIN dispatch d ON d.seq = v.dispatch WHERE v.id = ?",
        [id.as_bytes()],
        |row| {
            Ok(Row {
                seq: row.get(0)?,
                pending: row.get(1)?,
                attempts: row.get(2)?,
                events: row.get(3)?,
                provider: row.get(4)?,
                attempt: row.get(5)?,
            })
        },
    )?
    .ok_or(Error::NotFound)?;
    if !found.pending {
        return Err(Error::InvalidState("the delivery is not pending").into());
    }
    let at = settlement.at;
    let (state, due_at, settled_at) = match settlement.next {
        AfterAttempt::Delivered => (DeliveryState::Delivered, None, Some(at)),
        AfterAttempt::Dead => (DeliveryState::Dead, None, Some(at)),
        AfterAttempt::Retry { due } => (DeliveryState::Pending, Some(due), None),
    };
    let (code, due_at, settled_nanos) =
        (state_code(state), due_at.map(nanos), settled_at.map(nanos));
    match &settlement.attempt {
        None => tx.execute(
            "UPDATE delivery SET state = ?, due_at = ?, settled_at = ? WHERE dispatch = ?",
            params![code, due_at, settled_nanos, found.seq],
        )?,
        Some(attempt) => {
            let number = found.attempts + 1;
            set_aside(tx, found.seq, number)?;
            tx.execute(
                "UPDATE delivery SET state = ?, due_at = ?, settled_at = ?, attempts = ?, last_at = ?,
                   last_duration_ms = ?, last_status = ?, last_error = ?, last_answer = ?
                 WHERE dispatch = ?",
                params![
                    code,
                    due_at,
                    settled_nanos,
                    number,
                    nanos(attempt.at),
                    i64::try_from(attempt.duration_ms).unwrap_or(i64::MAX),
                    attempt.status,
                    attempt.error,
                    attempt.answer,
                    found.seq
                ],
            )?
        }
    };
    let owner = Owner {
        seq: found.seq,
        provider: &found.provider,
        attempt: found.attempt,
        events_before: found.events,
    };
    events::append(tx, &owner, &settlement.events)?;
    let events = found.events + settlement.events.len() as u64;
    match settled_at {
        None => tx.execute(
            "UPDATE dispatch SET events = ? WHERE seq = ?",
            params![events, found.seq],
        )?,
        Some(at) => tx.execute(
            "UPDATE dispatch SET events = ?, expires_at = ?, retention = ? WHERE seq = ?",
            params![
                events,
                nanos(rules::later(at, settlement.retention)),
                retention(settlement.retention),
                found.seq
            ],
        )?,
    };
    count(tx, Some(DeliveryState::Pending), Some(state));
    if settled_at.is_some() {
        tx.ledger.turns.push(Turn::Settled(id));
    }
    Ok(())
}

/// Makes room for attempt `number`, the last one from now on.
fn set_aside(tx: &Tx<'_>, delivery: i64, number: u32) -> rusqlite::Result<()> {
    if number == 1 {
        return Ok(());
    }
    tx.execute(
        "INSERT INTO attempt (delivery, number, at, duration_ms, status, error, answer)
         SELECT dispatch, attempts, last_at, last_duration_ms, last_status, last_error, last_answer
         FROM delivery WHERE dispatch = ? AND last_at IS NOT NULL",
        [delivery],
    )?;
    let forgotten = number.saturating_sub(rules::LAST_ATTEMPTS);
    if forgotten > rules::FIRST_ATTEMPTS {
        tx.execute(
            "DELETE FROM attempt WHERE delivery = ? AND number = ?",
            params![delivery, forgotten],
        )?;
    }
    Ok(())
}

/// Goes from origin to origin by the index, so that a million due deliveries to one cost the others
/// nothing, and begins after the origin that was served last.
pub(super) fn due(
    connection: &Connection,
    query: &DueQuery,
    served: &mut String,
) -> rusqlite::Result<Vec<DueDelivery>> {
    let mut found = Vec::new();
    let exclude: HashSet<&String> = query.exclude.iter().collect();
    let begin = served.clone();
    let mut last = begin.clone();
    let mut wrapped = false;
    while found.len() < query.limit {
        let next = next_origin(connection, &last)?;
        let origin = match next {
            Some(origin) if !wrapped || origin <= begin => origin,
            Some(_) => break,
            None if wrapped || begin.is_empty() => break,
            None => {
                wrapped = true;
                last.clear();
                continue;
            }
        };
        if !exclude.contains(&origin) {
            let before = found.len();
            due_at(connection, query, &origin, &mut found)?;
            if found.len() > before {
                origin.clone_into(served);
            }
        }
        last = origin;
    }
    Ok(found)
}

fn next_origin(connection: &Connection, after: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT origin FROM delivery INDEXED BY delivery_due
               WHERE state = 0 AND origin > ? ORDER BY origin LIMIT 1";
    table::one(connection, sql, [after], |row| row.get(0))
}

fn due_at(
    connection: &Connection,
    query: &DueQuery,
    origin: &str,
    found: &mut Vec<DueDelivery>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT v.id, d.id, v.url, v.origin, v.attempts, v.since
         FROM delivery v INDEXED BY delivery_due JOIN dispatch d ON d.seq = v.dispatch
         WHERE v.state = 0 AND v.origin = ? AND v.due_at <= ? ORDER BY v.due_at, v.dispatch",
    )?;
    let mut rows = statement.query(params![origin, nanos(query.now)])?;
    let mut left = query.per_origin.min(query.limit - found.len());
    while left > 0
        && let Some(row) = rows.next()?
    {
        let delivery = read_due(row)?;
        if !query.in_flight.contains(&delivery.id) {
            found.push(delivery);
            left -= 1;
        }
    }
    Ok(())
}

fn read_due(row: &Row<'_>) -> rusqlite::Result<DueDelivery> {
    Ok(DueDelivery {
        id: table::delivery_id(row, 0)?,
        dispatch: table::dispatch_id(row, 1)?,
        callback: Callback {
            url: row.get(2)?,
            origin: row.get(3)?,
        },
        attempts: row.get(4)?,
        since: table::time(row, 5)?,
    })
}

pub(super) fn next_due(
    connection: &Connection,
    exclude: &[String],
) -> rusqlite::Result<Option<Timestamp>> {
    let exclude: HashSet<&String> = exclude.iter().collect();
    let mut earliest = None;
    let mut last = String::new();
    while let Some(origin) = next_origin(connection, &last)? {
        if !exclude.contains(&origin) {
            let sql = "SELECT min(due_at) FROM delivery INDEXED BY delivery_due
                       WHERE state = 0 AND origin = ?";
            let due = table::one(connection, sql, [&origin], |row| table::time_option(row, 0))?;
            earliest = earliest.into_iter().chain(due.flatten()).min();
        }
        last = origin;
    }
    Ok(earliest)
}

/// Looks at those that were due first; behind so many that have time the others wait.
const LOOKED_AT: usize = 10_000;

pub(super) fn overdue(
    connection: &Connection,
    origin: &str,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<DueDelivery>> {
    let sql = "SELECT v.id, d.id, v.url, v.origin, v.attempts, v.since
         FROM (SELECT * FROM delivery INDEXED BY delivery_due
               WHERE state = 0 AND origin = ?1 AND due_at <= ?2
               ORDER BY due_at, dispatch LIMIT ?3) v
         JOIN dispatch d ON d.seq = v.dispatch
         WHERE v.give_up_after <= ?2 - v.since LIMIT ?4";
    let params = params![
        origin,
        nanos(now),
        table::limit(LOOKED_AT),
        table::limit(limit)
    ];
    table::all(connection, sql, params, read_due)
}

pub(super) fn payload(
    connection: &Connection,
    id: DeliveryId,
) -> rusqlite::Result<Option<DeliveryPayload>> {
    table::one(
        connection,
        "SELECT r.body, d.trace_id, b.request, b.secrets FROM delivery v
         JOIN dispatch d ON d.seq = v.dispatch
         JOIN result r ON r.dispatch = v.dispatch
         JOIN body b ON b.dispatch = v.dispatch
         WHERE v.id = ?",
        [id.as_bytes()],
        |row| {
            Ok(DeliveryPayload {
                body: row.get::<_, String>(0)?.into_bytes(),
                trace_id: row.get(1)?,
                request: table::opaque(row, 2)?,
                secrets: row.get(3)?,
            })
        },
    )
}
