//! Runs: their rows, and the changes of one run.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use serde_json::value::RawValue;

use forge_base::id::RunId;
use forge_store::record::{
    NewRun, Page, RunArtifact, RunArtifactInfo, RunChange, RunFilter, RunKey, RunOpened, RunRecord,
    RunStatus,
};
use forge_store::roles::Runs;
use forge_store::{Error, Result, runs, transition};

use super::rows::{self, nanos};
use super::{Tx, events};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

/// The columns that `record` reads, with the fingerprint and `seq` after them.
macro_rules! select_run {
    ($projection:literal, $rest:literal) => {
        concat!(
            "SELECT r.id, r.status, r.events, r.last_position, r.trace_id, r.created_at, r.ended_at, b.request, ",
            $projection,
            ", r.taken_over, r.fingerprint, r.seq FROM run r",
            $rest
        )
    };
}

const FINGERPRINT: usize = 10;
const SEQ: usize = 11;

const FIND: &str = select_run!(
    "b.projection",
    " JOIN run_body b ON b.run = r.seq WHERE r.id = ?"
);
const HOLDER: &str = select_run!(
    "b.projection",
    " JOIN run_body b ON b.run = r.seq WHERE r.header_key = ?"
);
const NEWEST: &str = select_run!(
    "NULL",
    " CROSS JOIN run_body b ON b.run = r.seq WHERE r.seq < ?1 ORDER BY r.seq DESC LIMIT ?2"
);
const NEWEST_OF_STATUS: &str = select_run!(
    "NULL",
    " INDEXED BY run_status CROSS JOIN run_body b ON b.run = r.seq
     WHERE r.status = ?3 AND r.seq < ?1 ORDER BY r.seq DESC LIMIT ?2"
);
const LIVE: &str = "SELECT id FROM run INDEXED BY run_live
   WHERE ended_at IS NULL AND id > ? ORDER BY id LIMIT ?";
const ARTIFACTS: &str = "SELECT path, kind, updated_at, length(bytes) FROM run_artifact
   WHERE run = (SELECT seq FROM run WHERE id = ?) ORDER BY path";
const ARTIFACT: &str = "SELECT path, kind, updated_at, bytes FROM run_artifact
   WHERE run = (SELECT seq FROM run WHERE id = ?) AND path = ?";
const ARTIFACT_SIZE: &str = "SELECT length(bytes) FROM run_artifact WHERE run = ? AND path = ?";

#[async_trait]
impl Runs for Sqlite {
    async fn open_run(&self, run: NewRun) -> Result<RunOpened> {
        let bytes = run.request.get().len()
            + run.projection.get().len()
            + events::size(run.events.iter().map(|new| &new.event));
        let change = move |tx: &mut Tx<'_>| open(tx, &run);
        self.write(Urgency::Now, bytes, change).await
    }

    async fn append_run(&self, change: RunChange) -> Result<u64> {
        let projection = change.projection.as_ref();
        let artifacts = change.artifacts.iter();
        let bytes = projection.map_or(0, |projection| projection.get().len())
            + artifacts
                .map(|artifact| artifact.bytes.len())
                .sum::<usize>()
            + events::size(change.events.iter().map(|new| &new.event));
        let append = move |tx: &mut Tx<'_>| append(tx, &change);
        self.write(Urgency::Now, bytes, append).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunRecord>> {
        self.one(Length::Short, FIND, [*id.as_bytes()], record)
            .await
    }

    async fn runs(&self, filter: RunFilter) -> Result<Page<RunRecord>> {
        let query = move |connection: &Connection| page(connection, &filter);
        self.engine.read(Length::Long, query).await
    }

    async fn live_runs(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        // Every id comes after the empty one.
        let after = after.map_or(Vec::new(), |id| id.as_bytes().to_vec());
        let params = (after, rows::limit(limit));
        let read = |row: &Row<'_>| row.get(0).map(RunId::from_bytes);
        self.all(Length::Long, LIVE, params, read).await
    }

    async fn run_artifacts(&self, id: RunId) -> Result<Vec<RunArtifactInfo>> {
        let read = |row: &Row<'_>| {
            Ok(RunArtifactInfo {
                path: row.get(0)?,
                kind: row.get(1)?,
                updated_at: rows::time(row, 2)?,
                size: row.get(3)?,
            })
        };
        self.all(Length::Long, ARTIFACTS, [*id.as_bytes()], read)
            .await
    }

