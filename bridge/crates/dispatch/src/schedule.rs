//! Takes from the store what may start, when an adapter has room. Picking is in memory; the durable
//! mark is written by the execution itself. One `tick` is a whole round and may be repeated at will.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_base::time;
use forge_plugin_host::Adapter;
use forge_store as store;
use forge_store::record::{Ready, Reroute};

use super::normalise::Ending;
use super::request::DispatchRequest;
use super::start::Reservation;
use super::{Dispatcher, Error};

/// How many of one kind a round looks at; what is left is the next round's.
const STEP: usize = 64;
/// How far a round looks past those that may not start or move just now.
const SCAN: usize = 1024;
/// A round follows at least so often, should a wake-up be lost.
const IDLE: Duration = Duration::from_secs(5);
/// Times are looked at again at least so often, should a moment not have been noted.
const MAX_POLL: Duration = Duration::from_secs(60);
/// And at most so often, should something overdue not want to end.
pub(super) const MIN_POLL: Duration = Duration::from_millis(20);
/// How often those that nobody could take are routed again.
const REROUTE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a round that the store refused.
const REFUSED: Duration = Duration::from_millis(500);

/// What is left in an adapter's queue after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillOutcome {
    Nothing,
    NoRoom,
    /// More than a round looks at.
    Later,
}

impl Dispatcher {
    /// Rounds until `shutdown`; what runs then goes on until it is drained.
    pub async fn run(self, shutdown: CancellationToken) {
        while let Some(round) = shutdown.run_until_cancelled(self.tick()).await {
            let pause = round.unwrap_or_else(|error| {
                tracing::warn!("nothing is started: {error}");
                REFUSED
            });
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.inner.waiting_providers.close();
    }

    /// One round: what is overdue ends, what is due may start, and adapters with room get work. Says
    /// how long nothing will happen by itself.
    pub async fn tick(&self) -> Result<Duration, store::Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        if inner.next_wakeup.take_due(now) {
            let next = self.keep_times(now).await;
            // Should the store refuse, the round is made again.
            inner.next_wakeup.add(*next.as_ref().unwrap_or(&now));
            next?;
        }
        let (mut stranded, mut waiting, mut without_room) =
            (Vec::new(), BTreeSet::new(), Vec::new());
        for (provider, _) in inner.finisher.store.queues().await? {
            match inner.registry.get(&provider) {
                // It is resumed with a wake-up. Until then nobody goes before those who wait.
                Some(adapter) if adapter.paused().is_some() => {
                    waiting.insert(provider);
                }
                Some(adapter) if adapter.health().status != HealthStatus::Offline => {
                    let rest = self.fill(&adapter).await?;
                    if rest != FillOutcome::Nothing {
                        waiting.insert(provider);
                    }
                    if rest == FillOutcome::NoRoom {
                        without_room.push(adapter);
                    }
                }
                Some(_) | None => stranded.push(provider),
            }
        }
        inner.waiting_providers.set(waiting);
        // One that ended before the backlog was known has woken nobody.
        let has_room = |adapter: &Adapter| adapter.running() < adapter.max_concurrent();
        if without_room.iter().any(has_room) {
            self.wake();
        }
        let mut pause = inner.next_wakeup.pause(now).min(IDLE);
        if !stranded.is_empty() {
            pause = pause.min(self.reroute_stranded(&stranded, now).await?);
        }
        Ok(pause)
    }

    /// Ends what waited too long, and what was cancelled in the queue when a crash came between; lets
    /// those start whose time has come. The next moment to look again.
    async fn keep_times(&self, now: Timestamp) -> Result<Timestamp, store::Error> {
        let store = &self.inner.finisher.store;
        let cancelled = store.cancelled_in_queue(STEP).await?;
        self.end_queued(&cancelled, &Ending::Cancelled { answer: None })
            .await?;
        let overdue = store.overdue(now, STEP).await?;
        self.end_queued(&overdue, &Ending::QueueTimeout).await?;
        failpoint::point("promote.before");
        let promoted = store.promote(now, STEP).await?;
        failpoint::point("promote.after");
        if cancelled.len().max(overdue.len()).max(promoted) == STEP {
            // There may be more; adapters are not kept waiting for it.
            return Ok(now);
        }
        let next = store.next_queue_event().await?.unwrap_or(Timestamp::MAX);
        Ok(next.clamp(time::after(now, MIN_POLL), time::after(now, MAX_POLL)))
    }

    /// Ends these together, so that they share the disk's time.
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

