//! Attempts: begin, append, finish, requeue, cancel, and those that a crash interrupted.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::value::RawValue;

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::record::{
    Begun, CancelRequest, Claim, DispatchRecord, DispatchState, Finish, Finished, Interrupted,
    Lease, Progress, Recorded, Requeue,
};
use forge_store::roles::Executions;
use forge_store::transition::{self, End, Stage, Standing};
use forge_store::{Error, Result, rules};

use super::events::{self, Owner};
use super::rows::{self, nanos, phase, select_dispatch};
use super::{Tx, deliver, queue};
use crate::Sqlite;
use crate::engine::Failure;

#[async_trait]
impl Executions for Sqlite {
    fn epoch(&self) -> u64 {
        self.published.identity.epoch
    }

    async fn begin(
        &self,
        id: DispatchId,
        provider: &str,
        started: NewEvent,
    ) -> Result<(Begun, Box<RawValue>)> {
        let candidate = self
            .look_up(move |connection| candidate(connection, id))
            .await?
            .ok_or(Error::NotFound)?;
        let expected = candidate.expected();
        let provider = provider.to_owned();
        let started = self
            .write(0, move |tx| begin(tx, &expected, &provider, &started))
            .await?;
        Ok(candidate.begun(started))
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        let (lease, bytes) = (lease.clone(), events::size(&progress.events));
        self.write(bytes, move |tx| append(tx, &lease, &progress))
            .await
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        let bytes = finish.result.get().len()
            + finish.output.as_ref().map_or(0, String::len)
            + events::size(&finish.events);
        self.write(bytes, move |tx| self::finish(tx, &claim, &finish))
            .await
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        self.write(0, move |tx| self::requeue(tx, &claim, &requeue))
            .await
    }

    async fn request_cancel(&self, id: DispatchId, _at: Timestamp) -> Result<CancelRequest> {
        self.write(0, move |tx| request_cancel(tx, id)).await
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        let epoch = self.published.identity.epoch;
        self.read(move |connection| interrupted(connection, epoch, limit))
            .await
    }
}

/// A stored output is cut into parts, so that a piece of it can be read without the rest.
pub(crate) const OUTPUT_PART_BYTES: usize = 256 << 10;

/// A queued dispatch with everything its execution needs; read before the running mark is written.
pub(crate) struct Candidate {
    seq: i64,
    dispatch: DispatchRecord,
    request: Box<RawValue>,
    secrets: Option<Vec<u8>>,
    recorded_session: Option<String>,
    spent: Option<Box<RawValue>>,
}

impl Candidate {
    /// The attempt that has begun, and its request.
    pub(crate) fn begun(mut self, started: Started) -> (Begun, Box<RawValue>) {
        let lease = started.lease;
        self.dispatch.attempts = lease.attempt;
        self.dispatch.first_started_at.get_or_insert(started.at);
        self.dispatch.state = DispatchState::Running {
            attempt: lease.attempt,
            started_at: started.at,
        };
        let begun = Begun {
            lease,
            dispatch: self.dispatch,
            secrets: self.secrets,
            recorded_session: self.recorded_session,
            spent: self.spent,
        };
        (begun, self.request)
    }

    /// The state that the running mark must still find.
    pub(crate) fn expected(&self) -> Expected {
        Expected {
            seq: self.seq,
            id: self.dispatch.id,
            attempts: self.dispatch.attempts,
        }
    }
}

pub(crate) struct Expected {
    seq: i64,
    id: DispatchId,
    attempts: u32,
}

pub(crate) struct Started {
    lease: Lease,
    at: Timestamp,
}

pub(crate) fn candidate(
    connection: &Connection,
    id: DispatchId,
) -> rusqlite::Result<Option<Candidate>> {
    let sql = select_dispatch!(
        ", b.request, b.secrets FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.id = ?"
    );
    rows::one(connection, sql, [id.as_bytes()], |row| {
        Ok(Candidate {
            seq: row.get(rows::SEQ)?,
            dispatch: rows::dispatch(row)?,
            request: rows::opaque(row, rows::MORE)?,
            secrets: row.get(rows::MORE + 1)?,
            recorded_session: row.get(rows::RECORDED_SESSION)?,
            spent: rows::opaque_option(row, rows::SPENT)?,
        })
    })
}

