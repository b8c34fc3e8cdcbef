//! Start of executions, claimed from the queue or directly on acceptance, and release of their reservation afterwards.

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use tracing::Instrument as _;

use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_plugin_host::{Adapter, Permit};
use forge_store as store;
use forge_store::record::{Acceptance, Begun, Claim, ClaimLimits, Claimed, Lease, NewDispatch};
use forge_store::retry::RetryDelays;
use forge_store::rules;

use super::request::DispatchRequest;
use super::running::{ExecutionGuard, OpenClaim};
use super::spans::log_span;
use super::steer::Target;
use super::{At, Dispatcher};

/// Moves the value out, so that the allocation is freed now and not after the dispatch has run.
#[expect(clippy::boxed_local, reason = "that it ends here is what it is for")]
fn unboxed<T>(boxed: Box<T>) -> T {
    *boxed
}

/// Resources that an execution holds while it runs.
pub(super) struct Reservation {
    pub(super) place: ExecutionGuard,
    pub(super) permit: Permit,
}

impl Dispatcher {
    /// Records a dispatch. Starts it at once if its adapter has a free slot and no waiting dispatches; else wakes the
    /// scheduler.
    pub(super) async fn accept(
        &self,
        new: Box<NewDispatch>,
        dispatch: Box<DispatchRequest>,
    ) -> Result<Acceptance, store::Error> {
        let inner = &self.inner;
        match self.reserve(new.id, &new.provider) {
            Some((adapter, held)) => self.accept_and_start(new, dispatch, adapter, held).await,
            None => {
                inner.waiting_providers.add(&new.provider);
                let wakeup = first_wakeup(&new);
                let accepted = inner.finisher.store.accept.accept(*new).await?;
                if matches!(accepted, Acceptance::Accepted { .. }) {
                    inner.next_wakeup.add(wakeup);
                    self.wake();
                }
                Ok(accepted)
            }
        }
    }

    fn reserve(&self, id: DispatchId, provider: &str) -> Option<(Adapter, Reservation)> {
        let inner = &self.inner;
        let adapter = inner.registry.get(provider)?;
        if inner.waiting_providers.is_at(provider)
            || adapter.health().status == HealthStatus::Offline
        {
            return None;
        }
        let permit = adapter.reserve()?;
        let held = Reservation {
            place: inner.running.register(id)?,
            permit,
        };
        Some((adapter, held))
    }

    /// Records and starts a dispatch in a task of its own, because the client might disconnect meanwhile.
    async fn accept_and_start(
        &self,
        mut new: Box<NewDispatch>,
        dispatch: Box<DispatchRequest>,
        adapter: Adapter,
        held: Reservation,
    ) -> Result<Acceptance, store::Error> {
        let id = new.id;
        let wakeup = first_wakeup(&new);
        new.start = Some(started(&adapter, new.accepted_at));
        let dispatcher = self.clone();
        let recorded = self.inner.tracker.spawn_here(async move {
            let inner = &dispatcher.inner;
            let accepted = inner.finisher.store.accept.accept(unboxed(new)).await;
            if matches!(accepted, Err(store::Error::Unavailable(_))) {
                let requeued = dispatcher.clone();
                inner.tracker.spawn(async move {
                    requeued.requeue_unstarted(id).await;
                    requeued.release(&adapter, held);
                });
                return accepted;
            }
            let Ok(Acceptance::Accepted { retry_of, begun }) = accepted else {
                dispatcher.release(&adapter, held);
                return accepted;
            };
            match begun {
                Some(begun) => {
                    let log = log_span(id, &dispatch.trace.trace_id);
                    let runner = dispatcher.clone();
                    let run = async move {
                        runner
                            .execute_started(begun, dispatch, &adapter, held)
                            .await;
                    };
                    inner.tracker.spawn(run.instrument(log));
                }
                None => {
                    inner.next_wakeup.add(wakeup);
                    drop(held);
                    dispatcher.wake();
                }
            }
            let begun = None;
            Ok(Acceptance::Accepted { retry_of, begun })
        });
        let gone = |_| store::Error::Unavailable("the dispatch was not recorded".to_owned());
        recorded.await.map_err(gone)?
    }

    /// Frees a slot and wakes the scheduler if another dispatch found it taken meanwhile.
    fn release(&self, adapter: &Adapter, held: Reservation) {
        drop(held);
        if self.inner.waiting_providers.is_at(adapter.provider()) {
            self.wake();
        }
    }

    /// Claims dispatches for these permits and starts them; returns their number. Permits that are left over are given
    /// back. Must not be dropped before its end, because what the store marks has to be started: the round of the
    /// scheduler, which can be dropped, runs it in a task of its own.
    pub(super) async fn claim(
        self,
        adapter: Adapter,
        claim: OpenClaim,
        permits: Vec<Permit>,
    ) -> Result<usize, store::Error> {
        let finisher = &self.inner.finisher;
        let limits = ClaimLimits {
            count: permits.len(),
            max_attempts: self.inner.config.max_attempts,
            home_grace: (!adapter.shares_sessions()).then_some(self.inner.config.offline_grace),
        };
        let started = started(&adapter, finisher.clock.now());
        failpoint::point("claim.before");
        let claimed = finisher
            .store
            .executions
            .claim(adapter.provider(), limits, started)
            .await;
        failpoint::point("claim.after");
        let claimed = claimed?;
        let count = claimed.len();
        for (claimed, permit) in claimed.into_iter().zip(permits) {
            let place = claim.register(&claimed.begun.lease);
            self.start(claimed, adapter.clone(), Reservation { place, permit });
        }
        Ok(count)
    }

