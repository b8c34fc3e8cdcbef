//! Outbox: deliveries that are due or overdue, their content, and the choice of those to replay. Also open circuit
//! breakers, kept so that a restart does not begin by calling receivers that are down.

use std::collections::HashSet;

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::destination::{DueQuery, MAX_BREAKERS, OpenBreaker};
use forge_store::record::{
    Callback, DeliveryAttempt, DeliveryFilter, DeliveryPayload, DeliveryRecord, DeliveryState,
    DueDelivery, Page, Replay, Settlement,
};
use forge_store::roles::Outbox;
use forge_store::{Error, Result, event_batch};

use super::deliver::{Attempted, dispatch_of, needs};
use super::read::{RESULT, page};
use crate::batch::{Needs, Rows};
use crate::engine::lock;
use crate::rows::statement::{array, params};
use crate::rows::table::{Fields as _, columns, fields};
use crate::{Columns, Postgres};

fields!(OpenBreaker { origin opened_at until times reason });

/// Origins with pending deliveries, each found by one step in the index.
const ORIGINS: &str = "WITH RECURSIVE origins AS (
   (SELECT origin FROM delivery WHERE state = 0 ORDER BY origin LIMIT 1)
   UNION ALL SELECT (SELECT origin FROM delivery WHERE state = 0 AND origin > o.origin ORDER BY origin LIMIT 1)
   FROM origins o WHERE o.origin IS NOT NULL)";
/// Columns of `read_due`.
const DUE: &str = "v.id, b.callback_url, v.origin, v.attempts, v.since, v.epoch";
/// True for a delivery that no other live node attempts; `$1` is this node.
const IS_FREE: &str =
    "(epoch = 0 OR NOT EXISTS (SELECT FROM node n WHERE n.epoch = delivery.epoch AND n.id <> $1
   AND NOT n.has_ended AND n.until > pg_catalog.clock_timestamp()))";

#[async_trait]
impl Outbox for Postgres {
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>> {
        // A million due deliveries to one origin cost the others nothing; those after the one that was served last come
        // first.
        let sql = format!(
            "{ORIGINS}
             SELECT {DUE} FROM (
               SELECT v.*, o.origin > $7 AS is_next FROM origins o CROSS JOIN LATERAL (
                 SELECT * FROM delivery WHERE state = 0 AND origin = o.origin AND due_at <= $2 AND id <> ALL($3)
                   AND {IS_FREE}
                 ORDER BY due_at, id LIMIT $4) v
               WHERE o.origin IS NOT NULL AND o.origin <> ALL($5)
               ORDER BY is_next DESC, v.origin, v.due_at, v.id LIMIT $6) v
             JOIN body b ON b.id = v.id ORDER BY v.is_next DESC, v.origin, v.due_at, v.id"
        );
        let served = lock(&self.served).clone();
        let in_flight: Vec<_> = query.in_flight.iter().map(|id| dispatch_of(*id)).collect();
        let mut params = params![self.published.node.id, query.now];
        params.push(array(&in_flight));
        params.extend(params![query.per_origin]);
        params.push(array(&query.exclude));
        params.extend(params![query.limit, served]);
        let found = self.all(sql, params, read_due).await?;
        if let Some((last, _)) = found.last() {
            last.callback.origin.clone_into(&mut lock(&self.served));
        }
        self.take(found).await
    }

    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>> {
        let sql = format!(
            "{ORIGINS}
             SELECT pg_catalog.min((SELECT due_at FROM delivery WHERE state = 0 AND origin = o.origin AND {IS_FREE}
                         ORDER BY due_at LIMIT 1))
             FROM origins o WHERE o.origin IS NOT NULL AND o.origin <> ALL($2)"
        );
        let mut params = params![self.published.node.id];
        params.push(array(exclude));
        let next = self.one(sql, params, |row| row.next());
        Ok(next.await?.flatten())
    }

