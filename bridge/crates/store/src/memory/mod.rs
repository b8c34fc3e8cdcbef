//! In-memory store, plain maps behind one lock: the reference model for the real stores, and the store of other
//! components' tests. Not durable.

mod log;
mod outbox;
mod queue;
mod runs;
mod seal;
mod signals;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::Result;
use super::destination::{DueQuery, OpenBreaker};
use super::durability::Durability;
use super::meters::Meters;
use super::node::Node;
use super::progress::StoreHealth;
use super::record::{
    Acceptance, Approval, ApprovalFilter, CancelRequest, Claim, ClaimLimits, Claimed, Content,
    Counts, Decision, DeliveryFilter, DeliveryPayload, DeliveryRecord, DispatchFilter,
    DispatchRecord, DueDelivery, EventFilter, EventPage, Finish, Finished, IdempotencyKey,
    Interrupted, KeyOwner, Known, Lease, LogBounds, NewDispatch, Page, Piece, Progress, Ready,
    Replay, Requeue, Reroute, Settlement, SpendingSums, Swept, SweptSignals,
};
use super::roles::{
    Accept, Approvals, EventLog, Executions, Maintenance, Nodes, Outbox, Queue, Records, Secrets,
};
use super::sealed::{Resealed, Sealed};
use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::{DeliveryId, DispatchId};

use state::State;

/// A store in memory; clones are the same store.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    log: LogName,
    epoch: u64,
    changes: Arc<watch::Sender<u64>>,
    node: Arc<Node>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    pub fn new() -> Self {
        let log = LogName::random();
        Self {
            state: Arc::new(Mutex::new(State::new(log.clone()))),
            log,
            epoch: 1,
            changes: Arc::new(watch::Sender::new(0)),
            node: Arc::new(Node::alone("node".to_owned(), 1)),
        }
    }

    /// Simulates the next boot on the same store: running attempts become interrupted, and leases of older handles
    /// become stale.
    pub fn restart(&self) -> Self {
        let mut state = self.state();
        state.epoch += 1;
        state.served.get_mut().clear();
        Self {
            epoch: state.epoch,
            node: Arc::new(Node::alone(self.node.id.clone(), state.epoch)),
            ..self.clone()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        let result = change(&mut state);
        let issued = state.bounds.issued;
        drop(state);
        self.changes
            .send_if_modified(|seen| std::mem::replace(seen, issued) != issued);
        result
    }
}

#[async_trait]
impl Accept for Memory {
    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>> {
        Ok(self.state().recall(key))
    }

    async fn accept(&self, new: NewDispatch) -> Result<Acceptance> {
        self.write(|state| state.accept(new))
    }
}

#[async_trait]
impl Queue for Memory {
    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>> {
        Ok(self.state().ready(provider, limit))
    }

    async fn queues(&self) -> Result<Vec<(String, u64)>> {
        Ok(self.state().queues())
    }

    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.write(|state| Ok(state.promote(now, limit)))
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>> {
        Ok(self.state().overdue(now, limit))
    }

    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>> {
        Ok(self.state().cancelled_in_queue(limit))
    }

    async fn next_queue_event(&self) -> Result<Option<Timestamp>> {
        Ok(self.state().next_queue_event())
    }

    async fn reroute(&self, reroute: Reroute) -> Result<()> {
        self.write(|state| state.reroute(reroute))
    }
}

#[async_trait]
impl Approvals for Memory {
    async fn approve(&self, id: DispatchId, decision: Decision, event: NewEvent) -> Result<()> {
        self.write(|state| state.approve(id, decision, event))
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Page<Approval>> {
        Ok(self.state().approvals(&filter))
    }
}

#[async_trait]
impl Executions for Memory {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    async fn claim(
        &self,
        provider: &str,
        limits: ClaimLimits,
        started: NewEvent,
    ) -> Result<Vec<Claimed>> {
        self.write(|state| Ok(state.claim(provider, limits, &started)))
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        self.write(|state| state.append(lease, progress))
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        self.write(|state| state.finish(&claim, finish))
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        self.write(|state| state.requeue(&claim, requeue))
    }

