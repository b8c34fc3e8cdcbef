//! The scheduler: claims ready dispatches from the store when their adapter has a free slot. One `tick` is a whole round
//! and can be repeated at any time.

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_base::time::{self, Sleeper};
use forge_plugin_host::Adapter;
use forge_store as store;
use forge_store::record::{Ready, Reroute};

use super::normalise::Ending;
use super::request::DispatchRequest;
use super::{Dispatcher, Error};

/// Dispatches of one kind that a round handles; the next round handles the rest.
const STEP: usize = 64;
/// Dispatches that a round examines to look past those that cannot move now.
const SCAN: usize = 1024;
/// Longest pause between rounds, in case a wakeup is lost.
const IDLE: Duration = Duration::from_secs(5);
/// Longest pause between checks of timed work, in case a wakeup was not added.
pub(super) const MAX_POLL: Duration = Duration::from_secs(60);
/// Shortest such pause, in case an overdue dispatch cannot be ended.
const MIN_POLL: Duration = Duration::from_millis(20);
/// Interval at which stranded dispatches are routed again.
pub(super) const REROUTE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a round that failed in the store.
const REFUSED: Duration = Duration::from_millis(500);

/// State of an adapter's queue after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillOutcome {
    Nothing,
    NoRoom,
    /// Ready dispatches are left for the next round.
    Later,
}

