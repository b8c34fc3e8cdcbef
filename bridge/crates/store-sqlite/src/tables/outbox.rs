//! Outbox: deliveries that are due or overdue, their content, and the choice of those to replay.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::destination::{DueQuery, OpenBreaker};
use forge_store::record::{
    Callback, DeliveryFilter, DeliveryPayload, DeliveryRecord, DeliveryState, DueDelivery, Page,
    Replay, Settlement,
};
use forge_store::roles::Outbox;
use forge_store::{Error, Result};

use super::events::{self};
use super::read::{self, AT_HOST};
use super::rows::{self, nanos, state_code};
use super::{breaker, deliver};
use crate::Sqlite;
use crate::engine::Urgency;

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
        self.write_with(Urgency::Soon, bytes, move |tx| {
            deliver::settle(tx, id, &settlement)
        })
        .await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        match replay {
            Replay::One(id) => {
                self.write(0, move |tx| deliver::replay_one(tx, id, now))
                    .await
            }
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

    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>> {
        self.look_up(move |connection| read::delivery(connection, id))
            .await
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>> {
        self.read(move |connection| read::deliveries(connection, &filter))
            .await
    }

    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>> {
        Ok(self
            .delivery(DeliveryId::of(id))
            .await?
            .into_iter()
            .collect())
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
                .write(0, move |tx| deliver::replay(tx, &chosen, status, now))
                .await?;
        }
    }
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
