//! The queue: dispatches that can start, those that wait for a time or a session, and moves to another adapter.

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::id::DispatchId;
use forge_store::record::{Ready, Reroute};
use forge_store::roles::Queue;
use forge_store::{Error, Result};

use super::execute::of;
use super::rows::{SessionRow, phase};
use crate::Postgres;
use crate::batch::{Needs, Rows, Stop};
use crate::rows::statement::params;

#[async_trait]
impl Queue for Postgres {
    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>> {
        let sql = "SELECT id, provider, pinned, attempts FROM dispatch
                   WHERE phase = 0 AND provider = $1 ORDER BY priority DESC, seq LIMIT $2";
        let provider = provider.to_owned();
        self.all(sql, params![provider, limit], |row| {
            Ok(Ready {
                id: row.next()?,
                provider: row.next()?,
                pinned: row.next()?,
                attempts: row.next()?,
            })
        })
        .await
    }

    async fn queues(&self) -> Result<Vec<(String, u64)>> {
        Ok(self.published.queues())
    }

    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let sql = "SELECT id, provider, session FROM dispatch
                   WHERE phase = 1 AND not_before <= $1 ORDER BY not_before, seq LIMIT $2";
        let read = |row: &mut crate::Columns<'_>| Ok((row.next()?, row.next()?, row.next()?));
        let due: Vec<(DispatchId, String, Option<String>)> =
            self.all(sql, params![now, limit], read).await?;
        let queue = |(_, provider, session): &(_, String, Option<String>)| {
            session
                .as_ref()
                .map(|session| SessionRow::name(provider, session))
        };
        let needs = Needs {
            dispatches: due.iter().map(|(id, ..)| *id).collect(),
            sessions: due.iter().filter_map(queue).collect(),
            ..Needs::default()
        };
        let change = move |rows: &mut Rows| {
            for (id, ..) in &due {
                can_enter(rows, *id)?;
            }
            let promoted = due
                .iter()
                .filter(|(id, ..)| enter(rows, *id, phase::DELAYED));
            Ok(promoted.count())
        };
        self.write(0, needs, change).await
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>> {
        let sql = "SELECT id FROM dispatch WHERE phase < 3 AND start_by <= $1
                   ORDER BY start_by, seq LIMIT $2";
        self.all(sql, params![now, limit], |row| row.next()).await
    }

    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>> {
        let sql = "SELECT id FROM dispatch WHERE phase = 3 ORDER BY seq LIMIT $1";
        self.all(sql, params![limit], |row| row.next()).await
    }

    async fn next_queue_event(&self) -> Result<Option<Timestamp>> {
        let sql = "SELECT least((SELECT pg_catalog.min(start_by) FROM dispatch WHERE phase < 3),
                                (SELECT pg_catalog.min(not_before) FROM dispatch WHERE phase = 1))";
        let next = self.one(sql, Vec::new(), |row| row.next::<Option<Timestamp>>());
        Ok(next.await?.flatten())
    }

    async fn reroute(&self, reroute: Reroute) -> Result<()> {
        let bytes = reroute.routing.get().len();
        let session = reroute.session.as_deref();
        let session = session.map(|session| SessionRow::name(&reroute.provider, session));
        let needs = Needs {
            sessions: session.into_iter().collect(),
            bodies: vec![reroute.id],
            leaves: true,
            ..of(reroute.id)
        };
        self.write(bytes, needs, move |rows| self::reroute(rows, &reroute))
            .await
    }
}

/// Makes sure that the row is here which `enter` changes.
pub(super) fn can_enter(rows: &Rows, id: DispatchId) -> Result<(), Stop> {
    let dispatch = rows.dispatches.get(&id);
    dispatch.map_or(Ok(()), |one| {
        rows.can_enter(&one.provider, one.session.as_deref())
    })
}

/// Lets a dispatch of this phase enter its session, or start. False if it has left the phase.
pub(super) fn enter(rows: &mut Rows, id: DispatchId, from: i64) -> bool {
    let dispatch = rows
        .dispatches
        .get(&id)
        .filter(|dispatch| dispatch.phase == from);
    let Some((provider, session)) = dispatch.map(|one| (one.provider.clone(), one.session.clone()))
    else {
        return false;
    };
    let place = rows.enter(&provider, session.as_deref());
    if let Some(dispatch) = rows.dispatches.get_mut(&id) {
        dispatch.phase = place.phase;
        (dispatch.queue, dispatch.turn) = (place.queue, place.turn);
    }
    true
}

fn reroute(rows: &mut Rows, reroute: &Reroute) -> Result<(), Stop> {
    let id = reroute.id;
    let old = rows.dispatches.get(&id).ok_or(Error::NotFound)?;
    if old.phase >= phase::CANCELLED || old.attempts > 0 {
        return Err(Error::Stale(id).into());
    }
    rows.can_leave(old)?;
    rows.can_enter(&reroute.provider, reroute.session.as_deref())?;
    rows.body(id)?;
    let from = old.phase;
    let is_moved = old.provider != reroute.provider || old.session != reroute.session;
    if let Some(body) = rows.bodies.get_mut(&id) {
        body.routing = reroute.routing.clone();
    }
    if !is_moved {
        return Ok(());
    }
    rows.leave(id);
    if let Some(dispatch) = rows.dispatches.get_mut(&id) {
        dispatch.provider.clone_from(&reroute.provider);
        dispatch.session.clone_from(&reroute.session);
    }
    if !matches!(from, phase::DELAYED | phase::HELD) {
        enter(rows, id, from);
    }
    Ok(())
}
