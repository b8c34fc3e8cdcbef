//! Accepting a dispatch: its key decides, then its rows are written.

use async_trait::async_trait;

use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::event_batch;
use forge_store::record::{Acceptance, Begun, Content, IdempotencyKey, Known, Lease, NewDispatch};
use forge_store::roles::Accept;
use forge_store::transition::{self, AcceptDecision};

use super::deliver;
use super::rows::{
    BodyRow, DispatchRow, EventRow, HomeRow, KeyRow, NewBody, SessionRow, Whole, phase,
};
use super::turns::Place;
use crate::Postgres;
use crate::batch::{Needs, Rows, Stop};
use crate::rows::statement::{Statement, params};

#[async_trait]
impl Accept for Postgres {
    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>> {
        let sql = format!(
            "SELECT {} FROM key k JOIN dispatch d ON d.id = k.dispatch JOIN body b ON b.id = d.id
             WHERE k.value = $1 OR k.value = $2",
            Whole::columns()
        );
        let (own, of_before) = (KeyRow::of(key), KeyRow::of_before(key));
        let params = params![own, of_before];
        let found = self.all(sql, params, Whole::read).await?;
        let held = |value: &str| {
            let mut found = found.iter();
            found.find(|whole| whole.body.key == value)
        };
        let holder = transition::holder(held(&own), held(&of_before));
        Ok(holder.map(|whole| known(&whole.dispatch, &whole.body)))
    }

    async fn accept(&self, new: NewDispatch) -> Result<Acceptance> {
        let sealed = new.secrets.as_ref().map_or(0, Vec::len);
        let attached: usize = new.attachments.iter().map(Vec::len).sum();
        let bytes = new.request.get().len() + new.routing.get().len() + sealed + attached + 512;
        let session = new.session.as_deref();
        let session = session.map(|session| SessionRow::name(&new.provider, session));
        // Other nodes can have let dispatches wait that this one would overtake.
        let is_shared = new.start.is_some() && !self.published.node.others.borrow().is_empty();
        let waiting = || {
            let sql = "SELECT FROM dispatch WHERE phase = 0 AND provider = $1 LIMIT 1";
            Statement::new(sql, params![new.provider]).into_owned()
        };
        let needs = Needs {
            keys: vec![KeyRow::of(&new.key), KeyRow::of_before(&new.key)],
            sessions: session.into_iter().collect(),
            reads: is_shared.then(waiting).into_iter().collect(),
            ..Needs::default()
        };
        let change = move |rows: &mut Rows| accept(rows, &new);
        let acceptance = self.write(bytes, needs, change).await?;
        if let Acceptance::Accepted { begun, .. } = &acceptance {
            begun.iter().for_each(|begun| self.note_begun(begun));
        }
        Ok(acceptance)
    }
}

fn known(dispatch: &DispatchRow, body: &BodyRow) -> Known {
    Known {
        dispatch: dispatch.record(body),
        fingerprint: body.fingerprint,
    }
}

fn accept(rows: &mut Rows, new: &NewDispatch) -> Result<Acceptance, Stop> {
    let held = |value: String| rows.keys.get(&value).map(|key| key.dispatch);
    let own = held(KeyRow::of(&new.key));
    let holder = transition::holder(own, held(KeyRow::of_before(&new.key)));
    let holder = holder.map(|id| rows.holder(id)).transpose()?.flatten();
    let with_body = |holder: &DispatchRow| Ok::<_, Stop>(known(holder, rows.body(holder.id)?));
    let holder = holder.map(with_body).transpose()?;
    let id = holder.as_ref().map(|known| known.dispatch.id);
    Ok(match transition::accept(new, holder, rows.queued)? {
        AcceptDecision::QueueFull => Acceptance::QueueFull,
        AcceptDecision::Conflict(id) => Acceptance::Conflict(id),
        AcceptDecision::Duplicate { known, redeliver } => {
            if redeliver {
                rows.redeliver(known.id, new.accepted_at);
            }
            Acceptance::Duplicate(known)
        }
        AcceptDecision::Insert { retry_of } => {
            rows.can_enter(&new.provider, new.session.as_deref())?;
            if let Some(id) = id {
                rows.supersede(id, new.accepted_at);
            }
            let begun = insert(rows, new, retry_of.or(new.retry_of)).map(Box::new);
            Acceptance::Accepted { retry_of, begun }
        }
    })
}

