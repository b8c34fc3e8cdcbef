//! Accepting a dispatch: its key decides, then its rows are written.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use forge_base::id::DispatchId;
use forge_store::record::{
    Acceptance, Begun, Content, IdempotencyKey, KeyOwner, KeySpace, Known, Lease, NewDispatch,
};
use forge_store::roles::Accept;
use forge_store::transition::{self, AcceptDecision};
use forge_store::{Result, event_batch, rules};

use super::rows::{self, nanos, phase, select_dispatch};
use super::{Tx, content, deliver, queue};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

#[async_trait]
impl Accept for Sqlite {
    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>> {
        let key = key.clone();
        let query = move |connection: &Connection| recall(connection, &key);
        let found = self.engine.read(Length::Short, query).await?;
        Ok(found.map(|(_, known)| known))
    }

    async fn accept(&self, new: NewDispatch) -> Result<Acceptance> {
        let sealed = new.secrets.as_ref().map_or(0, Vec::len);
        let attached: usize = new.attachments.iter().map(Vec::len).sum();
        let bytes = new.request.get().len() + new.routing.get().len() + sealed + attached + 512;
        let change = move |tx: &mut Tx<'_>| accept(tx, &new);
        self.write(Urgency::Now, bytes, change).await
    }
}

/// The dispatch that holds a key, with its row number.
fn recall(connection: &Connection, key: &IdempotencyKey) -> rusqlite::Result<Option<(i64, Known)>> {
    let own = of_owner(connection, key, Some(key.owner))?;
    let of_before = match own {
        Some(_) => None,
        None => of_owner(connection, key, None)?,
    };
    Ok(transition::holder(own, of_before))
}

/// The dispatch that holds a key of this owner, or of a store of before, whose keys had none. The newest dispatch of a
/// task without a header key holds the task's key.
fn of_owner(
    connection: &Connection,
    key: &IdempotencyKey,
    owner: Option<KeyOwner>,
) -> rusqlite::Result<Option<(i64, Known)>> {
    let sql = match key.space {
        KeySpace::Header => select_dispatch!(
            ", d.fingerprint FROM dispatch d JOIN body b ON b.dispatch = d.seq
             WHERE d.header_key = ?1 AND d.key_owner IS ?2"
        ),
        KeySpace::Task => select_dispatch!(
            ", d.fingerprint FROM dispatch d JOIN body b ON b.dispatch = d.seq
             WHERE d.task_id = ?1 AND d.header_key IS NULL AND d.key_owner IS ?2 ORDER BY d.seq DESC LIMIT 1"
        ),
    };
    let owner = owner.map(|owner| owner.to_string());
    rows::one(connection, sql, params![key.value, owner], |row| {
        let known = Known {
            dispatch: rows::dispatch(row)?,
            fingerprint: row.get(rows::MORE)?,
        };
        Ok((row.get(rows::SEQ)?, known))
    })
}

fn accept(tx: &mut Tx<'_>, new: &NewDispatch) -> Result<Acceptance, Failure> {
    let (seq, known) = recall(tx.conn, &new.key)?.unzip();
    Ok(
        match transition::accept(new, known, tx.counters.counts.queued)? {
            AcceptDecision::QueueFull => Acceptance::QueueFull,
            AcceptDecision::Conflict(id) => Acceptance::Conflict(id),
            AcceptDecision::Duplicate { known, redeliver } => {
                if let Some(seq) = seq.filter(|_| redeliver) {
                    deliver::redeliver(tx, seq, new.accepted_at)?;
                }
                Acceptance::Duplicate(known)
            }
            AcceptDecision::Insert { retry_of } => {
                if let Some(seq) = seq.filter(|_| retry_of.is_some()) {
                    deliver::supersede(tx, seq, new.accepted_at)?;
                }
                let begun = insert(tx, new, retry_of.or(new.retry_of))?.map(Box::new);
                Acceptance::Accepted { retry_of, begun }
            }
        },
    )
}

/// Inserts the rows. A dispatch that runs at once is `running` in its first row, as if a claim had followed.
fn insert(
    tx: &mut Tx<'_>,
    new: &NewDispatch,
    retry_of: Option<DispatchId>,
) -> Result<Option<Begun>, Failure> {
    let (phase, turn) = match (new.is_held, transition::is_delayed(new)) {
        (true, _) => (phase::HELD, None),
        (false, true) => (phase::DELAYED, None),
        (false, false) => queue::turn(tx, &new.provider, new.session.as_deref())?,
    };
    let start = new.start.as_ref().filter(|_| phase == phase::READY);
    let header_key = (new.key.space == KeySpace::Header).then_some(&new.key.value);
    let events = new.events.len() + start.iter().len();
    let seq = tx.counters.assign_positions(events);
    let callback = new.callback.as_ref();
    tx.execute(
        "INSERT INTO dispatch (seq, first_events, id, phase, provider, pinned, priority, events, session, turn,
           accepted_at, not_before, start_by, header_key, fingerprint, task_id, agent_id, run_id,
           trace_id, retry_of, callback_url, callback_origin, attempts, epoch, started_at,
           first_started_at, key_owner)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?2, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
           ?22, ?23, ?24, ?24, ?25)",
        params![
            seq,
            events,
            new.id.as_bytes(),
            start.map_or(phase, |_| phase::RUNNING),
            new.provider,
            new.pinned,
            new.priority,
            new.session,
            turn,
            nanos(new.accepted_at),
            new.not_before.map(nanos),
            nanos(new.start_by),
            header_key,
            new.fingerprint,
            new.task_id,
            new.agent_id,
            new.run_id,
            new.trace_id,
            retry_of.as_ref().map(DispatchId::as_bytes),
            callback.map(|callback| &callback.url),
            callback.map(|callback| &callback.origin),
            start.iter().len(),
            start.map_or(0, |_| tx.counters.epoch),
            start.map(|started| nanos(started.timestamp)),
            new.key.owner.to_string(),
        ],
    )?;
    tx.execute(
        "INSERT INTO body (dispatch, events, routing, secrets, request) VALUES (?, ?, ?, ?, ?)",
        params![
            seq,
            event_batch::of_acceptance(&new.events, start),
            new.routing.get(),
            new.secrets,
            new.request.get()
        ],
    )?;
    for (position, bytes) in new.attachments.iter().enumerate() {
        content::insert(tx, seq, Content::Attachment(position), bytes)?;
    }
    let Some(started) = start else {
        tx.counters.entered_queue(&new.provider);
        return Ok(None);
    };
    tx.counters.counts.running += 1;
    let dispatch = rules::started(rules::accepted(new, retry_of), started.timestamp);
    Ok(Some(Begun {
        lease: Lease {
            id: new.id,
            attempt: dispatch.attempts,
            epoch: tx.counters.epoch,
        },
        dispatch,
        secrets: new.secrets.clone(),
        recorded_session: None,
        spent: None,
    }))
}