pub(crate) fn begin(
    tx: &mut Tx<'_>,
    expected: &Expected,
    provider: &str,
    started: &NewEvent,
) -> Result<Started, Failure> {
    let attempt = expected.attempts + 1;
    let events_before: u64 = rows::one(
        tx.conn,
        "UPDATE dispatch SET phase = 4, attempts = ?1, epoch = ?2, started_at = ?3,
           first_started_at = coalesce(first_started_at, ?3), events = events + 1
         WHERE seq = ?4 AND phase = 0 AND provider = ?5 AND attempts = ?6
         RETURNING events - 1",
        params![
            attempt,
            tx.epoch,
            nanos(started.timestamp),
            expected.seq,
            provider,
            expected.attempts
        ],
        |row| row.get(0),
    )?
    .ok_or(Error::Stale(expected.id))?;
    let owner = Owner {
        seq: expected.seq,
        provider,
        attempt,
        events_before,
    };
    events::append(tx, &owner, std::slice::from_ref(started))?;
    tx.counters.left_queue(provider);
    tx.counters.counts.running += 1;
    Ok(Started {
        lease: Lease {
            id: expected.id,
            attempt,
            epoch: tx.epoch,
        },
        at: started.timestamp,
    })
}

pub(crate) fn append(tx: &mut Tx<'_>, lease: &Lease, progress: &Progress) -> Result<(), Failure> {
    let found = find(tx, lease.id)?.ok_or(Error::Stale(lease.id))?;
    transition::append(lease, &found.standing(), tx.epoch)?;
    tx.execute(
        "UPDATE dispatch SET events = events + ?1,
           recorded_session = coalesce(?2, recorded_session), spent = coalesce(?3, spent)
         WHERE seq = ?4",
        params![
            progress.events.len(),
            progress.session,
            progress.spent.as_ref().map(|spent| spent.get()),
            found.seq
        ],
    )?;
    events::append(tx, &found.owner(), &progress.events)
}

/// A dispatch as claims and cancel requests see it.
struct Found {
    seq: i64,
    phase: i64,
    attempts: u32,
    epoch: u64,
    cancel_requested: bool,
    events: u64,
    provider: String,
    session: Option<String>,
    has_callback: bool,
}

impl Found {
    fn standing(&self) -> Standing {
        let stage = match self.phase {
            phase::RUNNING => Stage::Running { epoch: self.epoch },
            phase if phase::is_queued(phase) => Stage::Queued,
            _ => Stage::Finished,
        };
        Standing {
            stage,
            attempts: self.attempts,
            cancel_requested: self.cancel_requested,
            has_callback: self.has_callback,
        }
    }

    fn owner(&self) -> Owner<'_> {
        Owner {
            seq: self.seq,
            provider: &self.provider,
            attempt: self.attempts,
            events_before: self.events,
        }
    }
}

fn find(tx: &Tx<'_>, id: DispatchId) -> rusqlite::Result<Option<Found>> {
    rows::one(
        tx.conn,
        "SELECT seq, phase, attempts, epoch, cancel_requested, events, provider, session,
           callback_url IS NOT NULL
         FROM dispatch WHERE id = ?",
        [id.as_bytes()],
        |row| {
            Ok(Found {
                seq: row.get(0)?,
                phase: row.get(1)?,
                attempts: row.get(2)?,
                epoch: row.get(3)?,
                cancel_requested: row.get(4)?,
                events: row.get(5)?,
                provider: row.get(6)?,
                session: row.get(7)?,
                has_callback: row.get(8)?,
            })
        },
    )
}

