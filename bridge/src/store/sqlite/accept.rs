//! Taking a dispatch in: its key decides, then its rows are written.

use rusqlite::{Connection, Row, params};

use super::ledger::{Running, Turn};
use super::op::{Failure, Tx};
use super::table::{self, nanos, phase, select_dispatch};
use super::{deliver, events, queue};
use crate::event::NewEvent;
use crate::id::DispatchId;
use crate::store::record::{
    Acceptance, Begun, Dispatch, IdempotencyKey, KeySpace, KeyVerdict, Known, Lease, NewDispatch,
    State,
};
use crate::store::{Error, rules};

/// What is known under a key, and its row. The newest dispatch of a task without a header key holds
/// the task's key.
pub(super) fn recall(
    connection: &Connection,
    key: &IdempotencyKey,
) -> rusqlite::Result<Option<(i64, Known)>> {
    let sql = match key.space {
        KeySpace::Header => select_dispatch!(
            ", b.request, d.counted_bytes FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.header_key = ?1"
        ),
        KeySpace::Task => select_dispatch!(
            ", b.request, d.counted_bytes FROM dispatch d JOIN body b ON b.dispatch = d.seq
             WHERE d.task_id = ?1 AND d.header_key IS NULL ORDER BY d.seq DESC LIMIT 1"
        ),
    };
    table::one(connection, sql, [&key.value], |row| {
        let known = Known {
            dispatch: table::dispatch(row)?,
            counted: counted(row)?,
        };
        Ok((row.get(table::SEQ)?, known))
    })
}

/// Of a request that was damaged nothing counts: none is the same.
fn counted(row: &Row<'_>) -> rusqlite::Result<String> {
    let bytes: usize = row.get(table::MORE + 1)?;
    let request = row.get_ref(table::MORE)?.as_str().unwrap_or_default();
    Ok(request.get(..bytes).unwrap_or_default().to_owned())
}

/// Whether something is known under a key.
pub(super) fn is_known(connection: &Connection, key: &IdempotencyKey) -> rusqlite::Result<bool> {
    let sql = match key.space {
        KeySpace::Header => "SELECT 1 FROM dispatch WHERE header_key = ?",
        KeySpace::Task => "SELECT 1 FROM dispatch WHERE task_id = ? AND header_key IS NULL LIMIT 1",
    };
    table::one(connection, sql, [&key.value], |_| Ok(())).map(|found| found.is_some())
}

pub(super) fn accept(tx: &mut Tx<'_>, new: &NewDispatch) -> Result<Acceptance, Failure> {
    if new.key.space == KeySpace::Task && new.key.value != new.task_id {
        return Err(Error::InvalidState("a task key is not the task id").into());
    }
    if tx.is_promised {
        let begun = insert(tx, new, None)?.map(Box::new);
        let retry_of = None;
        return Ok(Acceptance::Accepted { retry_of, begun });
    }
    let mut taken_over = None;
    if let Some((seq, known)) = recall(tx.conn, &new.key)? {
        match known.verdict(new.key.space, new.counted()) {
            KeyVerdict::Same => {
                if matches!(known.dispatch.state, State::Finished { .. }) {
                    deliver::owe_again(tx, seq, new.accepted_at)?;
                }
                return Ok(Acceptance::Duplicate(Box::new(known.dispatch)));
            }
            KeyVerdict::Conflict => return Ok(Acceptance::Conflict(known.dispatch.id)),
            KeyVerdict::TakeOver => taken_over = Some((seq, known.dispatch.id)),
        }
    }
    if tx.ledger.numbers.counts.queued >= new.queue_limit {
        return Ok(Acceptance::QueueFull);
    }
    if let Some((seq, _)) = taken_over {
        deliver::supersede(tx, seq, new.accepted_at)?;
    }
    let retry_of = taken_over.map(|(_, id)| id);
    let begun = insert(tx, new, retry_of)?.map(Box::new);
    Ok(Acceptance::Accepted { retry_of, begun })
}

fn insert(
    tx: &mut Tx<'_>,
    new: &NewDispatch,
    retry_of: Option<DispatchId>,
) -> Result<Option<Begun>, Failure> {
    tx.ledger.numbers.last_dispatch += 1;
    let seq = i64::try_from(tx.ledger.numbers.last_dispatch).unwrap_or(i64::MAX);
    let delayed = new.not_before.is_some_and(|time| time > new.accepted_at);
    let (phase, turn) = if delayed {
        (phase::DELAYED, None)
    } else {
        queue::turn(tx, &new.provider, new.session.as_deref())?
    };
    let start = new.start.as_ref().filter(|_| phase == phase::READY);
    let header_key = match new.key.space {
        KeySpace::Header => Some(&new.key.value),
        KeySpace::Task => None,
    };
    tx.execute(
        "INSERT INTO dispatch (seq, id, phase, provider, pinned, priority, events, session, turn,
           accepted_at, not_before, start_by, header_key, counted_bytes, task_id, agent_id, run_id,
           trace_id, retry_of, callback_url, callback_origin, attempts, epoch, started_at,
           first_started_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            seq,
            new.id.as_bytes(),
            start.map_or(phase, |_| phase::RUNNING),
            new.provider,
            new.pinned,
            new.priority,
            new.events.len() + start.iter().len(),
            new.session,
            turn,
            nanos(new.accepted_at),
            new.not_before.map(nanos),
            nanos(new.start_by),
            header_key,
            new.counted_bytes,
            new.task_id,
            new.agent_id,
            new.run_id,
            new.trace_id,
            retry_of.as_ref().map(DispatchId::as_bytes),
            new.callback.as_ref().map(|callback| &callback.url),
            new.callback.as_ref().map(|callback| &callback.origin),
            start.iter().len(),
            start.map_or(0, |_| tx.epoch),
            start.map(|started| nanos(started.timestamp)),
            start.map(|started| nanos(started.timestamp)),
        ],
    )?;
    tx.execute(
        "INSERT INTO body (dispatch, routing, secrets, request) VALUES (?, ?, ?, ?)",
        params![seq, new.routing.get(), new.secrets, new.request.get()],
    )?;
    let owner = events::Owner {
        seq,
        provider: &new.provider,
        attempt: 0,
        events_before: 0,
    };
    events::append_first(tx, &owner, &new.events, start)?;
    let Some(started) = start else {
        tx.ledger.entered_queue(&new.provider);
        return Ok(None);
    };
    tx.ledger.numbers.counts.running += 1;
    let running = Running {
        attempt: 1,
        events: new.events.len() as u64 + 1,
    };
    tx.ledger.turns.push(Turn::Runs(new.id, running));
    Ok(Some(begun(tx.epoch, new, retry_of, started)))
}

/// How it is given to who runs it.
pub(super) fn begun(
    epoch: u64,
    new: &NewDispatch,
    retry_of: Option<DispatchId>,
    started: &NewEvent,
) -> Begun {
    let lease = Lease {
        id: new.id,
        attempt: 1,
        epoch,
    };
    let dispatch = Dispatch {
        state: State::Running {
            attempt: 1,
            started_at: started.timestamp,
        },
        attempts: 1,
        first_started_at: Some(started.timestamp),
        ..rules::accepted(new, retry_of)
    };
    Begun {
        lease,
        dispatch,
        secrets: new.secrets.clone(),
        recorded_session: None,
        spent: None,
    }
}
