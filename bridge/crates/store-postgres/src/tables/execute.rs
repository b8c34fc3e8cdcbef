//! Attempts: claim, append, finish, requeue, cancel, and those that a crash interrupted.

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::event_batch::size;
use forge_store::record::{
    Begun, CancelRequest, Claim, ClaimLimits, Claimed, Content, DeliveryState, EventTotals, Finish,
    Finished, Interrupted, Lease, Progress, Recorded, Requeue,
};
use forge_store::roles::Executions;
use forge_store::transition::{self, End};
use forge_store::{Error, Result, rules};

use super::rows::{
    DecisionRow, DeliveryRow, DispatchRow, HomeRow, ResultRow, SpendingRow, Whole, phase,
};
use super::signals;
use crate::batch::{EventsPlace, Needs, Rows, Stop};
use crate::rows::statement::{Statement, params};
use crate::rows::table::{Fields as _, columns};
use crate::{Columns, Postgres};

/// Rows that a change of this dispatch needs.
pub(super) fn of(id: DispatchId) -> Needs {
    Needs {
        dispatches: vec![id],
        ..Needs::default()
    }
}

#[async_trait]
impl Executions for Postgres {
    fn epoch(&self) -> u64 {
        self.published.epoch()
    }

    async fn claim(
        &self,
        provider: &str,
        limits: ClaimLimits,
        started: NewEvent,
    ) -> Result<Vec<Claimed>> {
        let provider = provider.to_owned();
        let most = limits.max_attempts;
        let grace = limits.home_grace.map(|grace| grace.as_secs_f64());
        let needs = Needs {
            reads: vec![
                Statement::new(
                    startable(),
                    params![provider, most, limits.count, self.published.node.id, grace],
                )
                .into_owned(),
                Statement::new(MOST_ATTEMPTS, params![self.epoch()]).into_owned(),
            ],
            // Another claim of this adapter would find the same ones.
            apart: Some(format!("claim {provider}")),
            ..Needs::default()
        };
        let bytes = limits.count * size([&started]);
        let change = move |rows: &mut Rows| claim(rows, limits, &started);
        let claimed: Vec<Claimed> = self.write(bytes, needs, change).await?;
        claimed.iter().for_each(|one| self.note_begun(&one.begun));
        Ok(claimed)
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        let (lease, bytes) = (lease.clone(), size(&progress.events));
        let needs = signals::with_charge(of(lease.id), progress.charge.as_ref());
        let change = move |rows: &mut Rows| {
            let dispatch = rows
                .dispatches
                .get(&lease.id)
                .ok_or(Error::Stale(lease.id))?;
            transition::append(&lease, &dispatch.standing(), rows.epoch)?;
            rows.append(lease.id, &progress.events);
            if let Some(dispatch) = rows.dispatches.get_mut(&lease.id) {
                let recorded = progress.session.clone();
                dispatch.recorded_session = recorded.or_else(|| dispatch.recorded_session.take());
                let spent = progress.spent.clone();
                dispatch.spent = spent.or_else(|| dispatch.spent.take());
            }
            progress
                .charge
                .iter()
                .for_each(|charge| signals::charge(rows, charge));
            Ok(())
        };
        self.write(bytes, needs, change).await
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        let bytes = finish.result.get().len()
            + finish.output.as_ref().map_or(0, String::len)
            + finish.output_files.iter().map(Vec::len).sum::<usize>()
            + size(&finish.events);
        let id = claim.id();
        let needs = Needs {
            leaves: self.note_end(&claim),
            ..signals::with_charge(of(id), finish.charge.as_ref())
        };
        let result = finish.result.clone();
        let change = move |rows: &mut Rows| self::finish(rows, &claim, &finish);
        let (ended, placed) = self.write_placed(bytes, needs, change).await?;
        let Some((count, place)) = ended else {
            return Ok(Finished::CancelRequested);
        };
        let last = match place {
            Some(place) => placed.last(place),
            None => self
                .newest_event(id)
                .await?
                .map_or(0, |event| event.id.position),
        };
        let totals = EventTotals { count, last };
        let body = rules::with_events(&result, &self.published.identity.log, totals)?;
        Ok(Finished::Recorded(Recorded { totals, body }))
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        let id = claim.id();
        self.note_end(&claim);
        let needs = Needs {
            bodies: vec![id],
            ..of(id)
        };
        let change = move |rows: &mut Rows| {
            let dispatch = rows.dispatches.get(&id).ok_or(Error::NotFound)?;
            transition::requeue(&claim, &dispatch.standing(), rows.epoch)?;
            let record = dispatch.record(rows.body(id)?);
            rows.append(id, std::slice::from_ref(&requeue.event));
            if let Some(dispatch) = rows.dispatches.get_mut(&id) {
                // Keeps its turn, and is the first of its session, because it ran.
                dispatch.phase = phase::READY;
                dispatch.start_by = rules::start_again_by(&record, requeue.event.timestamp);
                let stays = dispatch.session.is_some() || dispatch.recorded_session.is_some();
                if !stays && !dispatch.is_bound {
                    dispatch.home = None;
                }
            }
            Ok(())
        };
        self.write(0, needs, change).await
    }

