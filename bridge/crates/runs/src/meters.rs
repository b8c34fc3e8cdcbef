//! Metrics of runs: gauges of those that have not ended, kept by their drivers, and counters of events since the start.

use std::sync::Arc;

use forge_base::metrics::{Counter, Gauge};
use forge_store::record::RunStatus;

use crate::event::{End, Entry, Event, TaskStatus};
use crate::state::State;

/// Statuses of a run that has not ended.
const LIVE: [(RunStatus, &str); 4] = [
    (RunStatus::Planning, "planning"),
    (RunStatus::PlanReview, "plan_review"),
    (RunStatus::Executing, "executing"),
    (RunStatus::Paused, "paused"),
];
const TASKS: [(TaskStatus, &str); 7] = [
    (TaskStatus::Pending, "pending"),
    (TaskStatus::Running, "running"),
    (TaskStatus::Done, "done"),
    (TaskStatus::MergeReady, "merge_ready"),
    (TaskStatus::Merged, "merged"),
    (TaskStatus::Failed, "failed"),
    (TaskStatus::Stale, "stale"),
];
const ENDS: [(End, &str); 3] = [
    (End::Completed, "completed"),
    (End::Failed, "failed"),
    (End::Cancelled, "cancelled"),
];

#[derive(Debug, Default)]
pub struct Meters {
    runs: [Gauge; LIVE.len()],
    tasks: [Gauge; TASKS.len()],
    ended: [Counter; ENDS.len()],
    completed: Counter,
    failed: Counter,
    stale: Counter,
    /// Merges that were proved.
    pub merges: Counter,
}

fn rows<K, T>(
    labels: &[(K, &'static str)],
    values: &[T],
    read: impl Fn(&T) -> u64,
) -> Vec<(&'static str, u64)> {
    let labels = labels.iter().map(|(_, label)| *label);
    labels.zip(values.iter().map(read)).collect()
}

impl Meters {
    /// Runs that have not ended, by status.
    pub fn runs(&self) -> Vec<(&'static str, u64)> {
        rows(&LIVE, &self.runs, Gauge::get)
    }

    /// Tasks of those runs, by status.
    pub fn tasks(&self) -> Vec<(&'static str, u64)> {
        rows(&TASKS, &self.tasks, Gauge::get)
    }

    /// Ended runs, by status.
    pub fn ended(&self) -> Vec<(&'static str, u64)> {
        rows(&ENDS, &self.ended, Counter::get)
    }

    /// Attempts of tasks that ended, by outcome.
    pub fn attempts(&self) -> [(&'static str, u64); 3] {
        [
            ("completed", self.completed.get()),
            ("failed", self.failed.get()),
            ("stale", self.stale.get()),
        ]
    }

    /// Counts an event that is on disk.
    pub(crate) fn count(&self, entry: &Entry) {
        match &entry.event {
            Event::RunCompleted { status, .. } => {
                let counters = ENDS.iter().zip(&self.ended);
                let mut own = counters.filter(|((end, _), _)| end == status);
                own.by_ref().for_each(|(_, counter)| counter.inc());
            }
            Event::TaskCompleted { .. } => self.completed.inc(),
            Event::TaskFailed { .. } => self.failed.inc(),
            Event::TaskStale { .. } => self.stale.inc(),
            Event::RefineryMerged { .. } => self.merges.inc(),
            _ => {}
        }
    }
}

/// Contribution of one run to the gauges; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct Share {
    meters: Arc<Meters>,
    runs: [u64; LIVE.len()],
    tasks: [u64; TASKS.len()],
}

impl Share {
    pub(crate) fn new(meters: Arc<Meters>) -> Self {
        Self {
            meters,
            runs: Default::default(),
            tasks: Default::default(),
        }
    }

    /// Replaces the contribution by that of a state.
    pub(crate) fn update(&mut self, state: &State) {
        let status = state.status();
        let mut tasks = [0; TASKS.len()];
        if !status.is_ended() {
            for task in state.tasks.values() {
                let place = TASKS.iter().position(|(one, _)| *one == task.status);
                tasks[place.unwrap_or(0)] += 1;
            }
        }
        self.replace(LIVE.map(|(one, _)| u64::from(one == status)), tasks);
    }

    fn replace(&mut self, runs: [u64; LIVE.len()], tasks: [u64; TASKS.len()]) {
        let gauges = self.meters.runs.iter().chain(&self.meters.tasks);
        let before = self.runs.iter().chain(&self.tasks);
        for ((gauge, before), after) in gauges.zip(before).zip(runs.iter().chain(&tasks)) {
            gauge.change(*before, *after);
        }
        (self.runs, self.tasks) = (runs, tasks);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.replace(Default::default(), Default::default());
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::request::Approval;

    #[test]
    fn a_share_is_what_the_state_says_until_it_is_dropped() {
        let meters = Arc::new(Meters::default());
        let count = |rows: Vec<(_, u64)>, label| {
            let row = rows.into_iter().find(|(name, _)| *name == label);
            row.map(|(_, count)| count)
        };
        let mut state = State::new(Timestamp::UNIX_EPOCH, false, Approval::User);
        let (mut one, mut other) = (
            Share::new(Arc::clone(&meters)),
            Share::new(Arc::clone(&meters)),
        );
        one.update(&state);
        other.update(&state);
        assert_eq!(count(meters.runs(), "planning"), Some(2));
        state.user_hold = true;
        one.update(&state);
        one.update(&state);
        assert_eq!(count(meters.runs(), "planning"), Some(1));
        assert_eq!(count(meters.runs(), "paused"), Some(1));
        drop((one, other));
        assert!(meters.runs().iter().all(|(_, count)| *count == 0));
    }
}
