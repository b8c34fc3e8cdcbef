//! The queue: dispatches that can start, those that wait for a time or a session, and moves to another adapter.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Row, params};

use forge_base::id::DispatchId;
use forge_store::record::{Ready, Reroute};
use forge_store::roles::Queue;
use forge_store::{Error, Result};

use super::Tx;
use super::rows::{self, Current, nanos, phase};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

#[async_trait]
impl Queue for Sqlite {
    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>> {
        let sql = "SELECT id, provider, pinned, attempts FROM dispatch INDEXED BY dispatch_ready
                   WHERE phase = 0 AND provider = ? ORDER BY priority DESC, seq LIMIT ?";
        let params = (provider.to_owned(), rows::limit(limit));
        self.all(Length::Short, sql, params, |row| {
            Ok(Ready {
                id: rows::dispatch_id(row, 0)?,
                provider: row.get(1)?,
                pinned: row.get(2)?,
                attempts: row.get(3)?,
            })
        })
        .await
    }

    async fn queues(&self) -> Result<Vec<(String, u64)>> {
        Ok(self.published.totals().queues.clone().into_iter().collect())
    }

    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let due = "SELECT seq, provider, session FROM dispatch INDEXED BY dispatch_delayed
                   WHERE phase = 1 AND not_before <= ? ORDER BY not_before, seq LIMIT ?";
        self.write(Urgency::Now, 0, move |tx| {
            let params = params![nanos(now), rows::limit(limit)];
            let due: Vec<(i64, String, Option<String>)> =
                rows::all(tx.conn, due, params, |row| row.try_into())?;
            for (seq, provider, session) in &due {
                let (phase, turn) = turn(tx, provider, session.as_deref())?;
                let sql = "UPDATE dispatch SET phase = ?, turn = ? WHERE seq = ?";
                tx.execute(sql, params![phase, turn, seq])?;
            }
            Ok(due.len())
        })
        .await
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>> {
        let sql = "SELECT id FROM dispatch INDEXED BY dispatch_start_by
                   WHERE phase < 3 AND start_by <= ? ORDER BY start_by, seq LIMIT ?";
        let params = [nanos(now), rows::limit(limit)];
        let read = |row: &Row<'_>| rows::dispatch_id(row, 0);
        self.all(Length::Short, sql, params, read).await
    }

    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>> {
        let sql = "SELECT id FROM dispatch INDEXED BY dispatch_cancelled
                   WHERE phase = 3 ORDER BY seq LIMIT ?";
        let read = |row: &Row<'_>| rows::dispatch_id(row, 0);
        self.all(Length::Short, sql, [rows::limit(limit)], read)
            .await
    }

    async fn next_queue_event(&self) -> Result<Option<Timestamp>> {
        let sql = "SELECT min(time) FROM (
                     SELECT min(start_by) AS time FROM dispatch INDEXED BY dispatch_start_by WHERE phase < 3
                     UNION ALL
                     SELECT min(not_before) FROM dispatch INDEXED BY dispatch_delayed WHERE phase = 1)";
        let read = |row: &Row<'_>| rows::time_option(row, 0);
        Ok(self.one(Length::Short, sql, [], read).await?.flatten())
    }

    async fn reroute(&self, reroute: Reroute) -> Result<()> {
        let bytes = reroute.routing.get().len();
        let change = move |tx: &mut Tx<'_>| self::reroute(tx, &reroute);
        self.write(Urgency::Now, bytes, change).await
    }
}

/// The phase and the place of a dispatch that enters the queue of its session, at the end.
pub(crate) fn turn(
    tx: &Tx<'_>,
    provider: &str,
    session: Option<&str>,
) -> rusqlite::Result<(i64, Option<i64>)> {
    let Some(session) = session else {
        return Ok((phase::READY, None));
    };
    let last: Option<i64> = rows::one(
        tx.conn,
        "SELECT turn FROM dispatch WHERE provider = ? AND session = ? AND turn IS NOT NULL
         ORDER BY turn DESC LIMIT 1",
        params![provider, session],
        |row| row.get(0),
    )?;
    Ok(match last {
        None => (phase::READY, Some(1)),
        Some(last) => (phase::BLOCKED, Some(last + 1)),
    })
}

/// Lets the first of a session start, after the one before it has left.
pub(crate) fn unblock(tx: &Tx<'_>, provider: &str, session: Option<&str>) -> rusqlite::Result<()> {
    let Some(session) = session else {
        return Ok(());
    };
    tx.execute(
        "UPDATE dispatch SET phase = 0 WHERE phase = 2 AND seq =
           (SELECT seq FROM dispatch WHERE provider = ? AND session = ? AND turn IS NOT NULL
            ORDER BY turn LIMIT 1)",
        params![provider, session],
    )?;
    Ok(())
}

fn reroute(tx: &mut Tx<'_>, reroute: &Reroute) -> Result<(), Failure> {
    let old = Current::find(tx.conn, reroute.id.as_bytes())?.ok_or(Error::NotFound)?;
    if old.phase >= phase::CANCELLED || old.attempts > 0 {
        return Err(Error::Stale(reroute.id).into());
    }
    tx.execute(
        "UPDATE body SET routing = ?, provider = coalesce(provider, ?) WHERE dispatch = ?",
        params![reroute.routing.get(), old.provider, old.seq],
    )?;
    if old.provider == reroute.provider && old.session == reroute.session {
        return Ok(());
    }
    // Leaves the old session's queue before it enters the new one, which can have the same name.
    tx.execute("UPDATE dispatch SET turn = NULL WHERE seq = ?", [old.seq])?;
    let (phase, turn) = match old.phase {
        phase::DELAYED | phase::HELD => (old.phase, None),
        _ => turn(tx, &reroute.provider, reroute.session.as_deref())?,
    };
    tx.execute(
        "UPDATE dispatch SET provider = ?, session = ?, phase = ?, turn = ? WHERE seq = ?",
        params![reroute.provider, reroute.session, phase, turn, old.seq],
    )?;
    unblock(tx, &old.provider, old.session.as_deref())?;
    tx.counters.left_queue(&old.provider);
    tx.counters.entered_queue(&reroute.provider);
    Ok(())
}