    async fn run_artifact(&self, id: RunId, path: &str) -> Result<Option<RunArtifact>> {
        let params = (*id.as_bytes(), path.to_owned());
        let read = |row: &Row<'_>| {
            Ok(RunArtifact {
                path: row.get(0)?,
                kind: row.get(1)?,
                updated_at: rows::time(row, 2)?,
                bytes: row.get(3)?,
            })
        };
        self.one(Length::Long, ARTIFACT, params, read).await
    }
}

fn status_code(status: RunStatus) -> i64 {
    match status {
        RunStatus::Planning => 0,
        RunStatus::PlanReview => 1,
        RunStatus::Executing => 2,
        RunStatus::Paused => 3,
        RunStatus::Completed => 4,
        RunStatus::Failed => 5,
        RunStatus::Cancelled => 6,
    }
}

fn status(row: &Row<'_>, column: usize) -> rusqlite::Result<RunStatus> {
    match row.get(column)? {
        0 => Ok(RunStatus::Planning),
        1 => Ok(RunStatus::PlanReview),
        2 => Ok(RunStatus::Executing),
        3 => Ok(RunStatus::Paused),
        4 => Ok(RunStatus::Completed),
        5 => Ok(RunStatus::Failed),
        6 => Ok(RunStatus::Cancelled),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(column, other)),
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<RunRecord> {
    let projection = rows::json_option(row, 8)?;
    Ok(RunRecord {
        id: row.get(0).map(RunId::from_bytes)?,
        status: status(row, 1)?,
        seq: row.get(2)?,
        last_position: row.get(3)?,
        trace_id: row.get(4)?,
        created_at: rows::time(row, 5)?,
        ended_at: rows::time_option(row, 6)?,
        request: rows::opaque(row, 7)?,
        projection: projection.unwrap_or_else(|| RawValue::NULL.to_owned()),
        taken_over: rows::json_option(row, 9)?,
    })
}

fn page(connection: &Connection, filter: &RunFilter) -> rusqlite::Result<Page<RunRecord>> {
    let before = filter.before.and_then(|before| i64::try_from(before).ok());
    let before = before.unwrap_or(i64::MAX);
    let limit = rows::limit(filter.limit.saturating_add(1));
    let read = |row: &Row<'_>| Ok((row.get(SEQ)?, record(row)?));
    let mut found: Vec<(u64, RunRecord)> = match filter.status {
        None => rows::all(connection, NEWEST, [before, limit], read)?,
        Some(status) => {
            let params = [before, limit, status_code(status)];
            rows::all(connection, NEWEST_OF_STATUS, params, read)?
        }
    };
    let is_full = found.len() > filter.limit;
    found.truncate(filter.limit);
    Ok(Page {
        next: found.last().filter(|_| is_full).map(|(seq, _)| *seq),
        items: found.into_iter().map(|(_, run)| run).collect(),
    })
}

fn open(tx: &mut Tx<'_>, new: &NewRun) -> Result<RunOpened, Failure> {
    let of = |key: Option<&str>| {
        rows::one(tx.conn, HOLDER, [key], |row| {
            Ok((record(row)?, row.get(FINGERPRINT)?))
        })
    };
    let key = new.key.as_ref().map(RunKey::stored);
    let own = of(key.as_deref())?;
    let of_before = of(new.key.as_ref().map(RunKey::of_before))?;
    let opened = runs::open(new, transition::holder(own, of_before))?;
    if !matches!(opened, RunOpened::New) {
        return Ok(opened);
    }
    let seq = tx.counters.bounds.issued + 1;
    let last_position = events::insert_of_run(tx, seq, 1, &new.events)?;
    tx.execute(
        "INSERT INTO run (seq, id, status, events, last_position, artifact_bytes, created_at, header_key,
           fingerprint, trace_id)
         VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
        params![
            seq,
            new.id.as_bytes(),
            status_code(RunStatus::Planning),
            new.events.len(),
            last_position,
            nanos(new.created_at),
            key,
            new.fingerprint,
            new.trace_id,
        ],
    )?;
    tx.execute(
        "INSERT INTO run_body (run, request, projection) VALUES (?, ?, ?)",
        params![seq, new.request.get(), new.projection.get()],
    )?;
    Ok(opened)
}

