//! Takes from the store what may start, when an adapter has room. Picking is in memory; the durable
//! mark is written by the execution itself. One `tick` is a whole round and may be repeated at will.

use std::time::Duration;

use forge_adapter_api::HealthStatus;
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::plugin::{Adapter, Permit};
use crate::store::record::{Claim, Ready, Reroute};
use crate::store::{self};

use super::finish::Ending;
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
                    tracing::warn!(error = %error, "scheduling paused: {error}");
                    REFUSED
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One round: what is overdue ends, what is due may start, and free adapters get work. Says how
    /// long nothing will happen by itself.
    pub async fn tick(&self) -> Result<Duration, store::Error> {
        let now = self.clock.now();
        if self.agenda.due(now) {
            self.expire(now).await?;
            while self.store.promote(now, STEP).await? == STEP {}
            self.agenda.set(self.store.next_queue_event().await?);
        }
        for adapter in self.registry.adapters() {
            if adapter.health().status != HealthStatus::Offline {
                self.fill(&adapter).await?;
            }
        }
        self.reroute_stranded().await?;
        Ok(self.agenda.pause(now).min(IDLE))
    }

    /// Ends what waited too long, and what was cancelled in the queue when a crash came between.
    async fn expire(&self, now: Timestamp) -> Result<(), store::Error> {
        for id in self.store.cancelled_in_queue(STEP).await? {
            self.end_queued(id, Ending::cancelled_in_queue()).await?;
        }
        loop {
            let overdue = self.store.overdue(now, STEP).await?;
            for id in &overdue {
                self.end_queued(*id, Ending::queue_timeout()).await?;
            }
            if overdue.len() < STEP {
                return Ok(());
            }
        }
    }

    /// Starts what this adapter has room for.
    async fn fill(&self, adapter: &Adapter) -> Result<(), store::Error> {
        let free = adapter.max_concurrent().saturating_sub(adapter.running());
        if free == 0 {
            return Ok(());
        }
        // Those that were picked and are not yet marked are still in the answer.
        let picked = self.running.len().min(adapter.running());
        let ready = self.store.ready(adapter.provider(), free.min(STEP) + picked).await?;
        for ready in ready {
            let Some(place) = self.running.enter(ready.id) else { continue };
            let Some(permit) = adapter.reserve() else { return Ok(()) };
            self.start(ready, adapter.clone(), place, permit);
        }
        Ok(())
    }

    fn start(&self, ready: Ready, adapter: Adapter, place: Place, permit: Permit) {
        let dispatcher = self.clone();
        self.tracker.spawn(async move {
            // A dispatch on its last attempt may be what kills the process. It runs alone among its
            // kind, so that those which only stood beside it do not use their attempts up with it.
            let last = ready.attempts > 0 && ready.attempts + 1 >= dispatcher.config.max_attempts;
            let _alone = match last {
                true => dispatcher.last_attempts.acquire().await.ok(),
                false => None,
            };
            dispatcher.attempt(ready.id, &adapter, &place.stop).await;
            drop((place, permit));
            dispatcher.wake();
        });
    }

    /// Routes unpinned dispatches again whose adapter cannot take them, as far as they never started.
    async fn reroute_stranded(&self) -> Result<(), store::Error> {
        let usable = |provider: &str| {
            let adapter = self.registry.get(provider);
            adapter.is_some_and(|adapter| adapter.health().status != HealthStatus::Offline)
        };
        if self.registry.adapters().iter().all(|adapter| usable(adapter.provider())) {
            return Ok(());
        }
        for (provider, _) in self.store.queues().await? {
            if usable(&provider) {
                continue;
            }
            for ready in self.store.ready(&provider, STEP).await? {
                if !ready.pinned && ready.attempts == 0 {
                    self.reroute(ready).await?;
                }
            }
        }
        Ok(())
    }
}
