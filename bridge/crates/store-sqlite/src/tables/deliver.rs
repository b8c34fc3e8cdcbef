//! The outbox. A dispatch has at most one delivery, which is part of its row and has the same id with another prefix.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_base::id::DeliveryId;
use forge_store::destination::{DueQuery, OpenBreaker};
use forge_store::record::{
    Callback, DeliveryPayload, DeliveryState, DueDelivery, Replay, Settlement,
};
use forge_store::roles::Outbox;
use forge_store::{Error, Result, rules, transition};

use super::events::{self, Owner};
use super::rows::{self, nanos, state_code};
use super::{Tx, breaker};
use crate::Sqlite;
use crate::engine::{Failure, Urgency};

#[async_trait]
impl Outbox for Sqlite {
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>> {
        let served = Arc::clone(&self.served);
        self.look_up(move |connection| {
            let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
            due(connection, &query, &mut served)
        })
        .await
    }

    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>> {
        let exclude = exclude.to_vec();
        self.look_up(move |connection| next_due(connection, &exclude))
            .await
    }

    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        let found = self.look_up(move |connection| payload(connection, id));
        found.await?.ok_or(Error::NotFound)
    }

    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        let attempt = settlement.attempt.as_ref();
        let answer = attempt.and_then(|attempt| attempt.answer.as_ref());
        let answer = answer.map_or(0, String::len);
        let bytes = answer + events::size(&settlement.events);
        // The receiver has answered, and nothing follows from this.
        self.write_with(Urgency::Soon, bytes, move |tx| settle(tx, id, &settlement))
            .await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        match replay {
            Replay::One(id) => self.write(0, move |tx| replay_one(tx, id, now)).await,
            Replay::Many {
                host,
                since,
                status,
            } => self.replay_many(host, since, status, now).await,
        }
    }

    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>> {
        let origin = origin.to_owned();
        self.read(move |connection| overdue(connection, &origin, now, limit))
            .await
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        self.look_up(breaker::open).await
    }

    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()> {
        let bytes = 256 * (open.len() + closed.len());
        self.write_with(Urgency::Soon, bytes, move |tx| {
            breaker::keep(tx, &open, &closed)
        })
        .await
    }
}

/// A replay of many deliveries is made in steps of this size, so that it delays nothing else.
const REPLAY_STEP: usize = 500;

impl Sqlite {
    async fn replay_many(
        &self,
        host: Option<String>,
        since: Option<Timestamp>,
        status: forge_store::record::DeliveryState,
        now: Timestamp,
    ) -> Result<u64> {
        let (mut after, mut replayed) = (0, 0);
        loop {
            let host = host.clone();
            let chosen = self
                .read(move |connection| {
                    let chosen = Chosen {
                        status,
                        host: host.as_deref(),
                        since,
                        after,
                    };
                    choose(connection, &chosen, REPLAY_STEP)
                })
                .await?;
            let Some(last) = chosen.last() else {
                return Ok(replayed);
            };
            after = *last;
            replayed += self
                .write(0, move |tx| replay(tx, &chosen, status, now))
                .await?;
        }
    }
}

pub(crate) fn retention(retention: Duration) -> i64 {
    i64::try_from(retention.as_nanos()).unwrap_or(i64::MAX)
}

fn state(tx: &Tx<'_>, seq: i64) -> rusqlite::Result<Option<DeliveryState>> {
    let sql = "SELECT delivery FROM dispatch WHERE seq = ? AND delivery IS NOT NULL";
    rows::one(tx.conn, sql, [seq], |row| rows::delivery_state(row, 0))
}

