//! Attempts: beginning, going on, ending, and what a crash left.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::value::RawValue;

use super::events::{self, Owner};
use super::ledger::{Running, Turn};
use super::op::{Failure, Tx};
use super::table::{self, nanos, phase, select_dispatch};
use super::{deliver, queue};
use crate::event::NewEvent;
use crate::id::DispatchId;
use crate::store::record::{
    Begun, CancelRequest, Claim, Dispatch, Finish, Finished, Interrupted, Lease, Progress,
    Recorded, Requeue, State,
};
use crate::store::{Error, rules};

/// A stored output is cut into parts, so that a piece of it can be read without the rest.
pub(super) const OUTPUT_PART_BYTES: usize = 256 << 10;

/// A queued dispatch with all that its execution needs; read before the running mark is made.
pub(super) struct Candidate {
    seq: i64,
    dispatch: Dispatch,
    request: Box<RawValue>,
    secrets: Option<Vec<u8>>,
    recorded_session: Option<String>,
    spent: Option<Box<RawValue>>,
}

impl Candidate {
    /// What has begun, and its request.
    pub(super) fn begun(mut self, started: Started) -> (Begun, Box<RawValue>) {
        let lease = started.lease;
        self.dispatch.attempts = lease.attempt;
        self.dispatch.first_started_at.get_or_insert(started.at);
        self.dispatch.state = State::Running {
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

    /// What the running mark must still find.
    pub(super) fn expected(&self) -> Expected {
        Expected {
            seq: self.seq,
            id: self.dispatch.id,
            attempts: self.dispatch.attempts,
        }
    }
}

pub(super) struct Expected {
    seq: i64,
    id: DispatchId,
    attempts: u32,
}

pub(super) struct Started {
    lease: Lease,
    at: Timestamp,
}

pub(super) fn candidate(
    connection: &Connection,
    id: DispatchId,
) -> rusqlite::Result<Option<Candidate>> {
    let sql = select_dispatch!(
        ", b.request, b.secrets FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.id = ?"
    );
    table::one(connection, sql, [id.as_bytes()], |row| {
        Ok(Candidate {
            seq: row.get(table::SEQ)?,
            dispatch: table::dispatch(row)?,
            request: table::opaque(row, table::MORE)?,
            secrets: row.get(table::MORE + 1)?,
            recorded_session: row.get(table::RECORDED_SESSION)?,
            spent: table::opaque_option(row, table::SPENT)?,
        })
    })
}

pub(super) fn begin(
    tx: &mut Tx<'_>,
    expected: &Expected,
    provider: &str,
    started: &NewEvent,
) -> Result<Started, Failure> {
    let attempt = expected.attempts + 1;
    let events_before: u64 = table::one(
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
    tx.ledger.left_queue(provider);
    tx.ledger.numbers.counts.running += 1;
    let running = Running {
        attempt,
        events: events_before + 1,
    };
    tx.ledger.turns.push(Turn::Runs(expected.id, running));
    Ok(Started {
        lease: Lease {
            id: expected.id,
            attempt,
            epoch: tx.epoch,
        },
        at: started.timestamp,
    })
}

pub(super) fn append(tx: &mut Tx<'_>, lease: &Lease, progress: &Progress) -> Result<(), Failure> {
    if lease.epoch != tx.epoch {
        return Err(Error::Stale(lease.id).into());
    }
    let (seq, events_before, provider, cancel_requested): (i64, u64, String, bool) = table::one(
        tx.conn,
        "UPDATE dispatch SET events = events + ?1,
           recorded_session = coalesce(?2, recorded_session), spent = coalesce(?3, spent)
         WHERE id = ?4 AND phase = 4 AND attempts = ?5 AND epoch = ?6
         RETURNING seq, events - ?1, provider, cancel_requested",
        params![
            progress.events.len(),
            progress.session,
            progress.spent.as_ref().map(|spent| spent.get()),
            lease.id.as_bytes(),
            lease.attempt,
            lease.epoch
        ],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )?
    .ok_or(Error::Stale(lease.id))?;
    let running = Running {
        attempt: lease.attempt,
        events: events_before + progress.events.len() as u64,
    };
    tx.ledger.turns.push(match cancel_requested {
        true => Turn::RunsNot(lease.id),
        false => Turn::Runs(lease.id, running),
    });
    let owner = Owner {
        seq,
        provider: &provider,
        attempt: lease.attempt,
        events_before,
    };
    events::append(tx, &owner, &progress.events)
}

/// What a claim is about.
struct Claimed {
    seq: i64,
    phase: i64,
    attempts: u32,
    epoch: u64,
    cancel_requested: bool,
    events: u64,
    provider: String,
    session: Option<String>,
}

impl Claimed {
    fn owner(&self) -> Owner<'_> {
        Owner {
            seq: self.seq,
            provider: &self.provider,
            attempt: self.attempts,
            events_before: self.events,
        }
    }
}

fn claimed(tx: &Tx<'_>, claim: &Claim) -> Result<Claimed, Failure> {
    let found = table::one(
        tx.conn,
        "SELECT seq, phase, attempts, epoch, cancel_requested, events, provider, session
         FROM dispatch WHERE id = ?",
        [claim.id().as_bytes()],
        |row| {
            Ok(Claimed {
                seq: row.get(0)?,
                phase: row.get(1)?,
                attempts: row.get(2)?,
                epoch: row.get(3)?,
                cancel_requested: row.get(4)?,
                events: row.get(5)?,
                provider: row.get(6)?,
                session: row.get(7)?,
            })
        },
    )?
    .ok_or(Error::NotFound)?;
    let running = |attempt: u32| found.phase == phase::RUNNING && found.attempts == attempt;
    let current = match claim {
        Claim::Unstarted(_) => phase::is_queued(found.phase),
        Claim::Attempt(lease) => {
            running(lease.attempt) && lease.epoch == found.epoch && lease.epoch == tx.epoch
        }
        Claim::Interrupted { attempt, .. } => running(*attempt) && found.epoch < tx.epoch,
    };
    if current {
        Ok(found)
    } else {
        Err(Error::Stale(claim.id()).into())
    }
}

pub(super) fn finish(tx: &mut Tx<'_>, claim: &Claim, finish: &Finish) -> Result<Finished, Failure> {
    let found = claimed(tx, claim)?;
    if found.cancel_requested && finish.error_code.as_deref() != Some("cancelled") {
        return Ok(Finished::CancelRequested);
    }
    let owner = found.owner();
    let totals = events::totals_with(tx, &owner, finish.events.len())?;
    let result = rules::with_events(&finish.result, tx.log, totals)?;
    events::append(tx, &owner, &finish.events)?;
    let expires_at = match finish.delivery {
        None => Some(nanos(rules::later(finish.at, finish.retention))),
        Some(_) => None,
    };
    tx.execute(
        "UPDATE dispatch SET phase = 5, turn = NULL, events = ?, finished_at = ?, error_code = ?,
           expires_at = ?, retention = ? WHERE seq = ?",
        params![
            totals.count,
            nanos(finish.at),
            finish.error_code,
            expires_at,
            deliver::retention(finish.retention),
            found.seq
        ],
    )?;
    tx.execute(
        "INSERT INTO result (dispatch, body) VALUES (?, ?)",
        params![found.seq, result],
    )?;
    if let Some(output) = &finish.output {
        for (part, bytes) in output.as_bytes().chunks(OUTPUT_PART_BYTES).enumerate() {
            tx.execute(
                "INSERT INTO output (dispatch, part, bytes) VALUES (?, ?, ?)",
                params![found.seq, part, bytes],
            )?;
        }
    }
    if let Some(delivery) = &finish.delivery {
        deliver::owe(tx, found.seq, delivery, finish.at)?;
    }
    queue::unblock(tx, &found.provider, found.session.as_deref())?;
    tx.ledger.turns.push(Turn::RunsNot(claim.id()));
    if phase::is_queued(found.phase) {
        tx.ledger.left_queue(&found.provider);
    } else {
        tx.ledger.numbers.counts.running -= 1;
    }
    Ok(Finished::Recorded(Recorded {
        totals,
        body: result,
    }))
}

pub(super) fn requeue(tx: &mut Tx<'_>, claim: &Claim, requeue: &Requeue) -> Result<(), Failure> {
    let found = claimed(tx, claim)?;
    if phase::is_queued(found.phase) {
        return Err(Error::InvalidState("it is in the queue already").into());
    }
    if found.cancel_requested {
        return Err(Error::InvalidState("a cancel was requested").into());
    }
    let sql =
        select_dispatch!(" FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.seq = ?");
    let dispatch =
        table::one(tx.conn, sql, [found.seq], table::dispatch)?.ok_or(Error::NotFound)?;
    let start_by = rules::start_again_by(&dispatch, requeue.event.timestamp);
    events::append(tx, &found.owner(), std::slice::from_ref(&requeue.event))?;
    // It still has its turn, and it is the first of its session: it ran.
    tx.execute(
        "UPDATE dispatch SET phase = 0, events = events + 1, start_by = ? WHERE seq = ?",
        params![nanos(start_by), found.seq],
    )?;
    tx.ledger.numbers.counts.running -= 1;
    tx.ledger.entered_queue(&found.provider);
    tx.ledger.turns.push(Turn::RunsNot(claim.id()));
    Ok(())
}

pub(super) fn request_cancel(tx: &mut Tx<'_>, id: DispatchId) -> Result<CancelRequest, Failure> {
    let found: Option<(i64, i64, u32)> = table::one(
        tx.conn,
        "SELECT seq, phase, attempts FROM dispatch WHERE id = ?",
        [id.as_bytes()],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let Some((seq, phase, attempt)) = found else {
        return Ok(CancelRequest::Unknown);
    };
    if phase == phase::FINISHED {
        return Ok(CancelRequest::Finished);
    }
    tx.execute(
        "UPDATE dispatch SET cancel_requested = 1, phase = iif(phase < 3, 3, phase) WHERE seq = ?",
        [seq],
    )?;
    tx.ledger.turns.push(Turn::RunsNot(id));
    Ok(match phase {
        phase::RUNNING => CancelRequest::Running { attempt },
        _ => CancelRequest::Queued,
    })
}

pub(super) fn interrupted(
    connection: &Connection,
    epoch: u64,
    limit: usize,
) -> rusqlite::Result<Vec<Interrupted>> {
    let sql = select_dispatch!(
        ", b.request FROM dispatch d INDEXED BY dispatch_running JOIN body b ON b.dispatch = d.seq
         WHERE d.phase = 4 AND d.epoch < ? ORDER BY d.seq LIMIT ?"
    );
    table::all(
        connection,
        sql,
        params![epoch, table::limit(limit)],
        |row| {
            let dispatch = table::dispatch(row)?;
            Ok(Interrupted {
                attempt: dispatch.attempts,
                cancel_requested: dispatch.cancel_requested,
                dispatch,
                request: table::opaque(row, table::MORE)?,
                recorded_session: row.get(table::RECORDED_SESSION)?,
                spent: table::opaque_option(row, table::SPENT)?,
            })
        },
    )
}
