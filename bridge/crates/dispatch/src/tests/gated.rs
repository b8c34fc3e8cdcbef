//! Executions of the in-memory store behind gates: an operation is done at once, and a closed gate keeps its answer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::memory::Memory;
use forge_store::record::{
    CancelRequest, Claim, ClaimLimits, Claimed, Finish, Finished, Interrupted, Lease, Progress,
    Requeue,
};
use forge_store::roles::Executions;
use forge_store::{Error, Result};

pub(super) struct Gated {
    store: Memory,
    pub(super) claims: Gate,
    pub(super) cancels: Gate,
    pub(super) requeues: Gate,
    /// Claims fail.
    pub(super) is_down: AtomicBool,
    pub(super) failed: AtomicUsize,
}

impl Gated {
    pub(super) fn new(store: Memory) -> Self {
        Self {
            store,
            claims: Gate::default(),
            cancels: Gate::default(),
            requeues: Gate::default(),
            is_down: AtomicBool::new(false),
            failed: AtomicUsize::new(0),
        }
    }
}

/// Open at first.
#[derive(Default)]
pub(super) struct Gate {
    is_closed: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Gate {
    pub(super) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    pub(super) fn open(&self) {
        self.is_closed.send_replace(false);
    }

    /// Waits until this number of answers is held back.
    pub(super) async fn reached(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = waiting.wait_for(|waiting| *waiting == count).await;
    }

    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _ = self.is_closed.subscribe().wait_for(|closed| !closed).await;
        self.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

#[async_trait]
impl Executions for Gated {
    fn epoch(&self) -> u64 {
        self.store.epoch()
    }

    async fn claim(
        &self,
        provider: &str,
        limits: ClaimLimits,
        started: NewEvent,
    ) -> Result<Vec<Claimed>> {
        if self.is_down.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Unavailable("it is down".to_owned()));
        }
        let claimed = self.store.claim(provider, limits, started).await;
        self.claims.pass().await;
        claimed
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        self.store.append(lease, progress).await
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        self.store.finish(claim, finish).await
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        let requeued = self.store.requeue(claim, requeue).await;
        self.requeues.pass().await;
        requeued
    }

    async fn request_cancel(&self, id: DispatchId, at: Timestamp) -> Result<CancelRequest> {
        let requested = self.store.request_cancel(id, at).await;
        self.cancels.pass().await;
        requested
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        self.store.interrupted(limit).await
    }
}