/// Makes the delivery of a finished dispatch due again, whatever its state.
pub(crate) fn redeliver(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> rusqlite::Result<()> {
    let Some(state) = state(tx, seq)? else {
        return Ok(());
    };
    tx.execute(
        "UPDATE dispatch SET delivery = 0, due_at = ?1, since = ?1, settled_at = NULL, expires_at = NULL
         WHERE seq = ?2",
        params![nanos(now), seq],
    )?;
    count(tx, Some(state), Some(DeliveryState::Pending));
    Ok(())
}

/// Like `redeliver`, unless the delivery has left the state in which it was chosen.
pub(crate) fn replay(
    tx: &mut Tx<'_>,
    chosen: &[i64],
    still: DeliveryState,
    now: Timestamp,
) -> Result<u64, Failure> {
    let mut replayed = 0;
    for seq in chosen {
        if state(tx, *seq)? == Some(still) {
            redeliver(tx, *seq, now)?;
            replayed += 1;
        }
    }
    Ok(replayed)
}

pub(crate) fn replay_one(tx: &mut Tx<'_>, id: DeliveryId, now: Timestamp) -> Result<u64, Failure> {
    let sql = "SELECT seq FROM dispatch WHERE id = ? AND delivery IS NOT NULL";
    let seq = rows::one(tx.conn, sql, [id.as_bytes()], |row| row.get(0))?;
    redeliver(tx, seq.ok_or(Error::NotFound)?, now)?;
    Ok(1)
}

/// The deliveries of one step of a replay, after the one where the last step ended.
pub(crate) struct Chosen<'a> {
    pub(crate) status: DeliveryState,
    pub(crate) host: Option<&'a str>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) after: i64,
}

pub(crate) fn choose(
    connection: &Connection,
    chosen: &Chosen<'_>,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    // The state is spelled out so that the index of the dead is used.
    let sql = format!(
        "SELECT seq FROM dispatch
         WHERE delivery = {} AND seq > ?1 AND finished_at >= ?2 AND {AT_HOST}
         ORDER BY seq LIMIT ?4",
        state_code(chosen.status)
    );
    let since = chosen.since.map_or(i64::MIN, nanos);
    let params = params![chosen.after, since, chosen.host, rows::limit(limit)];
    rows::all(connection, &sql, params, |row| row.get(0))
}

/// `rules::at_host` for the host in parameter 3.
pub(crate) const AT_HOST: &str = "(?3 IS NULL
  OR substr(callback_origin, instr(callback_origin, '://') + 3) = ?3
  OR substr(callback_origin, instr(callback_origin, '://') + 3, length(?3) + 1) = ?3 || ':')";

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