    async fn request_cancel(&self, id: DispatchId, _at: Timestamp) -> Result<CancelRequest> {
        self.write(|state| Ok(state.request_cancel(id)))
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        Ok(self.state().interrupted(limit))
    }
}

#[async_trait]
impl Outbox for Memory {
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>> {
        Ok(self.state().due(&query))
    }

    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>> {
        Ok(self.state().next_due(exclude))
    }

    async fn follow_clock(&self, now: Timestamp) -> Result<u64> {
        self.write(|state| Ok(state.follow_clock(now)))
    }

    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        self.state().payload(id)
    }

    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        self.write(|state| state.settle(id, settlement))
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        self.write(|state| state.replay(&replay, now))
    }

    async fn count_replay(&self, replay: &Replay) -> Result<u64> {
        Ok(self.state().chosen(replay)?.len() as u64)
    }

    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>> {
        Ok(self.state().overdue_deliveries(origin, now, limit))
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        Ok(self.state().breakers.values().cloned().collect())
    }

    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()> {
        self.write(|state| {
            state.keep_breakers(open, &closed);
            Ok(())
        })
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>> {
        Ok(self.state().delivery(id))
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>> {
        Ok(self.state().deliveries(&filter))
    }

    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>> {
        Ok(self.state().deliveries_of(id))
    }
}

#[async_trait]
impl EventLog for Memory {
    fn log(&self) -> &LogName {
        &self.log
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn log_bounds(&self) -> LogBounds {
        self.state().bounds
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage> {
        Ok(self.state().events(filter, after, limit))
    }

    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>> {
        Ok(self.state().last_event(id))
    }

    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()> {
        self.write(|state| {
            state.log_unbound(Some(provider), events);
            Ok(())
        })
    }
}

#[async_trait]
impl Records for Memory {
    fn counts(&self) -> Counts {
        self.state().counts()
    }

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>> {
        Ok(self.state().dispatch(id))
    }

    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        self.state().request(id)
    }

    async fn by_task(
        &self,
        task_id: &str,
        owner: Option<KeyOwner>,
        limit: usize,
    ) -> Result<Vec<DispatchRecord>> {
        Ok(self.state().by_task(task_id, owner, limit))
    }

    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>> {
        Ok(self.state().dispatches(&filter))
    }

    async fn content(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Piece>> {
        Ok(self.state().content(id, content, offset, limit))
    }

    async fn spending(&self, since: Timestamp) -> Result<SpendingSums> {
        Ok(self.state().spending(since))
    }
}

#[async_trait]
impl Secrets for Memory {
    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.state().sealed.get(name).cloned())
    }

    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>> {
        self.write(|state| Ok(state.sealed.entry(name.to_owned()).or_insert(value).clone()))
    }

    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>> {
        Ok(self.state().sealed_page(after, limit))
    }

    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64> {
        self.write(|state| Ok(state.reseal(changes)))
    }
}

#[async_trait]
impl Nodes for Memory {
    fn node(&self) -> &Node {
        &self.node
    }
}

#[async_trait]
impl Maintenance for Memory {
    fn store_id(&self) -> &str {
        self.log.as_str()
    }

    fn durability(&self) -> Durability {
        Durability::Server
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::Well
    }

    async fn stalled(&self) -> String {
        std::future::pending().await
    }

    async fn moved(&self) {
        std::future::pending::<()>().await;
    }

    fn meters(&self) -> Arc<Meters> {
        Arc::default()
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        self.write(|state| Ok(state.sweep(now, limit)))
    }

    async fn sweep_signals(&self, before: Timestamp, limit: usize) -> Result<SweptSignals> {
        self.write(|state| Ok(state.sweep_signals(before, limit)))
    }

    async fn close(&self) -> Option<String> {
        None
    }
}