    async fn follow_clock(&self, now: Timestamp) -> Result<u64> {
        let mut after = (
            String::new(),
            Timestamp::MIN,
            DispatchId::from_bytes([0; 16]),
        );
        let mut moved = 0;
        loop {
            let params = params![after.0, after.1, after.2, now, REPLAY_STEP];
            let ahead = self.all(AHEAD, params, |row| {
                let place = (row.next()?, row.next()?, row.next()?);
                Ok((place, (row.next()?, row.next()?)))
            });
            let ahead: Vec<(Place, Attempted)> = ahead.await?;
            let chosen: Vec<_> = ahead
                .iter()
                .map(|((_, _, id), last)| (*id, *last))
                .collect();
            match ahead.into_iter().next_back() {
                Some((last, _)) => after = last,
                None => return Ok(moved),
            }
            let needs = needs(chosen.iter().map(|(id, _)| *id).collect());
            let change = move |rows: &mut Rows| {
                let moved = chosen.iter();
                let moved = moved.filter(|(id, last)| rows.follow_clock(*id, *last, now));
                Ok(moved.count() as u64)
            };
            moved += self.write(0, needs, change).await?;
        }
    }

    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        let sql = format!(
            "SELECT {RESULT}, b.trace_id, b.request, b.secrets FROM delivery v
               JOIN result r ON r.id = v.id JOIN body b ON b.id = v.id
             WHERE v.id = $1"
        );
        let found = self.one(sql, params![id], |row| {
            let body = self.result(row)?.ok_or(Error::NotFound)?;
            Ok(DeliveryPayload {
                body: String::from(Box::<str>::from(body)).into_bytes(),
                trace_id: row.next()?,
                request: row.next()?,
                secrets: row.next()?,
            })
        });
        found.await?.ok_or(Error::NotFound)
    }

    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        let attempt = settlement.attempt.as_ref();
        let answer = attempt.and_then(|attempt| attempt.answer.as_ref());
        let bytes = answer.map_or(0, String::len) + event_batch::size(&settlement.events);
        let id = dispatch_of(id);
        // The receiver has answered, and nothing follows from this.
        let needs = Needs {
            can_wait: true,
            ..needs(vec![id])
        };
        let change = move |rows: &mut Rows| rows.settle(id, &settlement);
        self.write(bytes, needs, change).await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        let Replay::Many { status, .. } = replay else {
            let Replay::One(id) = replay else {
                return Ok(0);
            };
            let id = dispatch_of(id);
            let change = move |rows: &mut Rows| match rows.redeliver(id, now) {
                true => Ok(1),
                false => Err(Error::NotFound.into()),
            };
            return self.write(0, needs(vec![id]), change).await;
        };
        let (mut after, mut replayed) = (0, 0);
        loop {
            let chosen = self.choose(&replay, after).await?;
            let Some((last, _)) = chosen.last() else {
                return Ok(replayed);
            };
            after = *last;
            let ids: Vec<_> = chosen.into_iter().map(|(_, id)| id).collect();
            let needs = needs(ids.clone());
            let change = move |rows: &mut Rows| {
                // Those that have not left the state in which they were chosen.
                let is_still = |rows: &Rows, id| {
                    rows.deliveries
                        .get(id)
                        .is_some_and(|delivery| delivery.state == status)
                };
                let again = ids
                    .iter()
                    .filter(|id| is_still(rows, id) && rows.redeliver(**id, now));
                Ok(again.count() as u64)
            };
            replayed += self.write(0, needs, change).await?;
        }
    }

    async fn count_replay(&self, replay: &Replay) -> Result<u64> {
        let Replay::Many {
            host,
            since,
            status,
        } = replay
        else {
            let Replay::One(id) = replay else {
                return Ok(0);
            };
            return self.delivery(*id).await?.map(|_| 1).ok_or(Error::NotFound);
        };
        let sql = format!("SELECT pg_catalog.count(*) {CHOSEN}");
        let since = since.unwrap_or(Timestamp::MIN);
        let params = params![0_u64, since, *host, *status];
        Ok(self.one(sql, params, |row| row.next()).await?.unwrap_or(0))
    }

    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>> {
        let sql = format!(
            "SELECT {DUE} FROM (SELECT * FROM delivery WHERE state = 0 AND origin = $5 AND due_at <= $2 AND {IS_FREE}
                                ORDER BY due_at, id LIMIT $3) v
             JOIN body b ON b.id = v.id
             WHERE v.give_up_after <= $2 - v.since ORDER BY v.due_at, v.id LIMIT $4"
        );
        let (node, origin) = (&self.published.node.id, origin.to_owned());
        let found = self.all(sql, params![*node, now, LOOKED_AT, limit, origin], read_due);
        self.take(found.await?).await
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        let sql = format!(
            "SELECT {} FROM breaker ORDER BY until DESC, origin DESC LIMIT $1",
            columns::<OpenBreaker>("")
        );
        self.all(sql, params![MAX_BREAKERS], OpenBreaker::read)
            .await
    }

    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()> {
        let bytes = 256 * (open.len() + closed.len());
        let replaced: Vec<_> = open
            .iter()
            .map(|one| one.origin.clone())
            .chain(closed)
            .collect();
        let change = move |rows: &mut Rows| {
            rows.execute(
                "DELETE FROM breaker WHERE origin = ANY($1)",
                vec![array(&replaced)],
            );
            rows.insert("breaker", &open.iter().collect::<Vec<_>>());
            rows.execute(
                "DELETE FROM breaker WHERE origin IN (
                   SELECT origin FROM breaker ORDER BY until DESC, origin DESC OFFSET $1)",
                params![MAX_BREAKERS],
            );
            Ok(())
        };
        let needs = Needs {
            apart: Some("breakers".to_owned()),
            can_wait: true,
            ..Needs::default()
        };
        self.write(bytes, needs, change).await
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>> {
        let attempts = "LEFT JOIN attempt a ON a.id = v.id WHERE v.id = $1 ORDER BY a.number";
        let sql = format!("{DELIVERY} {attempts}");
        let found = self.all(sql, params![id], read_delivery).await?;
        Ok(found
            .into_iter()
            .map(|(_, one)| one)
            .reduce(|mut all, one| {
                all.attempts.extend(one.attempts);
                all
            }))
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>> {
        let is_bounded = filter.status != Some(DeliveryState::Dead) || filter.host.is_some();
        let range = self.range(filter.before, is_bounded).await?;
        let sql = format!(
            "{DELIVERY} LEFT JOIN attempt a ON a.id = v.id AND a.number = v.attempts
             WHERE d.seq < $1 AND d.seq >= $2 AND {AT_HOST} AND ($4 IS NULL OR v.state = $4)
               AND d.finished_at >= $5
             ORDER BY d.seq DESC LIMIT $6"
        );
        let (before, floor) = (range.before, range.floor);
        let since = filter.since.unwrap_or(Timestamp::MIN);
        let limit = filter.limit.saturating_add(1);
        let params = params![before, floor, filter.host, filter.status, since, limit];
        let found = self.all(sql, params, |row| {
            let (seq, mut delivery) = read_delivery(row)?;
            // Lists show no answers of receivers.
            delivery
                .attempts
                .iter_mut()
                .for_each(|attempt| attempt.answer = None);
            Ok((seq, delivery))
        });
        Ok(page(found.await?, filter.limit, range.rest))
    }

    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>> {
        Ok(Vec::from_iter(self.delivery(DeliveryId::of(id)).await?))
    }
}

