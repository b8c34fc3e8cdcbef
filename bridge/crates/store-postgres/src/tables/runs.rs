//! Runs: their rows, and the changes of one run.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use serde_json::value::RawValue;

use forge_base::digest::Digest;
use forge_base::id::RunId;
use forge_store::event_batch::{self, size};
use forge_store::record::{
    NewRun, Page, RunArtifact, RunArtifactInfo, RunChange, RunEvent, RunFilter, RunKey, RunOpened,
    RunRecord, RunStatus,
};
use forge_store::roles::Runs;
use forge_store::{Error, Result, runs, transition};

use super::events::NO_PROVIDER;
use super::read::page;
use super::rows::EventRow;
use super::run_rows::{ArtifactRow, RunBody, RunRow};
use crate::batch::{EventsPlace, Needs, Rows, Stop};
use crate::rows::statement::{Statement, array, params};
use crate::rows::table::Fields as _;
use crate::{Columns, Postgres};

/// Columns of `record`, with the request, the position of the last event, and the projection.
macro_rules! select_run {
    ($projection:literal, $rest:literal) => {
        concat!(
            "SELECT r.place, r.fingerprint, r.id, r.status, r.seq,
               (SELECT last FROM event WHERE run = r.id ORDER BY first DESC LIMIT 1),
               r.trace_id, r.created_at, r.ended_at, b.request, ",
            $projection,
            ", r.taken_over FROM run r JOIN run_body b ON b.id = r.id ",
            $rest
        )
    };
}

fn record(columns: &mut Columns<'_>) -> Result<(u64, Digest, RunRecord)> {
    let (place, fingerprint) = (columns.next()?, columns.next()?);
    let run = RunRecord {
        id: columns.next()?,
        status: columns.next()?,
        seq: columns.next()?,
        last_position: columns.next::<Option<u64>>()?.unwrap_or(0),
        trace_id: columns.next()?,
        created_at: columns.next()?,
        ended_at: columns.next()?,
        request: columns.next()?,
        projection: columns
            .next::<Option<_>>()?
            .unwrap_or_else(|| RawValue::NULL.to_owned()),
        taken_over: columns.next()?,
    };
    Ok((place, fingerprint, run))
}

#[async_trait]
impl Runs for Postgres {
    async fn open_run(&self, run: NewRun) -> Result<RunOpened> {
        let bytes = run.request.get().len()
            + run.projection.get().len()
            + size(run.events.iter().map(|new| &new.event));
        let holder = |key: Option<String>| {
            let sql = select_run!("b.projection", "WHERE r.key = $1");
            Statement::new(sql, params![key]).into_owned()
        };
        let key = run.key.as_ref();
        let of_before = key.map(|key| key.of_before().to_owned());
        let needs = Needs {
            reads: vec![holder(key.map(RunKey::stored)), holder(of_before)],
            apart: key.map(|key| format!("run {}", key.value)),
            ..Needs::default()
        };
        self.write(bytes, needs, move |rows| open(rows, &run)).await
    }

    async fn append_run(&self, change: RunChange) -> Result<u64> {
        let projection = change.projection.as_ref();
        let artifacts = change.artifacts.iter();
        let bytes = projection.map_or(0, |projection| projection.get().len())
            + artifacts
                .map(|artifact| artifact.bytes.len())
                .sum::<usize>()
            + size(change.events.iter().map(|new| &new.event));
        let id = change.id;
        let paths = change.artifacts.iter().map(|artifact| &artifact.path);
        let sizes = "SELECT path, pg_catalog.length(bytes)::int8 FROM run_artifact WHERE id = $1 AND path = ANY($2)";
        let mut params = params![id];
        params.push(array(paths));
        let needs = Needs {
            runs: vec![id],
            reads: vec![Statement::new(sizes, params).into_owned()],
            apart: Some(id.to_string()),
            ..Needs::default()
        };
        let append = move |rows: &mut Rows| append(rows, &change);
        match self.write_placed(bytes, needs, append).await? {
            (Some(place), placed) => Ok(placed.last(place)),
            (None, _) => Ok(self.run(id).await?.ok_or(Error::NotFound)?.last_position),
        }
    }

    async fn run(&self, id: RunId) -> Result<Option<RunRecord>> {
        let sql = select_run!("b.projection", "WHERE r.id = $1");
        let found = self.one(sql, params![id], record).await?;
        Ok(found.map(|(.., run)| run))
    }

    async fn runs(&self, filter: RunFilter) -> Result<Page<RunRecord>> {
        let sql = select_run!(
            "NULL::bytea",
            "WHERE r.place < $1 AND ($3 IS NULL OR r.status = $3) ORDER BY r.place DESC LIMIT $2"
        );
        let before = filter.before.unwrap_or(u64::MAX);
        let most = filter.limit.saturating_add(1);
        let params = params![before, most, filter.status];
        let found = self.all(sql, params, record).await?;
        let found = found.into_iter().map(|(place, _, run)| (place, run));
        Ok(page(found.collect(), filter.limit, None))
    }