    async fn request_cancel(&self, id: DispatchId, _at: Timestamp) -> Result<CancelRequest> {
        let change = move |rows: &mut Rows| {
            let Some(dispatch) = rows.dispatches.get(&id) else {
                return Ok(CancelRequest::Unknown);
            };
            let answer = transition::request_cancel(&dispatch.standing());
            if answer != CancelRequest::Finished
                && let Some(dispatch) = rows.dispatches.get_mut(&id)
            {
                dispatch.cancel_requested = true;
                if dispatch.phase < phase::CANCELLED {
                    dispatch.phase = phase::CANCELLED;
                }
            }
            Ok(answer)
        };
        self.write(0, of(id), change).await
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        let sql = format!(
            "SELECT {}, b.request FROM dispatch d JOIN body b ON b.id = d.id
             WHERE d.phase = 4 AND NOT EXISTS (SELECT FROM node WHERE epoch = d.epoch AND NOT has_ended)
             ORDER BY d.seq LIMIT $1",
            Whole::columns()
        );
        // From now on they cannot be renewed.
        let end = "UPDATE node SET has_ended = true WHERE NOT has_ended AND until <= pg_catalog.clock_timestamp()";
        self.all(end, Vec::new(), |_| Ok(())).await?;
        self.all(sql, params![limit], |row| {
            let whole = Whole::read(row)?;
            let record = whole.record();
            let dispatch = whole.dispatch;
            Ok(Interrupted {
                attempt: dispatch.attempts,
                cancel_requested: dispatch.cancel_requested,
                dispatch: record,
                request: row.next()?,
                recorded_session: dispatch.recorded_session,
                spent: dispatch.spent,
            })
        })
        .await
    }
}

/// Dispatches of an adapter that can start, in their order: of those whose attempt would be the last, the first one.
/// Dispatches that another node is claiming are left out.
fn startable() -> String {
    let is_last = "attempts > 0 AND attempts + 1 >= $2";
    // Without a grace sessions have no home; `home IS NULL` would be true for the others as well.
    let is_here = "(home IS NULL OR home = $4 OR NOT is_bound AND ($5 IS NULL OR NOT EXISTS (
           SELECT FROM node n WHERE n.id = home AND n.until > pg_catalog.clock_timestamp() - $5 * interval '1 s')))";
    format!(
        "WITH further AS (
           SELECT * FROM dispatch WHERE phase = 0 AND provider = $1 AND {is_here} AND NOT ({is_last})
           ORDER BY priority DESC, seq LIMIT $3 FOR UPDATE SKIP LOCKED),
         last AS (
           SELECT * FROM dispatch WHERE phase = 0 AND provider = $1 AND {is_here} AND {is_last}
           ORDER BY priority DESC, seq LIMIT 1 FOR UPDATE SKIP LOCKED)
         SELECT {} FROM (SELECT * FROM further UNION ALL SELECT * FROM last) c
         ORDER BY priority DESC, seq LIMIT $3",
        columns::<DispatchRow>("")
    )
}

/// Highest number of a running attempt of an epoch.
const MOST_ATTEMPTS: &str =
    "SELECT pg_catalog.max(attempts) FROM dispatch WHERE phase = 4 AND epoch = $1";

/// Writes the running marks, and returns all that the executions need.
fn claim(rows: &mut Rows, limits: ClaimLimits, started: &NewEvent) -> Result<Vec<Claimed>, Stop> {
    let [found, most] = rows.answers.as_slice() else {
        return Err(Stop::Later);
    };
    let most = most
        .first()
        .map(|row| Columns::of(row).next::<Option<u32>>());
    let most = most.transpose()?.flatten();
    let is_last = |attempt| rules::is_last_attempt(attempt, limits.max_attempts);
    let mut last_runs = most.is_some_and(is_last);
    let mut chosen = Vec::new();
    // One that cannot be read delays no other.
    for row in found
        .iter()
        .filter_map(|row| DispatchRow::read(&mut Columns::of(row)).ok())
    {
        // Changes before this one in the batch can have changed it.
        let now = rows.dispatches.get(&row.id).unwrap_or(&row);
        if now.phase != phase::READY || is_last(now.attempts + 1) && last_runs {
            continue;
        }
        last_runs |= is_last(now.attempts + 1);
        chosen.push(row);
    }
    let ids: Vec<_> = chosen.iter().map(|row| row.id).collect();
    rows.need_requests(&ids)?;
    rows.dispatches.add(chosen);
    let claimed = ids
        .into_iter()
        .filter_map(|id| start(rows, id, &limits, started));
    Ok(claimed.collect())
}