/// Place of a delivery in the index of those that are due.
type Place = (String, Timestamp, DispatchId);
/// Pending deliveries of which something has happened ahead of the clock, with their last attempts, in the order of the
/// index, in which those that have moved are passed by.
const AHEAD: &str = "SELECT v.origin, v.due_at, v.id, v.attempts, a.at
   FROM delivery v LEFT JOIN attempt a ON a.id = v.id AND a.number = v.attempts
   WHERE v.state = 0 AND (v.origin, v.due_at, v.id) > ($1, $2, $3) AND v.due_at > $4 AND (v.since > $4 OR a.at > $4)
   ORDER BY v.origin, v.due_at, v.id LIMIT $5";
/// A change of many deliveries is made in steps of this size, so that it delays nothing else.
const REPLAY_STEP: usize = 500;
/// Rows that one search for overdue deliveries looks at, in the order in which they were due.
const LOOKED_AT: usize = 10_000;

/// True for an origin at the host, with or without a port, in parameter 3. Between scheme and host is `://`.
macro_rules! at_host {
    () => {
        "($3 IS NULL OR pg_catalog.substr(v.origin, position('\\x3a2f2f'::bytea IN v.origin) + 3) = $3
          OR pg_catalog.substr(v.origin, position('\\x3a2f2f'::bytea IN v.origin) + 3, pg_catalog.length($3) + 1) = $3 || '\\x3a'::bytea)"
    };
}
const AT_HOST: &str = at_host!();
/// Deliveries that a replay of many chooses, after a place in the order of their dispatches.
const CHOSEN: &str = concat!(
    "FROM delivery v JOIN dispatch d ON d.id = v.id
     WHERE d.seq > $1 AND d.finished_at >= $2 AND v.state = $4 AND ",
    at_host!()
);
const DELIVERY: &str =
    "SELECT d.seq, v.id, v.id, b.task_id, b.callback_url, v.state, v.attempts, d.finished_at,
     v.due_at, v.settled_at, a.number, a.at, a.duration_ms, a.status, a.error, a.answer
   FROM delivery v JOIN dispatch d ON d.id = v.id JOIN body b ON b.id = v.id";