fn append(tx: &mut Tx<'_>, change: &RunChange) -> Result<u64, Failure> {
    let sql = "SELECT seq, events, last_position, artifact_bytes, status FROM run WHERE id = ?";
    let found = rows::one(tx.conn, sql, [change.id.as_bytes()], |row| {
        let numbers: [u64; 4] = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
        Ok((numbers, status(row, 4)?))
    })?;
    let ([seq, events, last, before], status) = found.ok_or(Error::NotFound)?;
    runs::change(change, status, events)?;
    let artifact_bytes = runs::artifact_bytes(before, &change.artifacts, |path| {
        let size = rows::one(tx.conn, ARTIFACT_SIZE, params![seq, path], |row| row.get(0));
        Ok::<_, Failure>(size?)
    })?;
    let last_position = match change.events.as_slice() {
        [] => last,
        new => events::insert_of_run(tx, seq, events + 1, new)?,
    };
    tx.execute(
        "UPDATE run SET status = ?, events = ?, last_position = ?, artifact_bytes = ?, ended_at = ?, expires_at = ?,
           taken_over = coalesce(?, taken_over) WHERE seq = ?",
        params![
            status_code(change.status),
            events + change.events.len() as u64,
            last_position,
            artifact_bytes,
            change.end.map(|(at, _)| nanos(at)),
            runs::expires_at(change).map(nanos),
            change.taken_over.as_ref().map(|positions| positions.get()),
            seq,
        ],
    )?;
    if let Some(projection) = &change.projection {
        let sql = "UPDATE run_body SET projection = ? WHERE run = ?";
        tx.execute(sql, params![projection.get(), seq])?;
    }
    for artifact in &change.artifacts {
        tx.execute(
            "REPLACE INTO run_artifact (run, path, kind, updated_at, bytes) VALUES (?, ?, ?, ?, ?)",
            params![
                seq,
                artifact.path,
                artifact.kind,
                nanos(artifact.updated_at),
                artifact.bytes
            ],
        )?;
    }
    Ok(last_position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{event_read, plans, run_sweep};

    #[test]
    fn no_question_sorts_or_reads_more_than_it_answers() {
        plans::check(&[
            (FIND, "r USING INDEX run_id (id=?)"),
            (HOLDER, "r USING INDEX run_header_key (header_key=?)"),
            (NEWEST, "r USING INTEGER PRIMARY KEY (rowid<?)"),
            (
                NEWEST_OF_STATUS,
                "r USING INDEX run_status (status=? AND seq<?)",
            ),
            (LIVE, "run USING INDEX run_live (id>?)"),
            (ARTIFACTS, "run_artifact USING PRIMARY KEY (run=?)"),
            (
                ARTIFACT,
                "run_artifact USING PRIMARY KEY (run=? AND path=?)",
            ),
            (
                ARTIFACT_SIZE,
                "run_artifact USING PRIMARY KEY (run=? AND path=?)",
            ),
            (
                run_sweep::EXPIRED,
                "run USING INDEX run_expires (expires_at>? AND expires_at<?)",
            ),
            (
                run_sweep::EVENTS,
                "event USING INTEGER PRIMARY KEY (rowid=?)",
            ),
            (
                run_sweep::ARTIFACTS,
                "run_artifact USING PRIMARY KEY (run=? AND path=?)",
            ),
            (&event_read::of_run(), "r USING INDEX run_id (id=?)"),
            (
                &event_read::of_all(),
                "d USING INTEGER PRIMARY KEY (rowid>?)",
            ),
        ]);
    }
}