pub(crate) fn finish(tx: &mut Tx<'_>, claim: &Claim, finish: &Finish) -> Result<Finished, Failure> {
    let found = find(tx, claim.id())?.ok_or(Error::NotFound)?;
    let end = transition::finish(claim, finish, &found.standing(), tx.epoch)?;
    let (was_queued, expires_at) = match end {
        End::CancelRequested => return Ok(Finished::CancelRequested),
        End::Record {
            was_queued,
            expires_at,
        } => (was_queued, expires_at),
    };
    let owner = found.owner();
    let totals = events::totals_with(tx, &owner, finish.events.len())?;
    let body = rules::with_events(&finish.result, tx.log, totals)?;
    events::append(tx, &owner, &finish.events)?;
    // The delivery is due at once.
    let due_at = finish.delivery.as_ref().map(|_| nanos(finish.at));
    let give_up_after = finish
        .delivery
        .as_ref()
        .map(|new| deliver::retention(new.give_up_after));
    tx.execute(
        "UPDATE dispatch SET phase = 5, turn = NULL, events = ?1, finished_at = ?2, error_code = ?3,
           expires_at = ?4, retention = ?5, delivery = iif(?6 IS NULL, NULL, 0), since = ?6, due_at = ?6,
           give_up_after = ?7
         WHERE seq = ?8",
        params![
            totals.count,
            nanos(finish.at),
            finish.error_code,
            expires_at.map(nanos),
            deliver::retention(finish.retention),
            due_at,
            give_up_after,
            found.seq
        ],
    )?;
    tx.execute(
        "INSERT INTO result (dispatch, body) VALUES (?, ?)",
        params![found.seq, body],
    )?;
    if let Some(output) = &finish.output {
        for (part, bytes) in output.as_bytes().chunks(OUTPUT_PART_BYTES).enumerate() {
            tx.execute(
                "INSERT INTO output (dispatch, part, bytes) VALUES (?, ?, ?)",
                params![found.seq, part, bytes],
            )?;
        }
    }
    queue::unblock(tx, &found.provider, found.session.as_deref())?;
    match was_queued {
        true => tx.counters.left_queue(&found.provider),
        false => tx.counters.counts.running -= 1,
    }
    if finish.delivery.is_some() {
        tx.counters.counts.deliveries_pending += 1;
    }
    Ok(Finished::Recorded(Recorded { totals, body }))
}

pub(crate) fn requeue(tx: &mut Tx<'_>, claim: &Claim, requeue: &Requeue) -> Result<(), Failure> {
    let found = find(tx, claim.id())?.ok_or(Error::NotFound)?;
    transition::requeue(claim, &found.standing(), tx.epoch)?;
    let sql =
        select_dispatch!(" FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.seq = ?");
    let dispatch = rows::one(tx.conn, sql, [found.seq], rows::dispatch)?.ok_or(Error::NotFound)?;
    let start_by = rules::start_again_by(&dispatch, requeue.event.timestamp);
    events::append(tx, &found.owner(), std::slice::from_ref(&requeue.event))?;
    // Keeps its turn, and is the first of its session, because it ran.
    tx.execute(
        "UPDATE dispatch SET phase = 0, events = events + 1, start_by = ? WHERE seq = ?",
        params![nanos(start_by), found.seq],
    )?;
    tx.counters.counts.running -= 1;
    tx.counters.entered_queue(&found.provider);
    Ok(())
}

pub(crate) fn request_cancel(tx: &mut Tx<'_>, id: DispatchId) -> Result<CancelRequest, Failure> {
    let Some(found) = find(tx, id)? else {
        return Ok(CancelRequest::Unknown);
    };
    let answer = transition::request_cancel(&found.standing());
    if answer != CancelRequest::Finished {
        tx.execute(
            "UPDATE dispatch SET cancel_requested = 1, phase = iif(phase < 3, 3, phase) WHERE seq = ?",
            [found.seq],
        )?;
    }
    Ok(answer)
}

pub(crate) fn interrupted(
    connection: &Connection,
    epoch: u64,
    limit: usize,
) -> rusqlite::Result<Vec<Interrupted>> {
    let sql = select_dispatch!(
        ", b.request FROM dispatch d INDEXED BY dispatch_running JOIN body b ON b.dispatch = d.seq
         WHERE d.phase = 4 AND d.epoch < ? ORDER BY d.seq LIMIT ?"
    );
    rows::all(connection, sql, params![epoch, rows::limit(limit)], |row| {
        let dispatch = rows::dispatch(row)?;
        Ok(Interrupted {
            attempt: dispatch.attempts,
            cancel_requested: dispatch.cancel_requested,
            dispatch,
            request: rows::opaque(row, rows::MORE)?,
            recorded_session: row.get(rows::RECORDED_SESSION)?,
            spent: rows::opaque_option(row, rows::SPENT)?,
        })
    })
}