impl Rows {
    /// The dispatch that holds a key. It is looked for after its key was found, which is rare.
    fn holder(&self, id: DispatchId) -> Result<Option<&DispatchRow>, Stop> {
        match self.dispatches.get(&id) {
            None if !self.sought_bodies.contains(&id) => Err(Stop::more(Needs {
                bodies: vec![id],
                ..deliver::needs(vec![id])
            })),
            found => Ok(found),
        }
    }
}

/// Inserts the rows. A dispatch that runs at once is `running` in its first row, as if a claim had followed.
fn insert(rows: &mut Rows, new: &NewDispatch, retry_of: Option<DispatchId>) -> Option<Begun> {
    let waits = |phase| Place {
        phase,
        queue: None,
        turn: None,
    };
    let place = match (new.is_held, transition::is_delayed(new)) {
        (true, _) => waits(phase::HELD),
        (false, true) => waits(phase::DELAYED),
        (false, false) => rows.enter(&new.provider, new.session.as_deref()),
    };
    let session = new.session.as_deref();
    let session = session.map(|session| SessionRow::name(&new.provider, session));
    let home = match new.is_bound {
        true => Some(rows.node.clone()),
        false => session.and_then(|session| rows.session_nodes.get(&session).cloned()),
    };
    let is_elsewhere = home.as_ref().is_some_and(|home| *home != rows.node);
    let others_wait = rows.answers.first().is_some_and(|found| !found.is_empty());
    let starts = place.phase == phase::READY && !is_elsewhere && !others_wait;
    let start = new.start.as_ref().filter(|_| starts);
    let started_at = start.map(|start| start.timestamp);
    let events = (new.events.len() + start.iter().len()) as u64;
    let callback = new.callback.as_ref();
    let dispatch = DispatchRow {
        id: new.id,
        phase: start.map_or(place.phase, |_| phase::RUNNING),
        provider: new.provider.clone(),
        pinned: new.pinned,
        priority: new.priority,
        attempts: u32::from(start.is_some()),
        epoch: start.map_or(0, |_| rows.epoch),
        events,
        cancel_requested: false,
        session: new.session.clone(),
        queue: place.queue,
        turn: place.turn,
        home: match start {
            Some(_) => Some(rows.node.clone()),
            None => home,
        },
        is_bound: new.is_bound,
        origin: callback.map(|callback| callback.origin.clone()),
        not_before: new.not_before,
        start_by: new.start_by,
        first_started_at: started_at,
        started_at,
        finished_at: None,
        expires_at: None,
        error_code: None,
        recorded_session: None,
        spent: None,
    };
    let key = KeyRow::of(&new.key);
    let body = BodyRow {
        id: new.id,
        task_id: new.task_id.clone(),
        agent_id: new.agent_id.clone(),
        run_id: new.run_id.clone(),
        trace_id: new.trace_id.clone(),
        key: key.clone(),
        fingerprint: new.fingerprint,
        retry_of,
        callback_url: callback.map(|callback| callback.url.clone()),
        accepted_at: new.accepted_at,
        routing: new.routing.clone(),
    };
    rows.keys.put(KeyRow {
        value: key,
        dispatch: new.id,
    });
    for (position, bytes) in new.attachments.iter().enumerate() {
        rows.add_content(new.id, Content::Attachment(position), bytes);
    }
    rows.add_events(EventRow {
        before: 0,
        count: events,
        dispatch: Some(new.id),
        run: None,
        seq: 1,
        attempt: 0,
        provider: new.provider.clone(),
        unbound_at: None,
        body: event_batch::of_acceptance(&new.events, start),
    });
    let begun = start.map(|_| Begun {
        lease: Lease {
            id: new.id,
            attempt: 1,
            epoch: rows.epoch,
        },
        dispatch: dispatch.record(&body),
        secrets: new.secrets.clone(),
        recorded_session: None,
        spent: None,
    });
    rows.queued += u64::from(begun.is_none());
    let home = start.and_then(|start| HomeRow::of(&dispatch, start.timestamp));
    rows.homes.extend(home);
    rows.dispatches.put(dispatch);
    rows.new_bodies.push(NewBody {
        secrets: new.secrets.clone(),
        request: new.request.clone(),
        body,
    });
    begun
}
