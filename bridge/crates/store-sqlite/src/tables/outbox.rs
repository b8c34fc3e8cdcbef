//! Outbox: deliveries that are due or overdue, their content, and the choice of those to replay. Also open circuit
//! breakers, kept so that a restart does not begin by calling receivers that are down.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, params};

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::destination::{DueQuery, MAX_BREAKERS, OpenBreaker};
use forge_store::record::{
    Callback, DeliveryAttempt, DeliveryFilter, DeliveryPayload, DeliveryRecord, DeliveryState,
    DueDelivery, Page, Replay, Settlement,
};
use forge_store::roles::Outbox;
use forge_store::{Error, Result};

use super::read::Range;
use super::rows::{self, nanos, state_code};
use super::{Tx, deliver, events};
use crate::Sqlite;
use crate::engine::{Length, Urgency, lock};

#[async_trait]
impl Outbox for Sqlite {
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>> {
        let served = Arc::clone(&self.served);
        let query = move |connection: &Connection| due(connection, &query, &mut lock(&served));
        self.engine.read(Length::Short, query).await
    }

    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>> {
        let exclude = exclude.to_vec();
        let query = move |connection: &Connection| next_due(connection, &exclude);
        self.engine.read(Length::Short, query).await
    }

    async fn follow_clock(&self, now: Timestamp) -> Result<u64> {
        // In the order of the index, in which those that have moved are passed by.
        let sql = "SELECT callback_origin, due_at, seq FROM dispatch INDEXED BY delivery_due
                   WHERE delivery = 0 AND (callback_origin, due_at, seq) > (?1, ?2, ?3)
                     AND due_at > ?4 AND (since > ?4 OR last_at > ?4)
                   ORDER BY callback_origin, due_at, seq LIMIT ?5";
        let (mut after, mut moved) = ((String::new(), i64::MIN, 0_i64), 0);
        loop {
            let (origin, due_at, seq) = after;
            let params = (origin, due_at, seq, nanos(now), rows::limit(REPLAY_STEP));
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let mut ahead: Vec<(String, i64, i64)> =
                self.all(Length::Long, sql, params, read).await?;
            let chosen: Vec<i64> = ahead.iter().map(|(_, _, seq)| *seq).collect();
            match ahead.pop() {
                Some(last) => after = last,
                None => return Ok(moved),
            }
            let step = move |tx: &mut Tx<'_>| Ok(deliver::follow_clock(tx, &chosen, now)?);
            moved += self.write(Urgency::Now, 0, step).await?;
        }
    }

    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        let sql = "SELECT r.body, d.trace_id, b.request, b.secrets FROM dispatch d
                   JOIN result r ON r.dispatch = d.seq
                   JOIN body b ON b.dispatch = d.seq
                   WHERE d.id = ? AND d.delivery IS NOT NULL";
        let found = self.one(Length::Short, sql, [*id.as_bytes()], |row| {
            Ok(DeliveryPayload {
                body: row.get::<_, String>(0)?.into_bytes(),
                trace_id: row.get(1)?,
                request: rows::opaque(row, 2)?,
                secrets: row.get(3)?,
            })
        });
        found.await?.ok_or(Error::NotFound)
    }

    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        let attempt = settlement.attempt.as_ref();
        let answer = attempt.and_then(|attempt| attempt.answer.as_ref());
        let answer = answer.map_or(0, String::len);
        let bytes = answer + events::size(&settlement.events);
        // The receiver has answered, and nothing follows from this.
        let change = move |tx: &mut Tx<'_>| deliver::settle(tx, id, &settlement);
        self.write(Urgency::Soon, bytes, change).await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        match replay {
            Replay::One(id) => {
                let one = move |tx: &mut Tx<'_>| deliver::replay_one(tx, id, now);
                self.write(Urgency::Now, 0, one).await
            }
            Replay::Many { status, .. } => {
                let (mut after, mut replayed) = (0, 0);
                loop {
                    let chosen = self.choose("seq", &replay, after).await?;
                    let Some(last) = chosen.last() else {
                        return Ok(replayed);
                    };
                    after = *last;
                    let step =
                        move |tx: &mut Tx<'_>| Ok(deliver::replay(tx, &chosen, status, now)?);
                    replayed += self.write(Urgency::Now, 0, step).await?;
                }
            }
        }
    }

    async fn count_replay(&self, replay: &Replay) -> Result<u64> {
        let counted = match replay {
            Replay::One(id) => self.delivery(*id).await?.map(|_| 1),
            Replay::Many { .. } => self.choose("count(*)", replay, 0).await?.pop(),
        };
        counted.ok_or(Error::NotFound)
    }

    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>> {
        let sql = "SELECT id, callback_url, callback_origin, delivery_attempts, since
                   FROM (SELECT id, callback_url, callback_origin, delivery_attempts, since, give_up_after
                         FROM dispatch INDEXED BY delivery_due
                         WHERE delivery = 0 AND callback_origin = ?1 AND due_at <= ?2
                         ORDER BY due_at, seq LIMIT ?3)
                   WHERE give_up_after <= ?2 - since LIMIT ?4";
        let (looked_at, limit) = (rows::limit(LOOKED_AT), rows::limit(limit));
        let params = (origin.to_owned(), nanos(now), looked_at, limit);
        self.all(Length::Long, sql, params, read_due).await
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        let sql = "SELECT origin, opened_at, until, times, reason FROM breaker
                   ORDER BY until DESC, origin DESC LIMIT ?";
        self.all(Length::Short, sql, [rows::limit(MAX_BREAKERS)], |row| {
            Ok(OpenBreaker {
                origin: row.get(0)?,
                opened_at: rows::time(row, 1)?,
                until: rows::time(row, 2)?,
                times: row.get(3)?,
                reason: row.get(4)?,
            })
        })
        .await
    }

    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()> {
        let bytes = 256 * (open.len() + closed.len());
        self.write(Urgency::Soon, bytes, move |tx| {
            for origin in &closed {
                tx.execute("DELETE FROM breaker WHERE origin = ?", [origin])?;
            }
            for breaker in &open {
                let sql = "INSERT OR REPLACE INTO breaker (origin, opened_at, until, times, reason)
                           VALUES (?, ?, ?, ?, ?)";
                let (opened_at, until) = (nanos(breaker.opened_at), nanos(breaker.until));
                let (origin, times, reason) = (&breaker.origin, breaker.times, &breaker.reason);
                tx.execute(sql, params![origin, opened_at, until, times, reason])?;
            }
            tx.execute(
                "DELETE FROM breaker WHERE origin IN (
                   SELECT origin FROM breaker ORDER BY until DESC, origin DESC LIMIT -1 OFFSET ?)",
                [rows::limit(MAX_BREAKERS)],
            )?;
            Ok(())
        })
        .await
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>> {
        let sql = format!("{DELIVERY} WHERE id = ? AND delivery IS NOT NULL");
        let attempts = "SELECT number, at, duration_ms, status, error, answer FROM attempt WHERE dispatch = ?1
             UNION ALL
             SELECT delivery_attempts, last_at, last_duration_ms, last_status, last_error, last_answer
             FROM dispatch WHERE seq = ?1 AND last_at IS NOT NULL
             ORDER BY 1";
        self.engine
            .read(Length::Short, move |connection| {
                let transaction = connection.unchecked_transaction()?;
                let found = rows::one(&transaction, &sql, [id.as_bytes()], |row| {
                    Ok((row.get::<_, i64>(8)?, read_delivery(row)?))
                })?;
                let Some((seq, mut delivery)) = found else {
                    return Ok(None);
                };
                let read = |row: &Row<'_>| read_attempt(row, 0);
                delivery.attempts = rows::all(&transaction, attempts, [seq], read)?;
                Ok(Some(delivery))
            })
            .await
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>> {
        let index = match (filter.status, &filter.host) {
            // In the order of the list, so that a page takes no more steps than it has rows.
            (Some(DeliveryState::Dead), None) => "INDEXED BY delivery_dead",
            (Some(_) | None, _) => "",
        };
        let state = match filter.status {
            None => "delivery IS NOT NULL".to_owned(),
            Some(state) => format!("delivery = {}", state_code(state)),
        };
        self.engine
            .read(Length::Long, move |connection| {
                let range = Range::new(connection, filter.before, index)?;
                let sql = format!(
                    "{DELIVERY} {index} WHERE seq < ?1 AND seq >= ?2 AND {state} AND {AT_HOST}
                   AND finished_at >= ?5
                 ORDER BY seq DESC LIMIT ?4"
                );
                let limit = rows::limit(filter.limit.saturating_add(1));
                let since = filter.since.map_or(i64::MIN, nanos);
                let params = params![range.before, range.floor, filter.host, limit, since];
                let found = rows::all(connection, &sql, params, |row| {
                    Ok((row.get(8)?, read_delivery(row)?))
                })?;
                Ok(range.page(found, filter.limit))
            })
            .await
    }

    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>> {
        Ok(Vec::from_iter(self.delivery(DeliveryId::of(id)).await?))
    }
}

