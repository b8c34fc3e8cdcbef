//! How an execution comes to run: with room of its own, from the queue or straight from being accepted,
//! and what becomes of the room after it.

use std::time::Duration;

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Instrument as _;

use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_plugin_host::{Adapter, Permit};
use forge_store as store;
use forge_store::record::{Acceptance, Begun, Claim, Lease, NewDispatch, Ready};

use super::request::DispatchRequest;
use super::running::ExecutionGuard;
use super::schedule::MIN_POLL;
use super::spans::log_span;
use super::{At, Dispatcher};

/// The first and the longest pause while the store is away.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Out of its box, whose memory would otherwise be kept as long as the variable, while the dispatch runs.
#[expect(clippy::boxed_local, reason = "that it ends here is what it is for")]
fn unboxed<T>(boxed: Box<T>) -> T {
    *boxed
}

/// What an execution holds while it runs.
pub(super) struct Reservation {
    pub(super) place: ExecutionGuard,
    pub(super) permit: Permit,
    pub(super) alone: Option<OwnedSemaphorePermit>,
}

impl Dispatcher {
    /// Records a dispatch. It starts at once when there is room for it and nobody waits, else the
    /// scheduler is told.
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
                let starts = new.not_before.unwrap_or(new.start_by).min(new.start_by);
                let accepted = inner.finisher.store.accept(*new).await?;
                if matches!(accepted, Acceptance::Accepted { .. }) {
                    inner.next_wakeup.add(starts);
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
            alone: None,
        };
        Some((adapter, held))
    }

    /// In a task of its own: whoever sent the request may go away meanwhile.
    async fn accept_and_start(
        &self,
        mut new: Box<NewDispatch>,
        dispatch: Box<DispatchRequest>,
        adapter: Adapter,
        held: Reservation,
    ) -> Result<Acceptance, store::Error> {
        let id = new.id;
        let starts = new.not_before.unwrap_or(new.start_by).min(new.start_by);
        new.start = Some(started(&adapter, new.accepted_at));
        let (answer, answered) = oneshot::channel();
        let dispatcher = self.clone();
        self.inner.tracker.spawn_here(async move {
            let accepted = dispatcher.inner.finisher.store.accept(unboxed(new)).await;
            let unknown = matches!(accepted, Err(store::Error::Unavailable(_)));
            let waits = matches!(accepted, Ok(Acceptance::Accepted { begun: None, .. }));
            if waits {
                dispatcher.inner.next_wakeup.add(starts);
            }
            let (accepted, begun) = match accepted {
                Ok(Acceptance::Accepted { retry_of, begun }) => {
                    let accepted = Acceptance::Accepted {
                        retry_of,
                        begun: None,
                    };
                    (Ok(accepted), begun)
                }
                other => (other, None),
            };
            // Nobody waits any more when the caller went away; the record stands all the same.
            let _ = answer.send(accepted);
            match begun {
                Some(begun) => {
                    let log = log_span(id, &dispatch.trace.trace_id);
                    let runner = dispatcher.clone();
                    let run = async move {
                        runner.go_on(begun, dispatch, &adapter, held).await;
                    };
                    dispatcher.inner.tracker.spawn(run.instrument(log));
                }
                None => {
                    if unknown {
                        dispatcher.give_back(id, 1).await;
                    }
                    drop(held);
                    // It waits itself, or somebody found its room taken meanwhile.
                    if waits || dispatcher.inner.waiting_providers.is_at(adapter.provider()) {
                        dispatcher.wake();
                    }
                }
            }
        });
        let gone = || store::Error::Unavailable("the dispatch was not recorded".to_owned());
        answered.await.map_err(|_| gone())?
    }

    /// Starts what the scheduler picked.
    pub(super) fn start(&self, ready: &Ready, adapter: Adapter, held: Reservation) {
        let dispatcher = self.clone();
        let (id, attempt) = (ready.id, ready.attempts + 1);
        self.inner.tracker.spawn(async move {
            let finisher = &dispatcher.inner.finisher;
            let started = started(&adapter, finisher.clock.now());
            failpoint::point("begin.before");
            let begun = finisher.store.begin(id, adapter.provider(), started).await;
            failpoint::point("begin.after");
            match begun {
                Ok((begun, request)) => match DispatchRequest::from_record(&request) {
                    Ok(dispatch) => {
                        let log = log_span(id, &dispatch.trace.trace_id);
                        let (begun, dispatch) = (Box::new(begun), Box::new(dispatch));
                        let run = dispatcher.go_on(begun, dispatch, &adapter, held);
                        run.instrument(log).await;
                    }
                    Err(error) => {
                        let log = log_span(id, &begun.dispatch.trace_id);
                        let claim = Claim::Attempt(begun.lease);
                        let ended = finisher
                            .end_unreadable(claim, &begun.dispatch, &error)
                            .instrument(log);
                        if let Err(error) = ended.await {
                            tracing::error!(
                                dispatch.id = %id,
                                trace.id = begun.dispatch.trace_id,
                                "the end of {id} was not recorded, which the next start settles: {error}",
                            );
                        }
                        drop(held);
                        dispatcher.inner.deliverer.wake();
                        dispatcher.wake();
                    }
                },
                // Cancelled or moved since it was picked. Should the store ever offer what it then
                // refuses, this is no circle that burns.
                Err(store::Error::Stale(_)) => {
                    drop(held);
                    tokio::time::sleep(MIN_POLL).await;
                    dispatcher.wake();
                }
                Err(error) => {
                    tracing::warn!(dispatch.id = %id, "{id} was not executed: {error}");
                    dispatcher.give_back(id, attempt).await;
                }
            }
        });
    }

    /// Executes what has begun, then lets the next one in.
    async fn go_on(
        &self,
        begun: Box<Begun>,
        dispatch: Box<DispatchRequest>,
        adapter: &Adapter,
        held: Reservation,
    ) {
        let inner = &self.inner;
        let id = begun.lease.id;
        let awaited = begun.dispatch.session.is_some() || held.alone.is_some();
        // Large; where it lies it is not copied with the task around it.
        let attempt = Box::pin(inner.attempt(begun, dispatch, &held.permit, &held.place.stop));
        match attempt.await {
            Ok(()) => {
                drop(held);
                if awaited || inner.waiting_providers.is_at(adapter.provider()) {
                    self.wake();
                }
            }
            Err(error) => {
                tracing::error!(
                    "the end of {id} was not recorded, which the next start settles: {error}",
                );
                // It was, if the answer to an earlier attempt to record it was lost.
                inner.deliverer.wake();
            }
        }
    }

    /// Whether an attempt has begun is not known, because the store failed. If it has, nobody runs it:
    /// it goes back to the queue.
    async fn give_back(&self, id: DispatchId, attempt: u32) {
        let finisher = &self.inner.finisher;
        let lease = Lease {
            id,
            attempt,
            epoch: finisher.store.epoch(),
        };
        let mut pause = PAUSE.0;
        loop {
            let claim = Claim::Attempt(lease.clone());
            match finisher
                .requeue(claim, "the store failed as it began")
                .await
            {
                Err(store::Error::Unavailable(_)) => tokio::time::sleep(pause).await,
                Ok(()) => return self.wake(),
                // It had not begun.
                Err(
                    store::Error::Stale(_)
                    | store::Error::NotFound
                    | store::Error::InvalidState(_)
                    | store::Error::Unreadable(_),
                ) => return,
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

fn started(adapter: &Adapter, now: Timestamp) -> NewEvent {
    let provider = adapter.provider();
    NewEvent::new(kind::STARTED, now).with(&At { provider })
}