impl Postgres {
    /// Takes deliveries for this node, and returns those that no other node has taken meanwhile.
    async fn take(&self, found: Vec<(DueDelivery, u64)>) -> Result<Vec<DueDelivery>> {
        let epoch = self.published.epoch();
        let free = found.iter().filter(|(_, of)| *of != epoch);
        let free: Vec<_> = free.map(|(due, of)| (due.dispatch, *of)).collect();
        let mut taken: HashSet<DispatchId> = HashSet::new();
        if !free.is_empty() {
            let needs = needs(free.iter().map(|(id, _)| *id).collect());
            let change = move |rows: &mut Rows| {
                let is_free = |rows: &Rows, id, of| {
                    rows.deliveries.get(id).is_some_and(|delivery| {
                        delivery.state == DeliveryState::Pending && delivery.epoch == of
                    })
                };
                let epoch = rows.epoch;
                let mut taken = HashSet::new();
                for (id, of) in &free {
                    if is_free(rows, id, *of)
                        && let Some(delivery) = rows.deliveries.get_mut(id)
                    {
                        delivery.epoch = epoch;
                        taken.insert(*id);
                    }
                }
                Ok(taken)
            };
            taken = self.write(0, needs, change).await?;
        }
        let own = found
            .into_iter()
            .filter(|(due, of)| *of == epoch || taken.contains(&due.dispatch));
        Ok(own.map(|(due, _)| due).collect())
    }

    /// Deliveries that a replay of many chooses, with their places.
    async fn choose(&self, replay: &Replay, after: u64) -> Result<Vec<(u64, DispatchId)>> {
        let Replay::Many {
            host,
            since,
            status,
        } = replay
        else {
            return Ok(Vec::new());
        };
        let sql = format!("SELECT d.seq, d.id {CHOSEN} ORDER BY d.seq LIMIT $5");
        let since = since.unwrap_or(Timestamp::MIN);
        let params = params![after, since, *host, *status, REPLAY_STEP];
        self.all(sql, params, |row| Ok((row.next()?, row.next()?)))
            .await
    }
}

/// A delivery, and the epoch that attempts it.
fn read_due(row: &mut Columns<'_>) -> Result<(DueDelivery, u64)> {
    let dispatch = row.next()?;
    let due = DueDelivery {
        id: DeliveryId::of(dispatch),
        dispatch,
        callback: Callback {
            url: row.next()?,
            origin: row.next()?,
        },
        attempts: row.next()?,
        since: row.next()?,
    };
    Ok((due, row.next()?))
}

/// A delivery with the attempt of the row, if any, and the place of its dispatch.
fn read_delivery(row: &mut Columns<'_>) -> Result<(u64, DeliveryRecord)> {
    let seq = row.next()?;
    let mut delivery = DeliveryRecord {
        id: row.next()?,
        dispatch_id: row.next()?,
        task_id: row.next()?,
        url: row.next()?,
        status: row.next()?,
        attempt_count: row.next()?,
        created_at: row.next()?,
        due_at: row.next()?,
        settled_at: row.next()?,
        attempts: Vec::new(),
    };
    if let Some(number) = row.next()? {
        delivery.attempts.push(DeliveryAttempt {
            number,
            at: row.next()?,
            duration_ms: row.next()?,
            status: row.next()?,
            error: row.next()?,
            answer: row.next()?,
        });
    }
    Ok((seq, delivery))
}