impl Dispatcher {
    /// Runs rounds until `shutdown`. Executions that are running then continue until `drain`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut sleeper = Sleeper::new(self.inner.finisher.clock);
        while let Some(round) = shutdown.run_until_cancelled(self.tick()).await {
            let pause = round.unwrap_or_else(|error| {
                tracing::warn!("scheduling failed and will be retried: {error}");
                REFUSED
            });
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.inner.wake.notified() => {}
                _ = sleeper.sleep(pause) => {}
            }
        }
        self.inner.waiting_providers.close();
    }

    /// One round: ends overdue dispatches, promotes due ones and starts work on adapters with free slots. Returns the
    /// longest pause before the next round.
    pub async fn tick(&self) -> Result<Duration, store::Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        if inner.next_wakeup.take_due(now) {
            let next = self.keep_times(now).await;
            // If the store fails, the check is repeated in the next round.
            inner.next_wakeup.add(*next.as_ref().unwrap_or(&now));
            next?;
        }
        // Executions that ended together free all their slots before the claim for the first one of them.
        tokio::task::yield_now().await;
        inner.waiting_providers.begin_round();
        let (mut stranded, mut waiting, mut serving) = (Vec::new(), BTreeSet::new(), Vec::new());
        for (provider, queued) in inner.finisher.store.queue.queues().await? {
            match inner.registry.get(&provider) {
                // Resuming the adapter wakes the scheduler. Until then new dispatches must not overtake queued ones.
                Some(adapter) if adapter.paused().is_some() => {
                    waiting.insert(provider);
                }
                Some(adapter) if adapter.health().status != HealthStatus::Offline => {
                    serving.push((adapter, queued));
                }
                // Another node starts them.
                Some(_) | None if inner.offers.has(&provider) => {}
                Some(_) | None => stranded.push(provider),
            }
        }
        // At once, so that they share a sync of the disk.
        let fills = serving
            .iter()
            .map(|(adapter, queued)| self.fill(adapter, *queued));
        let filled = join_all(fills).await;
        let mut without_room = Vec::new();
        for ((adapter, _), rest) in serving.iter().zip(filled) {
            let rest = rest?;
            if rest != FillOutcome::Nothing {
                waiting.insert(adapter.provider().to_owned());
            }
            if rest == FillOutcome::NoRoom {
                without_room.push(adapter);
            }
        }
        inner.waiting_providers.set(waiting);
        // An execution that ended before the waiting providers were set has not woken the scheduler.
        if without_room.into_iter().any(Adapter::has_room) {
            self.wake();
        }
        let mut pause = inner.next_wakeup.pause(now).min(IDLE);
        if !stranded.is_empty() {
            pause = pause.min(self.reroute_stranded(&stranded, now).await?);
        }
        Ok(pause)
    }

    /// Ends dispatches whose queue timeout has passed and those whose cancellation in the queue a crash interrupted;
    /// promotes those whose `notBefore` has come. Returns the time of the next check.
    async fn keep_times(&self, now: Timestamp) -> Result<Timestamp, store::Error> {
        let store = &self.inner.finisher.store.queue;
        let cancelled = store.cancelled_in_queue(STEP).await?;
        self.end_queued(&cancelled, &Ending::Cancelled { answer: None })
            .await?;
        let overdue = store.overdue(now, STEP).await?;
        self.end_queued(&overdue, &Ending::QueueTimeout).await?;
        failpoint::point("promote.before");
        let promoted = store.promote(now, STEP).await?;
        failpoint::point("promote.after");
        if cancelled.len().max(overdue.len()).max(promoted) == STEP {
            // There might be more, but adapters must not wait for it.
            return Ok(now);
        }
        let next = store.next_queue_event().await?.unwrap_or(Timestamp::MAX);
        Ok(next.clamp(time::after(now, MIN_POLL), time::after(now, MAX_POLL)))
    }

    /// Ends these dispatches concurrently, so that they share a sync of the disk.
    async fn end_queued(&self, ids: &[DispatchId], ending: &Ending) -> Result<(), store::Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let finisher = &self.inner.finisher;
        let ends = ids
            .iter()
            .map(|id| finisher.end_queued(*id, ending.clone()));
        let ended = join_all(ends).await.into_iter().collect();
        self.inner.deliverer.wake();
        ended
    }

    /// Starts as many ready dispatches as this adapter has free slots. `queued` is the number of its queued dispatches,
    /// ready or not.
    async fn fill(&self, adapter: &Adapter, queued: u64) -> Result<FillOutcome, store::Error> {
        let most = usize::try_from(queued).unwrap_or(STEP).min(STEP);
        let permits: Vec<_> = iter::from_fn(|| adapter.reserve()).take(most).collect();
        let reserved = permits.len();
        if reserved == 0 {
            return Ok(FillOutcome::NoRoom);
        }
        let Some(claim) = self.inner.running.open_claim() else {
            // The bridge is stopping.
            return Ok(FillOutcome::Nothing);
        };
        let claimed = self.clone().claim(adapter.clone(), claim, permits);
        let claimed = self.inner.tracker.spawn(claimed).await;
        let lost = |_| store::Error::Unavailable("a claim did not complete".to_owned());
        if claimed.map_err(lost)?? < reserved || reserved as u64 == queued {
            return Ok(FillOutcome::Nothing);
        }
        // The next round, which follows at once, handles the rest.
        self.wake();
        Ok(FillOutcome::Later)
    }

    /// Reroutes unpinned dispatches that never started and whose adapter is missing or offline. Returns the time until
    /// the next try.
    async fn reroute_stranded(
        &self,
        from: &[String],
        now: Timestamp,
    ) -> Result<Duration, store::Error> {
        let rescue = &self.inner.next_reroute;
        if rescue.take_due(now) {
            let moved = self.reroute_some(from, now).await;
            let pause = if matches!(moved, Ok(1..)) {
                Duration::ZERO
            } else {
                REROUTE_INTERVAL
            };
            rescue.add(time::after(now, pause));
            moved?;
        }
        Ok(rescue.pause(now))
    }

    /// Number of dispatches moved to another adapter.
    async fn reroute_some(&self, from: &[String], now: Timestamp) -> Result<usize, store::Error> {
        let mut moved = 0;
        for provider in from {
            let ready = self
                .inner
                .finisher
                .store
                .queue
                .ready(provider, SCAN)
                .await?;
            let free = ready
                .into_iter()
                .filter(|ready| !ready.pinned && ready.attempts == 0);
            for ready in free.take(STEP) {
                moved += usize::from(self.reroute(ready, now).await?);
            }
        }
        Ok(moved)
    }

    /// Returns true if the dispatch was moved to another adapter.
    async fn reroute(&self, ready: Ready, now: Timestamp) -> Result<bool, store::Error> {
        let inner = &self.inner;
        let stored = inner.finisher.store.records.request(ready.id).await?;
        let Ok(dispatch) = DispatchRequest::from_record(&stored) else {
            // No adapter can execute it; ending it logs the reason.
            let ending = Ending::Unreadable("the stored request cannot be read".to_owned());
            inner.finisher.end_queued(ready.id, ending).await?;
            inner.deliverer.wake();
            return Ok(false);
        };
        let routed = match inner.routed(&dispatch, now).await {
            Ok(routed) if routed.provider != ready.provider => routed,
            // No other adapter is available now: the dispatch stays where it is until its queue timeout.
            Ok(_)
            | Err(
                Error::NoCapableAdapter(_)
                | Error::UnknownProvider(_)
                | Error::AdapterUnavailable(_)
                | Error::Invalid(_)
                | Error::Conflict(_)
                | Error::Forbidden(_)
                | Error::QueueFull,
            ) => return Ok(false),
            Err(Error::Store(error)) => return Err(error),
        };
        tracing::info!(
            dispatch.id = %ready.id,
            trace.id = dispatch.trace.trace_id,
            "{} is rerouted from {} to {}", ready.id, ready.provider, routed.provider,
        );
        let reroute = Reroute {
            id: ready.id,
            session: dispatch.session_id.filter(|_| routed.session_honoured),
            provider: routed.provider,
            routing: routed.decision.stored(),
        };
        match inner.finisher.store.queue.reroute(reroute).await {
            // The dispatch started or ended in the meantime.
            Err(store::Error::Stale(_) | store::Error::InvalidState(_)) => Ok(false),
            rerouted => rerouted.map(|()| true),
        }
    }
}