    /// Starts what this adapter has room for.
    async fn fill(&self, adapter: &Adapter) -> Result<FillOutcome, store::Error> {
        let inner = &self.inner;
        let free = adapter.max_concurrent().saturating_sub(adapter.running());
        if free == 0 {
            return Ok(FillOutcome::NoRoom);
        }
        // Those that were picked and are not yet marked are still in the answer.
        let picked = inner.running.len().min(adapter.running());
        let mut limit = free.min(STEP) + picked;
        loop {
            let found = inner
                .finisher
                .store
                .ready(adapter.provider(), limit)
                .await?;
            let more = found.len() == limit;
            let (mut started, mut passed_over) = (0, 0);
            for ready in found {
                let Some(place) = inner.running.register(ready.id) else {
                    continue;
                };
                let Ok(alone) = self.alone(&ready) else {
                    passed_over += 1;
                    continue;
                };
                let Some(permit) = adapter.reserve() else {
                    return Ok(FillOutcome::NoRoom);
                };
                let held = Reservation {
                    place,
                    permit,
                    alone,
                };
                self.start(&ready, adapter.clone(), held);
                started += 1;
            }
            if !more {
                return Ok(FillOutcome::Nothing);
            }
            if passed_over == 0 || limit > SCAN {
                if started > 0 {
                    // The rest is the next round's, which follows at once.
                    self.wake();
                }
                return Ok(FillOutcome::Later);
            }
            // Those that wait for their turn to run alone do not hold up what is behind them.
            limit += passed_over;
        }
    }

    /// A dispatch on its last attempt may be what kills the process. It runs alone among its kind, so
    /// that those which only stood beside it do not use their attempts up with it.
    fn alone(
        &self,
        ready: &Ready,
    ) -> Result<Option<OwnedSemaphorePermit>, tokio::sync::TryAcquireError> {
        let last = ready.attempts > 0 && ready.attempts + 1 >= self.inner.config.max_attempts;
        match last {
            true => Arc::clone(&self.inner.last_attempts)
                .try_acquire_owned()
                .map(Some),
            false => Ok(None),
        }
    }

    /// Routes unpinned dispatches again whose adapter cannot take them, as far as they never started.
    /// How long until it is worth trying again.
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

    /// How many went elsewhere.
    async fn reroute_some(&self, from: &[String], now: Timestamp) -> Result<usize, store::Error> {
        let mut moved = 0;
        for provider in from {
            let ready = self.inner.finisher.store.ready(provider, SCAN).await?;
            let free = ready
                .into_iter()
                .filter(|ready| !ready.pinned && ready.attempts == 0);
            for ready in free.take(STEP) {
                moved += usize::from(self.reroute(ready, now).await?);
            }
        }
        Ok(moved)
    }

    /// Whether it went to another adapter.
    async fn reroute(&self, ready: Ready, now: Timestamp) -> Result<bool, store::Error> {
        let inner = &self.inner;
        let stored = inner.finisher.store.request(ready.id).await?;
        let Ok(dispatch) = DispatchRequest::from_record(&stored) else {
            // Nobody can take it; the ending says in the log what is wrong.
            let ending = Ending::Unreadable("the stored request cannot be read".to_owned());
            inner.finisher.end_queued(ready.id, ending).await?;
            inner.deliverer.wake();
            return Ok(false);
        };
        let routed = match inner.routed(&dispatch, now).await {
            Ok(routed) if routed.provider != ready.provider => routed,
            // Nobody else can, for now: it stays where it is until its queue timeout.
            Ok(_)
            | Err(
                Error::NoCapableAdapter(_)
                | Error::UnknownProvider(_)
                | Error::AdapterUnavailable(_)
                | Error::Invalid(_)
                | Error::Conflict(_)
                | Error::QueueFull,
            ) => return Ok(false),
            Err(Error::Store(error)) => return Err(error),
        };
        tracing::info!(
            dispatch.id = %ready.id,
            trace.id = dispatch.trace.trace_id,
            "{} goes from {} to {}", ready.id, ready.provider, routed.provider,
        );
        let reroute = Reroute {
            id: ready.id,
            session: dispatch.session_id.filter(|_| routed.session_honoured),
            provider: routed.provider,
            routing: routed.decision.stored(),
        };
        match inner.finisher.store.reroute(reroute).await {
            // It started or ended in the meantime.
            Err(store::Error::Stale(_) | store::Error::InvalidState(_)) => Ok(false),
            rerouted => rerouted.map(|()| true),
        }
    }
}