    async fn live_runs(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let sql =
            "SELECT id FROM run WHERE ended_at IS NULL AND ($1 IS NULL OR id > $1) AND node = $3
                   ORDER BY id LIMIT $2";
        let node = &self.published.node.id;
        self.all(sql, params![after, limit, *node], |row| row.next())
            .await
    }

    async fn run_artifacts(&self, id: RunId) -> Result<Vec<RunArtifactInfo>> {
        let sql = "SELECT a.path, a.kind, a.updated_at, pg_catalog.length(a.bytes)::int8 FROM run_artifact a
                   JOIN run r ON r.id = a.id WHERE a.id = $1 ORDER BY a.path";
        self.all(sql, params![id], |row| {
            Ok(RunArtifactInfo {
                path: row.next()?,
                kind: row.next()?,
                updated_at: row.next()?,
                size: row.next()?,
            })
        })
        .await
    }

    async fn run_artifact(&self, id: RunId, path: &str) -> Result<Option<RunArtifact>> {
        let sql = "SELECT a.path, a.kind, a.updated_at, a.bytes FROM run_artifact a
                   JOIN run r ON r.id = a.id WHERE a.id = $1 AND a.path = $2";
        let path = path.to_owned();
        self.one(sql, params![id, path], RunArtifact::read).await
    }
}

fn open(rows: &mut Rows, new: &NewRun) -> Result<RunOpened, Stop> {
    let held = |answer: usize| {
        let row = rows.answers.get(answer).and_then(|answer| answer.first());
        row.map(|row| record(&mut Columns::of(row))).transpose()
    };
    let holder = transition::holder(held(0)?, held(1)?);
    let holder = holder.map(|(_, fingerprint, run)| (run, fingerprint));
    let opened = runs::open(new, holder)?;
    if !matches!(opened, RunOpened::New) {
        return Ok(opened);
    }
    rows.runs.put(RunRow {
        id: new.id,
        status: RunStatus::Planning,
        seq: 0,
        artifact_bytes: 0,
        created_at: new.created_at,
        ended_at: None,
        expires_at: None,
        key: new.key.as_ref().map(RunKey::stored),
        fingerprint: new.fingerprint,
        trace_id: new.trace_id.clone(),
        taken_over: None,
        node: rows.node.clone(),
    });
    let body = RunBody {
        id: new.id,
        request: new.request.clone(),
        projection: new.projection.clone(),
    };
    rows.insert("run_body", &[&body]);
    add_events(rows, new.id, &new.events);
    Ok(opened)
}

fn append(rows: &mut Rows, change: &RunChange) -> Result<Option<EventsPlace>, Stop> {
    let id = change.id;
    let run = rows.runs.get(&id).ok_or(Error::NotFound)?;
    runs::change(change, run.status, run.seq)?;
    let mut sizes = HashMap::<String, u64>::new();
    for row in rows.answers.first().into_iter().flatten() {
        let mut columns = Columns::of(row);
        sizes.insert(columns.next()?, columns.next()?);
    }
    let stored = |path: &str| Ok::<_, Error>(sizes.get(path).copied());
    let artifact_bytes = runs::artifact_bytes(run.artifact_bytes, &change.artifacts, stored)?;

    let node = rows.node.clone();
    if let Some(run) = rows.runs.get_mut(&id) {
        // A run that is reopened is continued by the bridge that was asked.
        if run.status.is_ended() {
            run.node = node;
        }
        run.status = change.status;
        run.artifact_bytes = artifact_bytes;
        run.ended_at = change.end.map(|(at, _)| at);
        run.expires_at = runs::expires_at(change);
        if change.taken_over.is_some() {
            run.taken_over.clone_from(&change.taken_over);
        }
    }
    if let Some(projection) = &change.projection {
        let sql = "UPDATE run_body SET projection = $1 WHERE id = $2";
        rows.execute(sql, params![*projection, id]);
    }
    // Of several of one path the last one is kept.
    let artifacts: BTreeMap<_, _> = change
        .artifacts
        .iter()
        .map(|one| (&one.path, one))
        .collect();
    if !artifacts.is_empty() {
        let mut params = params![id];
        params.push(array(artifacts.keys().copied()));
        rows.execute(
            "DELETE FROM run_artifact WHERE id = $1 AND path = ANY($2)",
            params,
        );
        let new = artifacts.into_values().map(|artifact| ArtifactRow {
            id,
            artifact: artifact.clone(),
        });
        let new: Vec<_> = new.collect();
        rows.insert("run_artifact", &new.iter().collect::<Vec<_>>());
    }
    Ok(add_events(rows, id, &change.events))
}

/// Appends events of a run, which is here.
fn add_events(rows: &mut Rows, id: RunId, events: &[RunEvent]) -> Option<EventsPlace> {
    let count = events.len() as u64;
    let run = rows.runs.get_mut(&id).filter(|_| count > 0)?;
    run.seq += count;
    let seq = run.seq - count + 1;
    Some(rows.add_events(EventRow {
        before: 0,
        count,
        dispatch: None,
        run: Some(id),
        seq,
        attempt: 0,
        provider: NO_PROVIDER.to_owned(),
        unbound_at: None,
        body: event_batch::of_run(events),
    }))
}
