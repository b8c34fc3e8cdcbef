//! `GET /api/v2/throughput`: the last hour of this bridge in steps of 10 s, for charts that begin with a history. Kept in
//! memory only: a longer one is what `/metrics` is for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::auth::Reader;
use super::error::Failure;
use super::query::NoQuery;
use forge_base::time;
use forge_delivery::Deliverer;
use forge_dispatch::Dispatcher;
use forge_store::Store;

const STEP: Duration = Duration::from_secs(10);
/// Steps kept: one hour.
const KEPT: usize = 360;

/// Recorded steps. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Throughput(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    /// End of the last step, and the counters then; `None` before the first.
    last: Option<(Timestamp, Counts)>,
    steps: VecDeque<Step>,
}

/// Counters of this bridge since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    accepted: u64,
    ok: u64,
    error: u64,
    delivered: u64,
    failed_attempts: u64,
}

/// Numbers of the store at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Levels {
    waiting: u64,
    running: u64,
    pending: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// Growth of the counters within the step.
    counts: Counts,
    /// At its end.
    levels: Levels,
}

impl Counts {
    fn read(dispatcher: &Dispatcher, deliverer: &Deliverer) -> Self {
        let mut counts = Self::default();
        for (_, provider) in dispatcher.meters().providers.rows() {
            counts.accepted += provider.accepted.get();
            for (code, count) in provider.finished() {
                match code {
                    "" => counts.ok += count,
                    _ => counts.error += count,
                }
            }
        }
        let meters = deliverer.meters();
        counts.delivered = meters.delivered.get();
        let attempts = meters.attempts();
        let failed = attempts.filter(|(_, answer, _)| *answer != "2xx");
        counts.failed_attempts = failed.map(|(_, _, count)| count).sum();
        counts
    }

    fn since(self, before: Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            ok: self.ok.saturating_sub(before.ok),
            error: self.error.saturating_sub(before.error),
            delivered: self.delivered.saturating_sub(before.delivered),
            failed_attempts: self.failed_attempts.saturating_sub(before.failed_attempts),
        }
    }
}

impl Ring {
    fn record(&mut self, at: Timestamp, counts: Counts, levels: Levels) {
        if let Some((_, last)) = self.last.replace((at, counts)) {
            if self.steps.len() == KEPT {
                self.steps.pop_front();
            }
            let counts = counts.since(last);
            self.steps.push_back(Step { counts, levels });
        }
    }
}

impl Throughput {
    /// Records a step every 10 s, for ever.
    pub async fn record(self, store: Arc<dyn Store>, dispatcher: Dispatcher, deliverer: Deliverer) {
        let mut steps = interval(STEP);
        // A machine that was asleep has steps without work, so that the others keep their place.
        steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            steps.tick().await;
            let counts = store.counts();
            let levels = Levels {
                waiting: counts.queued,
                running: counts.running,
                pending: counts.deliveries_pending,
            };
            let counts = Counts::read(&dispatcher, &deliverer);
            let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            ring.record(Timestamp::now(), counts, levels);
        }
    }

    fn view(&self) -> View {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let column = |value: fn(&Step) -> u64| ring.steps.iter().map(value).collect();
        let length = STEP * u32::try_from(ring.steps.len()).unwrap_or(u32::MAX);
        let end = ring.last.map_or_else(Timestamp::now, |(at, _)| at);
        let from = end.checked_sub(length).unwrap_or(end);
        View {
            step_seconds: STEP.as_secs(),
            from: time::format(from),
            accepted: column(|step| step.counts.accepted),
            ok: column(|step| step.counts.ok),
            error: column(|step| step.counts.error),
            delivered: column(|step| step.counts.delivered),
            failed_attempts: column(|step| step.counts.failed_attempts),
            waiting: column(|step| step.levels.waiting),
            running: column(|step| step.levels.running),
            pending: column(|step| step.levels.pending),
        }
    }
}

/// A column for each number, oldest step first.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View {
    step_seconds: u64,
    /// Start of the first step.
    from: String,
    accepted: Vec<u64>,
    ok: Vec<u64>,
    error: Vec<u64>,
    delivered: Vec<u64>,
    failed_attempts: Vec<u64>,
    waiting: Vec<u64>,
    running: Vec<u64>,
    pending: Vec<u64>,
}

pub(super) async fn show(
    _: Reader,
    _: NoQuery,
    State(throughput): State<Throughput>,
) -> Result<Json<View>, Failure> {
    Ok(Json(throughput.view()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(count: u64) -> Counts {
        Counts {
            accepted: count,
            ..Counts::default()
        }
    }

    #[test]
    fn a_step_has_what_was_counted_since_the_one_before() {
        let throughput = Throughput::default();
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let record = |count, waiting| {
            let levels = Levels {
                waiting,
                ..Levels::default()
            };
            let mut ring = throughput.0.lock().unwrap();
            ring.record(now, accepted(count), levels);
        };
        // What came before the first look belongs to no step.
        record(100, 9);
        assert_eq!(throughput.view().from, "2026-11-21T12:00:00.000Z");
        for (count, waiting) in [(103, 1), (103, 2), (110, 0)] {
            record(count, waiting);
        }
        let view = throughput.view();
        assert_eq!(view.accepted, [3, 0, 7]);
        assert_eq!(view.waiting, [1, 2, 0]);
        assert_eq!(view.from, "2026-11-21T11:59:30.000Z");
    }

    #[test]
    fn an_hour_is_kept() {
        let mut ring = Ring::default();
        for count in 0..1000 {
            ring.record(
                Timestamp::UNIX_EPOCH,
                accepted(count * count),
                Levels::default(),
            );
        }
        assert_eq!(ring.steps.len(), KEPT);
        let last = ring.steps.back().map(|step| step.counts.accepted);
        assert_eq!(last, Some(999 * 999 - 998 * 998));
    }
}