pub(crate) fn settle(
    tx: &mut Tx<'_>,
    id: DeliveryId,
    settlement: &Settlement,
) -> Result<(), Failure> {
    struct Found {
        seq: i64,
        state: DeliveryState,
        delivery_attempts: u32,
        events: u64,
        provider: String,
        attempts: u32,
    }
    let found = rows::one(
        tx.conn,
        "SELECT seq, delivery, delivery_attempts, events, provider, attempts
         FROM dispatch WHERE id = ? AND delivery IS NOT NULL",
        [id.as_bytes()],
        |row| {
            Ok(Found {
                seq: row.get(0)?,
                state: rows::delivery_state(row, 1)?,
                delivery_attempts: row.get(2)?,
                events: row.get(3)?,
                provider: row.get(4)?,
                attempts: row.get(5)?,
            })
        },
    )?
    .ok_or(Error::NotFound)?;
    let settled = transition::settle(found.state, settlement)?;
    let attempt = settlement.attempt.as_ref();
    let attempts = found.delivery_attempts + u32::from(attempt.is_some());
    if attempt.is_some() {
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
    let owner = Owner {
        seq: found.seq,
        provider: &found.provider,
        attempt: found.attempts,
        events_before: found.events,
    };
    events::append(tx, &owner, &settlement.events)?;
    count(tx, Some(DeliveryState::Pending), Some(settled.state));
    Ok(())
}

/// Moves the last attempt to `attempt`, before attempt `number` takes its place, and forgets one in the middle.
fn set_aside(tx: &Tx<'_>, seq: i64, number: u32) -> rusqlite::Result<()> {
    if number == 1 {
        return Ok(());
    }
    tx.execute(
        "INSERT INTO attempt (dispatch, number, at, duration_ms, status, error, answer)
         SELECT seq, delivery_attempts, last_at, last_duration_ms, last_status, last_error, last_answer
         FROM dispatch WHERE seq = ? AND last_at IS NOT NULL",
        [seq],
    )?;
    let forgotten = number.saturating_sub(rules::LAST_ATTEMPTS);
    if forgotten > rules::FIRST_ATTEMPTS {
        tx.execute(
            "DELETE FROM attempt WHERE dispatch = ? AND number = ?",
            params![seq, forgotten],
        )?;
    }
    Ok(())
}

/// Goes from origin to origin by the index, so that a million due deliveries to one cost the others nothing, and begins
/// after the origin that was served last.
pub(crate) fn due(
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
    let sql = "SELECT callback_origin FROM dispatch INDEXED BY delivery_due
               WHERE delivery = 0 AND callback_origin > ? ORDER BY callback_origin LIMIT 1";
    rows::one(connection, sql, [after], |row| row.get(0))
}

fn due_at(
    connection: &Connection,
    query: &DueQuery,
    origin: &str,
    found: &mut Vec<DueDelivery>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT id, callback_url, callback_origin, delivery_attempts, since
         FROM dispatch INDEXED BY delivery_due
         WHERE delivery = 0 AND callback_origin = ? AND due_at <= ? ORDER BY due_at, seq",
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
    let dispatch = rows::dispatch_id(row, 0)?;
    Ok(DueDelivery {
        id: DeliveryId::of(dispatch),
        dispatch,
        callback: Callback {
            url: row.get(1)?,
            origin: row.get(2)?,
        },
        attempts: row.get(3)?,
        since: rows::time(row, 4)?,
    })
}

pub(crate) fn next_due(
    connection: &Connection,
    exclude: &[String],
) -> rusqlite::Result<Option<Timestamp>> {
    let exclude: HashSet<&String> = exclude.iter().collect();
    let mut earliest = None;
    let mut last = String::new();
    while let Some(origin) = next_origin(connection, &last)? {
        if !exclude.contains(&origin) {
            let sql = "SELECT min(due_at) FROM dispatch INDEXED BY delivery_due
                       WHERE delivery = 0 AND callback_origin = ?";
            let due = rows::one(connection, sql, [&origin], |row| rows::time_option(row, 0))?;
            earliest = earliest.into_iter().chain(due.flatten()).min();
        }
        last = origin;
    }
    Ok(earliest)
}

/// Rows that one search for overdue deliveries looks at, in the order in which they were due.
const LOOKED_AT: usize = 10_000;

pub(crate) fn overdue(
    connection: &Connection,
    origin: &str,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<DueDelivery>> {
    let sql = "SELECT id, callback_url, callback_origin, delivery_attempts, since
         FROM (SELECT id, callback_url, callback_origin, delivery_attempts, since, give_up_after
               FROM dispatch INDEXED BY delivery_due
               WHERE delivery = 0 AND callback_origin = ?1 AND due_at <= ?2
               ORDER BY due_at, seq LIMIT ?3)
         WHERE give_up_after <= ?2 - since LIMIT ?4";
    let params = params![
        origin,
        nanos(now),
        rows::limit(LOOKED_AT),
        rows::limit(limit)
    ];
    rows::all(connection, sql, params, read_due)
}

pub(crate) fn payload(
    connection: &Connection,
    id: DeliveryId,
) -> rusqlite::Result<Option<DeliveryPayload>> {
    rows::one(
        connection,
        "SELECT r.body, d.trace_id, b.request, b.secrets FROM dispatch d
         JOIN result r ON r.dispatch = d.seq
         JOIN body b ON b.dispatch = d.seq
         WHERE d.id = ? AND d.delivery IS NOT NULL",
        [id.as_bytes()],
        |row| {
            Ok(DeliveryPayload {
                body: row.get::<_, String>(0)?.into_bytes(),
                trace_id: row.get(1)?,
                request: rows::opaque(row, 2)?,
                secrets: row.get(3)?,
            })
        },
    )
}
