//! Runs of the model.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::value::RawValue;

use super::Memory;
use super::state::State;
use crate::record::{
    NewRun, Page, RunArtifact, RunArtifactInfo, RunChange, RunFilter, RunKey, RunOpened, RunRecord,
    RunStatus,
};
use crate::roles::Runs;
use crate::{Error, Result, runs};
use forge_base::digest::Digest;
use forge_base::id::RunId;

pub(super) struct KeptRun {
    pub(super) record: RunRecord,
    key: Option<RunKey>,
    fingerprint: Digest,
    expires_at: Option<Timestamp>,
    /// By path.
    artifacts: BTreeMap<String, RunArtifact>,
}

#[async_trait]
impl Runs for Memory {
    async fn open_run(&self, run: NewRun) -> Result<RunOpened> {
        self.write(|state| state.open_run(run))
    }

    async fn append_run(&self, change: RunChange) -> Result<u64> {
        self.write(|state| state.append_run(change))
    }

    async fn run(&self, id: RunId) -> Result<Option<RunRecord>> {
        Ok(self.state().find_run(id).map(|(_, run)| run.record.clone()))
    }

    async fn runs(&self, filter: RunFilter) -> Result<Page<RunRecord>> {
        let state = self.state();
        let newest_first = state.runs.range(..filter.before.unwrap_or(u64::MAX)).rev();
        let mut found = newest_first.filter(|(_, run)| {
            let status = run.record.status;
            filter.status.is_none_or(|wanted| wanted == status)
        });
        let page: Vec<_> = found.by_ref().take(filter.limit).collect();
        let next = found.next().and(page.last()).map(|(seq, _)| **seq);
        let items = page.into_iter().map(|(_, run)| RunRecord {
            projection: RawValue::NULL.to_owned(),
            ..run.record.clone()
        });
        Ok(Page {
            items: items.collect(),
            next,
        })
    }

    async fn live_runs(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>> {
        let state = self.state();
        let live = state
            .runs
            .values()
            .filter(|run| !run.record.status.is_ended());
        let ids = live.map(|run| run.record.id);
        let mut ids: Vec<_> = ids.filter(|id| Some(*id) > after).collect();
        ids.sort();
        ids.truncate(limit);
        Ok(ids)
    }

    async fn run_artifacts(&self, id: RunId) -> Result<Vec<RunArtifactInfo>> {
        let state = self.state();
        let found = state.find_run(id).into_iter();
        let all = found.flat_map(|(_, run)| run.artifacts.values());
        let infos = all.map(|artifact| RunArtifactInfo {
            path: artifact.path.clone(),
            kind: artifact.kind.clone(),
            updated_at: artifact.updated_at,
            size: artifact.bytes.len() as u64,
        });
        Ok(infos.collect())
    }

    async fn run_artifact(&self, id: RunId, path: &str) -> Result<Option<RunArtifact>> {
        let state = self.state();
        let found = state.find_run(id);
        Ok(found.and_then(|(_, run)| run.artifacts.get(path).cloned()))
    }
}

impl State {
    fn find_run(&self, id: RunId) -> Option<(u64, &KeptRun)> {
        let mut all = self.runs.iter();
        let found = all.find(|(_, run)| run.record.id == id);
        found.map(|(seq, run)| (*seq, run))
    }

    fn open_run(&mut self, new: NewRun) -> Result<RunOpened> {
        let mut with_key = self.runs.values().filter(|run| run.key.is_some());
        let holder = with_key.find(|run| run.key == new.key);
        let holder = holder.map(|run| (run.record.clone(), run.fingerprint));
        let opened = runs::open(&new, holder)?;
        if let RunOpened::New = opened {
            // As on disk, the number of a run is the position of its first event.
            let seq = self.bounds.issued + 1;
            let record = RunRecord {
                id: new.id,
                status: RunStatus::Planning,
                seq: 0,
                last_position: 0,
                trace_id: new.trace_id,
                created_at: new.created_at,
                ended_at: None,
                request: new.request,
                projection: new.projection,
                taken_over: None,
            };
            let run = KeptRun {
                record,
                key: new.key,
                fingerprint: new.fingerprint,
                expires_at: None,
                artifacts: BTreeMap::new(),
            };
            self.runs.insert(seq, run);
            self.log_run(seq, new.events);
        }
        Ok(opened)
    }

    fn append_run(&mut self, change: RunChange) -> Result<u64> {
        let (seq, run) = self.find_run(change.id).ok_or(Error::NotFound)?;
        runs::change(&change, run.record.status, run.record.seq)?;
        let size = |artifact: &RunArtifact| artifact.bytes.len() as u64;
        let before = run.artifacts.values().map(size).sum();
        let stored = |path: &str| Ok::<_, Error>(run.artifacts.get(path).map(size));
        runs::artifact_bytes(before, &change.artifacts, stored)?;

        let run = self.runs.get_mut(&seq).expect("it has just been found");
        run.expires_at = runs::expires_at(&change);
        let record = &mut run.record;
        record.status = change.status;
        record.ended_at = change.end.map(|(at, _)| at);
        record.projection = change.projection.unwrap_or(record.projection.clone());
        record.taken_over = change.taken_over.or(record.taken_over.take());
        let changed = change.artifacts.into_iter();
        run.artifacts
            .extend(changed.map(|artifact| (artifact.path.clone(), artifact)));
        self.log_run(seq, change.events);
        Ok(self.runs[&seq].record.last_position)
    }

    /// Number of runs that were removed, and true if more have expired.
    pub(super) fn sweep_runs(&mut self, now: Timestamp, limit: usize) -> (u64, bool) {
        let mut expired: Vec<_> = self.runs.iter().collect();
        expired.retain(|(_, run)| run.expires_at.is_some_and(|time| time <= now));
        expired.sort_by_key(|(seq, run)| (run.expires_at, **seq));
        let more = expired.len() > limit;
        let gone: Vec<u64> = expired.iter().take(limit).map(|(seq, _)| **seq).collect();
        for seq in &gone {
            self.runs.remove(seq);
            self.forget_events(|logged| logged.owner == Some(*seq));
        }
        (gone.len() as u64, more)
    }
}
