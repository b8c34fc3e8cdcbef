//! Removal of expired runs. The row of a run goes first, and with it the run for every reader; its events and artifacts,
//! which can be many, follow in steps.

use std::time::Instant;

use jiff::Timestamp;
use rusqlite::params;

use forge_store::record::Swept;

use super::rows::{self, nanos};
use super::{Tx, retention};
use crate::engine::Failure;

/// Rows of events, and artifacts, that are removed at a time; a step ends after this many times, or by its time.
const EVENT_ROWS: usize = 100;
const ARTIFACT_ROWS: usize = 1;
const STEP_CHUNKS: usize = 5;

pub(super) const EXPIRED: &str = "SELECT seq, last_position FROM run INDEXED BY run_expires
   WHERE expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at, seq LIMIT ?";
pub(super) const EVENTS: &str = "DELETE FROM event WHERE first IN (
   SELECT first FROM event INDEXED BY event_run WHERE run = ? LIMIT ?)";
pub(super) const ARTIFACTS: &str = "DELETE FROM run_artifact WHERE run = ?1 AND path IN (
   SELECT path FROM run_artifact WHERE run = ?1 LIMIT ?2)";

/// Removes at most `limit` expired runs, then some rows of a removed one.
pub(super) fn sweep(
    tx: &mut Tx<'_>,
    now: Timestamp,
    limit: usize,
    begun: Instant,
    swept: &mut Swept,
) -> Result<(), Failure> {
    let params = params![nanos(now), rows::limit(limit.saturating_add(1))];
    let expired: Vec<(u64, u64)> = rows::all(tx.conn, EXPIRED, params, |row| row.try_into())?;
    for (seq, last_position) in expired.iter().take(limit) {
        retention::removed(tx, Some(*last_position));
        tx.execute("INSERT INTO run_removed (run) VALUES (?)", [seq])?;
        tx.execute("DELETE FROM run WHERE seq = ?", [seq])?;
        swept.runs += 1;
    }
    swept.more |= expired.len() > limit;
    swept.more |= sweep_rows(tx, begun)?;
    Ok(())
}

/// Removes some events, then artifacts, of the first removed run; true if there can be more.
fn sweep_rows(tx: &Tx<'_>, begun: Instant) -> rusqlite::Result<bool> {
    let first = "SELECT run FROM run_removed ORDER BY run LIMIT 1";
    let Some(run) = rows::one(tx.conn, first, [], |row| row.get::<_, u64>(0))? else {
        return Ok(false);
    };
    for (sql, rows) in [(EVENTS, EVENT_ROWS), (ARTIFACTS, ARTIFACT_ROWS)] {
        let mut chunks = 0;
        while tx.execute(sql, params![run, rows])? == rows {
            chunks += 1;
            if chunks == STEP_CHUNKS || begun.elapsed() > retention::STEP_TIME {
                return Ok(true);
            }
        }
    }
    tx.execute("DELETE FROM run_removed WHERE run = ?", [run])?;
    Ok(rows::one(tx.conn, first, [], |_| Ok(()))?.is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forge_store::contract::runs::{end, of_task, run};
    use forge_store::contract::sample::at;
    use forge_store::record::{RunEvent, RunOpened};
    use forge_store::roles::{EventLog as _, Maintenance as _, Runs as _};

    use super::*;
    use crate::Sqlite;
    use crate::engine::Urgency;
    use crate::tables::events;
    use crate::tests::open;

    #[tokio::test]
    async fn a_run_of_many_events_goes_at_once_and_its_rows_in_steps() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let new = run(None);
        let id = new.id;
        let opened = store.open_run(new).await.unwrap();
        assert!(matches!(opened, RunOpened::New));
        let rows = 2 * (EVENT_ROWS * STEP_CHUNKS) as u64;
        let fill = move |tx: &mut Tx<'_>| {
            let one: [RunEvent; 1] = [of_task("task.status", 1)];
            let inserted = (0..rows).map(|row| events::insert_of_run(tx, 1, 3 + row, &one));
            inserted.collect::<Result<Vec<_>, _>>()?;
            let sql = "UPDATE run SET events = events + ?1, last_position = last_position + ?1";
            Ok(tx.execute(sql, [rows])?)
        };
        store.write(Urgency::Now, 0, fill).await.unwrap();
        let last = end(id, 2 + rows, 5, Duration::ZERO);
        assert_eq!(store.append_run(last).await.unwrap(), 3 + rows);

        let mut steps = 1;
        while store.sweep(at(5), 1).await.unwrap().more {
            steps += 1;
            assert!(store.run(id).await.unwrap().is_none());
            assert_eq!(store.log_bounds().removed, 3 + rows);
            let checked = Sqlite::check(folder.path()).unwrap();
            assert_eq!(checked.problems, Vec::<String>::new());
        }
        assert!(steps > 2, "{steps}");
        assert_eq!(Sqlite::check(folder.path()).unwrap().events, 0);
        assert!(!store.sweep(at(5), 1).await.unwrap().more);
    }
}