    /// Starts the next queued dispatch in a slot that has become free, without waiting for the scheduler, whose round can
    /// be waiting for the disk. False if none is ready or the adapter starts none now.
    async fn claim_next(&self, adapter: &Adapter) -> bool {
        if adapter.health().status == HealthStatus::Offline {
            return false;
        }
        let claim = self.inner.running.open_claim();
        let Some((claim, permit)) = claim.zip(adapter.reserve()) else {
            return false;
        };
        let claimed = self.clone().claim(adapter.clone(), claim, vec![permit]);
        matches!(claimed.await, Ok(1..))
    }

    fn start(&self, claimed: Claimed, adapter: Adapter, held: Reservation) {
        let dispatcher = self.clone();
        // Boxed, so that the task does not keep space for it.
        let (begun, request) = (Box::new(claimed.begun), claimed.request);
        self.inner.tracker.spawn(async move {
            match DispatchRequest::from_record(&request) {
                Ok(dispatch) => {
                    drop(request);
                    let log = log_span(begun.lease.id, &dispatch.trace.trace_id);
                    let run = dispatcher.execute_started(begun, Box::new(dispatch), &adapter, held);
                    run.instrument(log).await;
                }
                Err(error) => {
                    dispatcher.end_unreadable(begun, &error).await;
                    drop(held);
                    dispatcher.inner.deliverer.wake();
                    dispatcher.wake();
                }
            }
        });
    }

    /// Ends an attempt whose stored request cannot be read.
    async fn end_unreadable(&self, begun: Box<Begun>, error: &serde_json::Error) {
        let id = begun.lease.id;
        let log = log_span(id, &begun.dispatch.trace_id);
        let claim = Claim::Attempt(begun.lease.clone());
        let finisher = &self.inner.finisher;
        let ended = finisher.end_unreadable(claim, &begun.dispatch, error);
        if let Err(error) = ended.instrument(log).await {
            tracing::error!(
                dispatch.id = %id,
                trace.id = begun.dispatch.trace_id,
                "the end of {id} was not recorded; the next start recovers it: {error}",
            );
        }
    }

    /// Executes a dispatch whose start is recorded, then wakes the scheduler if another one waits.
    async fn execute_started(
        &self,
        begun: Box<Begun>,
        dispatch: Box<DispatchRequest>,
        adapter: &Adapter,
        held: Reservation,
    ) {
        let inner = &self.inner;
        let id = begun.lease.id;
        // The place was registered before this, so that a lease which is lost from now on stops it.
        if !inner.holds(begun.lease.epoch) {
            return;
        }
        held.place.steer_by(Target {
            steering: held.permit.steering(),
            attempt: begun.lease.attempt,
            task_id: dispatch.task_id.clone(),
        });
        let most = inner.config.max_attempts;
        let awaited =
            begun.dispatch.session.is_some() || rules::is_last_attempt(begun.lease.attempt, most);
        // Boxed: large, and would be copied with the task around it.
        let attempt = Box::pin(inner.attempt(begun, dispatch, &held.permit, &held.place.stop));
        match attempt.await {
            Ok(()) => {
                drop(held);
                let waits = inner.waiting_providers.is_at(adapter.provider());
                // Boxed: the adapters of most executions have no waiting dispatches.
                let is_taken = waits && Box::pin(self.claim_next(adapter)).await;
                if awaited || (waits && !is_taken) {
                    self.wake();
                }
            }
            Err(error) => {
                tracing::error!(
                    "the end of {id} was not recorded; the next start recovers it: {error}",
                );
                // The end is on disk if only the answer of an earlier write was lost.
                inner.deliverer.wake();
            }
        }
    }

    /// Returns a dispatch to the queue after the store failed while recording it and its start. Both might be on disk,
    /// but no task executes it.
    async fn requeue_unstarted(&self, id: DispatchId) {
        let finisher = &self.inner.finisher;
        let lease = Lease {
            id,
            attempt: 1,
            epoch: finisher.store.executions.epoch(),
        };
        let mut delays = RetryDelays::default();
        loop {
            let claim = Claim::Attempt(lease.clone());
            match finisher
                .requeue(claim, "the store failed while the attempt started")
                .await
            {
                Err(store::Error::Unavailable(_)) => tokio::time::sleep(delays.next_delay()).await,
                Ok(()) => return self.wake(),
                // The start was not recorded.
                Err(
                    store::Error::Stale(_)
                    | store::Error::NotFound
                    | store::Error::InvalidState(_)
                    | store::Error::Unreadable(_),
                ) => return self.wake(),
            }
        }
    }
}

/// Time at which the scheduler has to look at a dispatch that waits: its own, or the limit of its wait.
fn first_wakeup(new: &NewDispatch) -> Timestamp {
    new.not_before.unwrap_or(new.start_by).min(new.start_by)
}

fn started(adapter: &Adapter, now: Timestamp) -> NewEvent {
    let provider = adapter.provider();
    NewEvent::new(kind::STARTED, now).with(&At { provider })
}
