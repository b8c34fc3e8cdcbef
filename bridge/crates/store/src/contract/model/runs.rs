//! Runs in the model test: few keys, paths and times, so that they meet.

use std::time::Duration;

use proptest::prelude::*;

use crate::Store;
use crate::contract::runs::{artifact, change, of_task, run};
use crate::contract::sample::{at, owner, raw};
use crate::record::{EventFilter, NewRun, RunChange, RunFilter, RunKey, RunStatus};
use crate::roles::Runs as _;
use forge_base::id::RunId;

use super::{Pair, both, both_pages};

const TYPES: [&str; 3] = ["task.status", "task.progress", "run.paused"];
const PATHS: [&str; 3] = ["a", "a/b", "c"];

/// Change of runs. A number selects an existing run, modulo their count.
#[derive(Clone, Debug)]
pub(super) enum RunStep {
    Open {
        key: Option<u8>,
        body: u8,
    },
    Change {
        run: usize,
        /// The change was made for other events.
        is_late: bool,
        events: usize,
        has_state: bool,
        artifacts: Vec<(usize, usize)>,
        status: RunStatus,
    },
}

pub(super) fn run_step() -> impl Strategy<Value = RunStep> {
    let open = (prop::option::of(0..4u8), 0..3u8);
    let status = prop_oneof![
        6 => Just(RunStatus::Executing),
        1 => Just(RunStatus::Paused),
        1 => Just(RunStatus::Completed),
        1 => Just(RunStatus::Cancelled),
    ];
    let artifacts = prop::collection::vec((0..PATHS.len(), 0..9usize), 0..3);
    let change = (
        (any::<usize>(), prop::bool::weighted(0.1), 0..4usize),
        (any::<bool>(), artifacts, status),
    );
    prop_oneof![
        1 => open.prop_map(|(key, body)| RunStep::Open { key, body }),
        3 => change.prop_map(|((run, is_late, events), (has_state, artifacts, status))| {
            RunStep::Change { run, is_late, events, has_state, artifacts, status }
        }),
    ]
}

impl Pair {
    pub(super) async fn make_run(&mut self, step: RunStep) {
        let now = self.now;
        match step {
            RunStep::Open { key, body } => {
                let new = NewRun {
                    key: key.map(|key| RunKey {
                        owner: owner(key % 2),
                        value: (key / 2).to_string(),
                    }),
                    fingerprint: [body % 2; 32],
                    created_at: at(now),
                    is_admitted: body < 2,
                    ..run(None)
                };
                self.runs.push(new.id);
                both!(self, store => store.open_run(new.clone())).unwrap();
            }
            RunStep::Change {
                run,
                is_late,
                events,
                has_state,
                artifacts,
                status,
            } => {
                let Some(id) = Self::pick(&self.runs, run) else {
                    return;
                };
                let seq = self.model.run(id).await.unwrap().map_or(0, |run| run.seq);
                let state = has_state.then(|| raw(&now.to_string()));
                let retention = Duration::from_secs(5);
                let events = TYPES.iter().take(events);
                let artifacts = artifacts.into_iter();
                let new = RunChange {
                    projection: state.clone(),
                    taken_over: state,
                    status,
                    artifacts: artifacts
                        .map(|(path, size)| artifact(PATHS[path], size))
                        .collect(),
                    end: status.is_ended().then(|| (at(now), retention)),
                    ..change(
                        id,
                        seq + u64::from(is_late),
                        events.map(|kind| of_task(kind, now)).collect(),
                    )
                };
                let _ = both!(self, store => store.append_run(new.clone()));
            }
        }
    }

    pub(super) async fn look_at_runs(&self) {
        let after = self.now.unsigned_abs() % 40;
        for id in self.runs.iter().copied() {
            both!(self, store => store.run(id)).unwrap();
            both!(self, store => store.run_artifacts(id)).unwrap();
            both!(self, store => store.run_artifact(id, "a")).unwrap();
            let filter = EventFilter {
                run: Some(id),
                task_id: after.is_multiple_of(3).then(|| "task".to_owned()),
                ..EventFilter::default()
            };
            both!(self, store => store.events(&filter, after, 3)).unwrap();
        }
        for status in [None, Some(RunStatus::Executing), Some(RunStatus::Completed)] {
            let filter = |before| RunFilter {
                status,
                before,
                limit: 2,
            };
            both_pages!(self, store, before => store.runs(filter(before)));
        }
        let first: Option<RunId> = self.runs.first().copied();
        both!(self, store => store.live_runs(first, 2)).unwrap();
    }
}
