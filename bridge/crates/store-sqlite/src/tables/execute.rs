//! Attempts: claim, append, finish, requeue, cancel, and those that a crash interrupted.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Row, params};

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::record::{
    Begun, CancelRequest, Claim, ClaimLimits, Claimed, Content, Finish, Finished, Interrupted,
    Lease, Progress, Recorded, Requeue,
};
use forge_store::roles::Executions;
use forge_store::transition::{self, End};
use forge_store::{Error, Result, rules};

use super::events::EventOwner;
use super::rows::{self, Current, nanos, select_dispatch};
use super::{Tx, approval, content, deliver, events, queue, sessions, signals, spending};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

#[async_trait]
impl Executions for Sqlite {
    fn epoch(&self) -> u64 {
        self.published.identity.epoch
    }

    async fn claim(
        &self,
        provider: &str,
        limits: ClaimLimits,
        started: NewEvent,
    ) -> Result<Vec<Claimed>> {
        let provider = provider.to_owned();
        let bytes = limits.count * events::size([&started]);
        let change = move |tx: &mut Tx<'_>| claim(tx, &provider, limits, &started);
        self.write(Urgency::Now, bytes, change).await
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        let (lease, bytes) = (lease.clone(), events::size(&progress.events));
        self.write(Urgency::Now, bytes, move |tx| {
            let found = Current::find(tx.conn, lease.id.as_bytes())?;
            let found = found.ok_or(Error::Stale(lease.id))?;
            transition::append(&lease, &found.standing(), tx.counters.epoch)?;
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
            events::append(tx, &found, &progress.events)?;
            let mut charge = progress.charge.iter();
            charge.try_for_each(|charge| signals::charge(tx, charge))
        })
        .await
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        let bytes = finish.result.get().len()
            + finish.output.as_ref().map_or(0, String::len)
            + finish.output_files.iter().map(Vec::len).sum::<usize>()
            + events::size(&finish.events);
        let change = move |tx: &mut Tx<'_>| self::finish(tx, &claim, &finish);
        self.write(Urgency::Now, bytes, change).await
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        self.write(Urgency::Now, 0, move |tx| {
            let found = Current::find(tx.conn, claim.id().as_bytes())?.ok_or(Error::NotFound)?;
            transition::requeue(&claim, &found.standing(), tx.counters.epoch)?;
            let sql = select_dispatch!(
                " FROM dispatch d JOIN body b ON b.dispatch = d.seq WHERE d.seq = ?"
            );
            let dispatch = rows::one(tx.conn, sql, [found.seq], rows::dispatch)?;
            let dispatch = dispatch.ok_or(Error::NotFound)?;
            let start_by = rules::start_again_by(&dispatch, requeue.event.timestamp);
            events::append(tx, &found, std::slice::from_ref(&requeue.event))?;
            // Keeps its turn, and is the first of its session, because it ran.
            tx.execute(
                "UPDATE dispatch SET phase = 0, events = events + 1, start_by = ? WHERE seq = ?",
                params![nanos(start_by), found.seq],
            )?;
            tx.counters.counts.running -= 1;
            tx.counters.entered_queue(&found.provider);
            Ok(())
        })
        .await
    }