/// A change of many deliveries is made in steps of this size, so that it delays nothing else.
const REPLAY_STEP: usize = 500;

impl Sqlite {
    /// Reads one column of the deliveries that a replay of many chooses, after a place in the order of their dispatches.
    async fn choose<T: FromSql + Send + 'static>(
        &self,
        column: &str,
        replay: &Replay,
        after: i64,
    ) -> Result<Vec<T>> {
        let Replay::Many {
            host,
            since,
            status,
        } = replay.clone()
        else {
            return Ok(Vec::new());
        };
        // The state is spelled out so that the index of the dead is used.
        let sql = format!(
            "SELECT {column} FROM dispatch WHERE delivery = {} AND seq > ?1 AND finished_at >= ?2 AND {AT_HOST}
             ORDER BY seq LIMIT ?4",
            state_code(status)
        );
        let since = since.map_or(i64::MIN, nanos);
        let params = (after, since, host, rows::limit(REPLAY_STEP));
        self.all(Length::Long, sql, params, |row| row.get(0)).await
    }
}

/// Goes from origin to origin by the index, so that a million due deliveries to one cost the others nothing, and begins
/// after the origin that was served last.
fn due(
    connection: &Connection,
    query: &DueQuery,
    served: &mut String,
) -> rusqlite::Result<Vec<DueDelivery>> {
    let mut found = Vec::new();
    let exclude: HashSet<&String> = query.exclude.iter().collect();
    let begin = served.clone();
    for (mut last, end) in [(begin.clone(), None), (String::new(), Some(&begin))] {
        while found.len() < query.limit
            && let Some(origin) = next_origin(connection, &last)?
            && end.is_none_or(|end| origin <= *end)
        {
            if !exclude.contains(&origin) {
                let before = found.len();
                due_at(connection, query, &origin, &mut found)?;
                if found.len() > before {
                    origin.clone_into(served);
                }
            }
            last = origin;
        }
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

fn next_due(connection: &Connection, exclude: &[String]) -> rusqlite::Result<Option<Timestamp>> {
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

const DELIVERY: &str = "
SELECT id, task_id, callback_url, delivery, delivery_attempts, finished_at, due_at, settled_at,
       seq, delivery_attempts, last_at, last_duration_ms, last_status, last_error, NULL
FROM dispatch";

/// Reads a delivery with its last attempt only, and that without the receiver's answer, as lists show it.
fn read_delivery(row: &Row<'_>) -> rusqlite::Result<DeliveryRecord> {
    let last_at: Option<i64> = row.get(10)?;
    let last = last_at.map(|_| read_attempt(row, 9)).transpose()?;
    let dispatch_id = rows::dispatch_id(row, 0)?;
    Ok(DeliveryRecord {
        id: DeliveryId::of(dispatch_id),
        dispatch_id,
        task_id: row.get(1)?,
        url: row.get(2)?,
        status: rows::delivery_state(row, 3)?,
        attempt_count: row.get(4)?,
        created_at: rows::time(row, 5)?,
        due_at: rows::time_option(row, 6)?,
        settled_at: rows::time_option(row, 7)?,
        attempts: last.into_iter().collect(),
    })
}

/// Reads an attempt from six columns, beginning with its number.
fn read_attempt(row: &Row<'_>, number: usize) -> rusqlite::Result<DeliveryAttempt> {
    Ok(DeliveryAttempt {
        number: row.get(number)?,
        at: rows::time(row, number + 1)?,
        duration_ms: row.get(number + 2)?,
        status: row.get(number + 3)?,
        error: row.get(number + 4)?,
        answer: row.get(number + 5)?,
    })
}

/// True for an origin at the host, with or without a port, in parameter 3.
const AT_HOST: &str = "(?3 IS NULL
  OR substr(callback_origin, instr(callback_origin, '://') + 3) = ?3
  OR substr(callback_origin, instr(callback_origin, '://') + 3, length(?3) + 1) = ?3 || ':')";
