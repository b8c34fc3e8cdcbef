//! Takes from the store what may start, when an adapter has room. Picking is in memory; the durable
//! mark is written by the execution itself. One `tick` is a whole round and may be repeated at will.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use serde_json::value::to_raw_value;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::plugin::{Adapter, Permit};
use crate::store;
use crate::store::record::{Ready, Reroute};

use super::normalise::Ending;
use super::request::Dispatch;
use super::running::Place;
use super::{Dispatcher, Error};

/// How many of one kind a round looks at; what is left is the next round's.
const STEP: usize = 64;
/// A round follows at least so often, should a wake-up be lost.
const IDLE: Duration = Duration::from_secs(5);
/// The pause after a round that the store refused.
const REFUSED: Duration = Duration::from_millis(500);

impl Dispatcher {
    /// Rounds until `shutdown`; what runs then goes on until it is drained.
    pub async fn run(self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            let pause = match self.tick().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!("nothing is started: {error}");
                    REFUSED
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One round: what is overdue ends, what is due may start, and adapters with room get work. Says
    /// how long nothing will happen by itself.
    pub async fn tick(&self) -> Result<Duration, store::Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        if inner.agenda.take_due(now) {
            // Should the store refuse, the round is made again.
            let kept = self.keep_times(now).await;
            inner.agenda.add(
                kept.as_ref()
                    .map_or(now, |next| next.unwrap_or(Timestamp::MAX)),
            );
            kept?;
        }
        for adapter in inner.registry.adapters() {
            if adapter.health().status != HealthStatus::Offline {
                self.fill(&adapter).await?;
            }
        }
        self.reroute_stranded(now).await?;
        Ok(inner.agenda.pause(now).min(IDLE))
    }

    /// Ends what waited too long, and what was cancelled in the queue when a crash came between; lets
    /// those start whose time has come. The next moment to look again.
    async fn keep_times(&self, now: Timestamp) -> Result<Option<Timestamp>, store::Error> {
        let (finisher, store) = (&self.inner.finisher, &self.inner.finisher.store);
        loop {
            let cancelled = store.cancelled_in_queue(STEP).await?;
            for id in &cancelled {
                finisher
                    .end_queued(*id, Ending::Cancelled { answer: None })
                    .await?;
            }
            let overdue = store.overdue(now, STEP).await?;
            for id in &overdue {
                finisher.end_queued(*id, Ending::QueueTimeout).await?;
            }
            let promoted = store.promote(now, STEP).await?;
            if cancelled.len() + overdue.len() > 0 {
                self.inner.deliverer.wake();
            }
            if cancelled.len().max(overdue.len()).max(promoted) < STEP {
                return store.next_queue_event().await;
            }
        }
    }

    /// Starts what this adapter has room for.
    async fn fill(&self, adapter: &Adapter) -> Result<(), store::Error> {
        let inner = &self.inner;
        let free = adapter.max_concurrent().saturating_sub(adapter.running());
        if free == 0 {
            return Ok(());
        }
        // Those that were picked and are not yet marked are still in the answer.
        let picked = inner.running.len().min(adapter.running());
        let limit = free.min(STEP) + picked;
        for ready in inner
            .finisher
            .store
            .ready(adapter.provider(), limit)
            .await?
        {
            let Some(place) = inner.running.enter(ready.id) else {
                continue;
            };
            let Ok(alone) = self.alone(&ready) else {
                continue;
            };
            let Some(permit) = adapter.reserve() else {
                return Ok(());
            };
            self.start(
                ready.id,
                adapter.clone(),
                Held {
                    place,
                    permit,
                    alone,
                },
            );
        }
        Ok(())
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

    fn start(&self, id: crate::id::DispatchId, adapter: Adapter, held: Held) {
        let dispatcher = self.clone();
        self.inner.tracker.spawn(async move {
            let inner = &dispatcher.inner;
            let ended = inner.attempt(id, &adapter, &held.place.stop).await;
            inner.deliverer.wake();
            match ended {
                Ok(()) => {
                    drop(held);
                    dispatcher.wake();
                }
                // It is picked again when the scheduler comes round, not at once.
                Err(error) => tracing::warn!(dispatch.id = %id, "{id} was not executed: {error}"),
            }
        });
    }

    /// Routes unpinned dispatches again whose adapter cannot take them, as far as they never started.
    async fn reroute_stranded(&self, now: Timestamp) -> Result<(), store::Error> {
        let inner = &self.inner;
        let usable = |provider: &str| {
            let adapter = inner.registry.get(provider);
            adapter.is_some_and(|adapter| adapter.health().status != HealthStatus::Offline)
        };
        for (provider, _) in inner.finisher.store.queues().await? {
            if usable(&provider) {
                continue;
            }
            for ready in inner.finisher.store.ready(&provider, STEP).await? {
                if !ready.pinned && ready.attempts == 0 {
                    self.reroute(ready, now).await?;
                }
            }
        }
        Ok(())
    }

    async fn reroute(&self, ready: Ready, now: Timestamp) -> Result<(), store::Error> {
        let inner = &self.inner;
        let stored = inner.finisher.store.request(ready.id).await?;
        let dispatch = Dispatch::from_record(&stored);
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
            ) => return Ok(()),
            Err(Error::Store(error)) => return Err(error),
        };
        tracing::info!(
            dispatch.id = %ready.id,
            "{} goes from {} to {}", ready.id, ready.provider, routed.provider,
        );
        let reroute = Reroute {
            id: ready.id,
            session: dispatch.session_id.filter(|_| routed.session_honoured),
            provider: routed.provider,
            routing: to_raw_value(&routed.trace).expect("steps have only text keys"),
        };
        match inner.finisher.store.reroute(reroute).await {
            // It started or ended in the meantime.
            Err(store::Error::Stale(_) | store::Error::InvalidState(_)) => Ok(()),
            rerouted => rerouted,
        }
    }
}

/// What an execution holds while it runs.
struct Held {
    place: Place,
    #[expect(dead_code, reason = "given back when dropped")]
    permit: Permit,
    #[expect(dead_code, reason = "given back when dropped")]
    alone: Option<OwnedSemaphorePermit>,
}