    async fn request_cancel(&self, id: DispatchId, _at: Timestamp) -> Result<CancelRequest> {
        self.write(Urgency::Now, 0, move |tx| {
            let Some(found) = Current::find(tx.conn, id.as_bytes())? else {
                return Ok(CancelRequest::Unknown);
            };
            let answer = transition::request_cancel(&found.standing());
            if answer != CancelRequest::Finished {
                let sql =
                    "UPDATE dispatch SET cancel_requested = 1, phase = iif(phase < 3, 3, phase)
                           WHERE seq = ?";
                tx.execute(sql, [found.seq])?;
            }
            Ok(answer)
        })
        .await
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        let sql = select_dispatch!(
            ", b.request FROM dispatch d INDEXED BY dispatch_running JOIN body b ON b.dispatch = d.seq
             WHERE d.phase = 4 AND d.epoch < ? ORDER BY d.seq LIMIT ?"
        );
        let params = (self.epoch(), rows::limit(limit));
        self.all(Length::Long, sql, params, |row| {
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
        .await
    }
}

/// Reads all that the executions need, then writes the running marks.
fn claim(
    tx: &mut Tx<'_>,
    provider: &str,
    limits: ClaimLimits,
    started: &NewEvent,
) -> Result<Vec<Claimed>, Failure> {
    let chosen = choose(tx, provider, limits, started.timestamp)?;
    for (owner, _) in &chosen {
        tx.execute(
            "UPDATE dispatch SET phase = 4, attempts = ?1, epoch = ?2, started_at = ?3,
               first_started_at = coalesce(first_started_at, ?3), events = events + 1 WHERE seq = ?4",
            params![
                owner.attempt,
                tx.counters.epoch,
                nanos(started.timestamp),
                owner.seq
            ],
        )?;
        events::insert(
            tx,
            Some(provider),
            Some(owner),
            std::slice::from_ref(started),
        )?;
        tx.counters.left_queue(provider);
        tx.counters.counts.running += 1;
    }
    Ok(chosen.into_iter().map(|(_, claimed)| claimed).collect())
}

/// Dispatches of an adapter that can start, in their order.
const STARTABLE: &str = select_dispatch!(
    ", b.request, b.secrets, d.events
     FROM dispatch d INDEXED BY dispatch_ready CROSS JOIN body b ON b.dispatch = d.seq
     WHERE d.phase = 0 AND d.provider = ? ORDER BY d.priority DESC, d.seq"
);

/// The dispatches to claim, as they are once their attempt has begun. Rows are read one by one: only those that are
/// passed over are read in addition.
fn choose(
    tx: &Tx<'_>,
    provider: &str,
    limits: ClaimLimits,
    at: Timestamp,
) -> rusqlite::Result<Vec<(EventOwner, Claimed)>> {
    let mut statement = tx.conn.prepare_cached(STARTABLE)?;
    let mut found = statement.query([provider])?;
    let is_last = |attempt| rules::is_last_attempt(attempt, limits.max_attempts);
    let mut last_runs = None;
    let mut chosen = Vec::new();
    while chosen.len() < limits.count
        && let Some(row) = found.next()?
    {
        let (owner, claimed) = match startable(row, tx.counters.epoch, at) {
            Ok(startable) => startable,
            Err(error) => {
                let seq: i64 = row.get(rows::SEQ)?;
                tracing::error!(%error, "dispatch {seq} cannot be read and is not started");
                continue;
            }
        };
        if is_last(owner.attempt) {
            let runs = match last_runs {
                Some(runs) => runs,
                None => most_attempts(tx)?.is_some_and(is_last),
            };
            last_runs = Some(true);
            if runs {
                continue;
            }
        }
        chosen.push((owner, claimed));
    }
    Ok(chosen)
}

fn startable(row: &Row<'_>, epoch: u64, at: Timestamp) -> rusqlite::Result<(EventOwner, Claimed)> {
    let dispatch = rules::started(rows::dispatch(row)?, at);
    let owner = EventOwner {
        seq: row.get(rows::SEQ)?,
        events: row.get(rows::MORE + 2)?,
        attempt: dispatch.attempts,
    };
    let begun = Begun {
        lease: Lease {
            id: dispatch.id,
            attempt: dispatch.attempts,
            epoch,
        },
        dispatch,
        secrets: row.get(rows::MORE + 1)?,
        recorded_session: row.get(rows::RECORDED_SESSION)?,
        spent: rows::opaque_option(row, rows::SPENT)?,
    };
    let request = rows::opaque(row, rows::MORE)?;
    Ok((owner, Claimed { begun, request }))
}

const MOST_ATTEMPTS: &str =
    "SELECT max(attempts) FROM dispatch INDEXED BY dispatch_running WHERE phase = 4 AND epoch = ?";

/// Highest number of a running attempt of this epoch.
fn most_attempts(tx: &Tx<'_>) -> rusqlite::Result<Option<u32>> {
    let read = |row: &Row<'_>| row.get(0);
    Ok(rows::one(tx.conn, MOST_ATTEMPTS, [tx.counters.epoch], read)?.flatten())
}

fn finish(tx: &mut Tx<'_>, claim: &Claim, finish: &Finish) -> Result<Finished, Failure> {
    let found = Current::find(tx.conn, claim.id().as_bytes())?.ok_or(Error::NotFound)?;
    let end = transition::finish(claim, finish, &found.standing(), tx.counters.epoch)?;
    let (was_queued, expires_at) = match end {
        End::CancelRequested => return Ok(Finished::CancelRequested),
        End::Record {
            was_queued,
            expires_at,
        } => (was_queued, expires_at),
    };
    let totals = events::totals_with(tx, &found, finish.events.len())?;
    let body = rules::with_events(&finish.result, &tx.counters.log, totals)?;
    events::append(tx, &found, &finish.events)?;
    if let Some(charge) = &finish.charge {
        signals::charge(tx, charge)?;
        sessions::end(tx, &(charge.session.id.clone(), finish.at))?;
    }
    // The delivery is due at once.
    let delivery = finish.delivery.as_ref();
    let due_at = delivery.map(|_| nanos(finish.at));
    let give_up_after = delivery.map(|new| deliver::retention(new.give_up_after));
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
    spending::insert(tx, found.seq, finish)?;
    if let Some(output) = &finish.output {
        content::insert(tx, found.seq, Content::Output, output.as_bytes())?;
    }
    for (position, file) in finish.output_files.iter().enumerate() {
        content::insert(tx, found.seq, Content::OutputFile(position), file)?;
    }
    if let Claim::Rejected(_, decision) = claim {
        approval::insert(tx, found.seq, decision, false)?;
    }
    queue::unblock(tx, &found.provider, found.session.as_deref())?;
    match was_queued {
        true => tx.counters.left_queue(&found.provider),
        false => tx.counters.counts.running -= 1,
    }
    tx.counters.counts.deliveries_pending += u64::from(delivery.is_some());
    Ok(Finished::Recorded(Recorded { totals, body }))
}

#[cfg(test)]
mod tests {
    use forge_store::contract::sample::{PROVIDER, accept, claim, task};
    use forge_store::roles::Queue as _;

    use super::super::plans;
    use super::*;
    use crate::tests::open;

    #[test]
    fn a_claim_reads_only_what_it_takes() {
        plans::check(&[
            (STARTABLE, "d USING INDEX dispatch_ready (provider=?)"),
            (
                MOST_ATTEMPTS,
                "dispatch USING INDEX dispatch_running (epoch=?)",
            ),
        ]);
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_read_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let damaged = accept(&store, task("a")).await;
        let sound = accept(&store, task("b")).await;
        let damage = "UPDATE dispatch SET trace_id = CAST(x'ff' AS TEXT) WHERE task_id = 'a'";
        let written = store.write(Urgency::Now, 0, |tx| Ok(tx.execute(damage, [])?));
        written.await.unwrap();
        let claimed = claim(&store, PROVIDER, 1, 1).await;
        assert_eq!(claimed[0].begun.lease.id, sound);
        assert!(claim(&store, PROVIDER, 1, 2).await.is_empty());
        assert_eq!(store.ready(PROVIDER, 9).await.unwrap()[0].id, damaged);
    }
}