/// Begins an attempt, unless the accepted data cannot be read.
fn start(
    rows: &mut Rows,
    id: DispatchId,
    limits: &ClaimLimits,
    started: &NewEvent,
) -> Option<Claimed> {
    let (request, secrets) = rows.requests.get(&id)?.clone();
    let epoch = rows.epoch;
    let body = rows.bodies.get(&id)?;
    let dispatch = rows.dispatches.get_mut(&id)?;
    dispatch.phase = phase::RUNNING;
    dispatch.attempts += 1;
    dispatch.epoch = epoch;
    dispatch.started_at = Some(started.timestamp);
    dispatch.first_started_at.get_or_insert(started.timestamp);
    // What a runtime keeps of a session is on the node that ran it.
    let is_here = limits.home_grace.is_none() || dispatch.home.as_ref() == Some(&rows.node);
    dispatch.home = Some(rows.node.clone());
    let home = HomeRow::of(dispatch, started.timestamp);
    let begun = Begun {
        lease: Lease {
            id,
            attempt: dispatch.attempts,
            epoch,
        },
        dispatch: dispatch.record(body),
        secrets,
        recorded_session: dispatch.recorded_session.clone().filter(|_| is_here),
        spent: dispatch.spent.clone(),
    };
    rows.homes.extend(home);
    rows.append(id, std::slice::from_ref(started));
    Some(Claimed { begun, request })
}

/// Number of the events of a dispatch that ends, and the place of the last ones; `None` if a cancel was requested first.
type Ended = Option<(u64, Option<EventsPlace>)>;

fn finish(rows: &mut Rows, claim: &Claim, finish: &Finish) -> Result<Ended, Stop> {
    let id = claim.id();
    let dispatch = rows.dispatches.get(&id).ok_or(Error::NotFound)?;
    let expires_at = match transition::finish(claim, finish, &dispatch.standing(), rows.epoch)? {
        End::CancelRequested => return Ok(None),
        End::Record { expires_at, .. } => expires_at,
    };
    // Only its form matters here: the position is known after the commit.
    let nowhere = EventTotals { count: 0, last: 0 };
    rules::with_events(&finish.result, &rows.log, nowhere)?;
    rows.can_leave(dispatch)?;

    let place = rows.append(id, &finish.events);
    let dispatch = rows.dispatches.get_mut(&id).ok_or(Error::NotFound)?;
    dispatch.phase = phase::FINISHED;
    dispatch.finished_at = Some(finish.at);
    dispatch.error_code.clone_from(&finish.error_code);
    dispatch.expires_at = expires_at;
    let count = dispatch.events;
    if let (Some(delivery), Some(origin)) = (&finish.delivery, dispatch.origin.clone()) {
        // It is due at once.
        rows.deliveries.put(DeliveryRow {
            id,
            state: DeliveryState::Pending,
            epoch: rows.epoch,
            origin,
            attempts: 0,
            since: finish.at,
            due_at: Some(finish.at),
            settled_at: None,
            give_up_after: delivery.give_up_after,
            retention: finish.retention,
        });
    }
    rows.results.push(ResultRow {
        id,
        events: count,
        body: finish.result.clone(),
    });
    if let Some(spending) = &finish.spending {
        rows.spendings.push(SpendingRow {
            id,
            at: finish.at,
            spending: spending.clone(),
        });
    }
    if let Some(output) = &finish.output {
        rows.add_content(id, Content::Output, output.as_bytes());
    }
    for (position, file) in finish.output_files.iter().enumerate() {
        rows.add_content(id, Content::OutputFile(position), file);
    }
    if let Claim::Rejected(_, decision) = claim {
        rows.decisions.push(DecisionRow {
            id,
            approved: false,
            decision: decision.clone(),
        });
    }
    if let Some(charge) = &finish.charge {
        signals::charge(rows, charge);
        signals::end(rows, &(charge.session.id.clone(), finish.at));
    }
    rows.leave(id);
    Ok(Some((count, place)))
}
