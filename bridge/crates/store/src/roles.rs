//! Roles of a store: the questions that one part of the bridge asks. A component takes the roles that it uses.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::watch;

use forge_base::digest::Digest;
use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::{DeliveryId, DispatchId, RunId};

use crate::Result;
use crate::destination::{DueQuery, OpenBreaker};
use crate::durability::Durability;
use crate::meters::Meters;
use crate::node::{Node, NodeRecord};
use crate::progress::StoreHealth;
use crate::record::{
    Acceptance, Acknowledged, Acknowledgement, Approval, ApprovalFilter, CancelRequest, Claim,
    ClaimLimits, Claimed, Content, Counts, Decision, DeliveryFilter, DeliveryPayload,
    DeliveryRecord, DispatchFilter, DispatchRecord, DueDelivery, EventFilter, EventPage, Finish,
    Finished, Home, IdempotencyKey, Interrupted, Intervention, InterventionFilter, KeyOwner, Known,
    Lease, LogBounds, NewDispatch, NewRun, NewSignal, OtherSignal, Page, Piece, Progress, Ready,
    Replay, Requeue, Reroute, RunArtifact, RunArtifactInfo, RunChange, RunFilter, RunOpened,
    RunRecord, Settlement, SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalRecorded,
    SignalSession, SignalSessionFilter, SignalSource, SignalSums, SignalTotals, SpendingSums,
    Swept, SweptSignals,
};
use crate::sealed::{Resealed, Sealed};
use crate::ticket::Ticket;

/// Durable store: all roles. Every method that changes something returns after its commit is synced to disk.
pub trait Store:
    Accept
    + Queue
    + Approvals
    + Executions
    + Outbox
    + EventLog
    + Records
    + Runs
    + Signals
    + Secrets
    + Nodes
    + Maintenance
{
}

impl<T> Store for T where
    T: Accept
        + Queue
        + Approvals
        + Executions
        + Outbox
        + EventLog
        + Records
        + Runs
        + Signals
        + Secrets
        + Nodes
        + Maintenance
{
}

/// Accepting dispatches.
#[async_trait]
pub trait Accept: Send + Sync + 'static {
    /// Dispatch that holds this key, if any: `transition::holder`.
    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>>;
    /// Records the dispatch, its key and its first events, or returns the holder of the key. The key rules of
    /// `record::Known::verdict` are applied inside the transaction. The value of a `KeySpace::Task` key is the task
    /// id. A duplicate of a finished dispatch makes its delivery due again; a take-over settles the old dispatch's
    /// pending or dead delivery as superseded. With `start` set and nothing to wait for, the dispatch is running when
    /// this returns, as if `claim` had been called.
    async fn accept(&self, new: NewDispatch) -> Result<Acceptance>;
}

/// Scheduling of queued dispatches.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Dispatches that can start now on this adapter, by priority, then by age. Leaves out those that wait for a time,
    /// for their session or for an approval, and those with a cancel request.
    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>>;
    /// Adapters that have queued dispatches, with the number of each.
    async fn queues(&self) -> Result<Vec<(String, u64)>>;
    /// Makes dispatches whose `notBefore` has passed ready to start; returns their number.
    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize>;
    /// Queued dispatches whose `start_by` has passed.
    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>>;
    /// Queued dispatches with a cancel request but no result: a crash came between the two.
    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>>;
    /// Earliest time at which `promote` or `overdue` will have something to do.
    async fn next_queue_event(&self) -> Result<Option<Timestamp>>;
    /// Moves a dispatch that never started to another adapter. If the adapter or the session changes, the dispatch
    /// goes to the end of its new session's queue. `Error::Stale` if it has started or was cancelled.
    async fn reroute(&self, reroute: Reroute) -> Result<()>;
}

/// Dispatches that are held until they are approved. A rejection is the `finish` of `Claim::Rejected`.
#[async_trait]
pub trait Approvals: Send + Sync + 'static {
    /// Lets a held dispatch enter the queue, and appends the event. `Error::InvalidState` if it is not held: it was
    /// decided, cancelled or finished.
    async fn approve(&self, id: DispatchId, decision: Decision, event: NewEvent) -> Result<()>;
    /// A page of held or decided dispatches, in the order of acceptance, newest first.
    async fn approvals(&self, filter: ApprovalFilter) -> Result<Page<Approval>>;
}

/// Attempts: start, progress and end of an execution.
#[async_trait]
pub trait Executions: Send + Sync + 'static {
    /// Number of the present epoch of this node; each open begins a higher one, and so does a new lease.
    fn epoch(&self) -> u64;
    /// Marks dispatches as running that `Queue::ready` would return, in its order: for each a new attempt under this
    /// epoch and the event, all in one transaction. A last attempt (`rules::is_last_attempt`) is passed over while
    /// another one of this epoch is running, and so is a record that cannot be read; the ones behind it are claimed.
    /// After an error nothing is marked.
    async fn claim(
        &self,
        provider: &str,
        limits: ClaimLimits,
        started: NewEvent,
    ) -> Result<Vec<Claimed>>;
    /// Appends events, and the session id and usage if set. `Error::Stale` if the lease is not current.
    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()>;
    /// Writes result, last events and delivery in one transaction. `Finished::CancelRequested`, with nothing written,
    /// if a cancel request was recorded first and the result is not `cancelled`.
    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished>;
    /// Returns the dispatch to its old place in the queue for another attempt, without a result. `start_by` moves, so
    /// that it can wait there as long as a new one. `Error::InvalidState` if a cancel was requested: the caller then
    /// finishes it.
    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()>;
    /// Records a cancel request; on disk when it returns.
    async fn request_cancel(&self, id: DispatchId, at: Timestamp) -> Result<CancelRequest>;
    /// Running attempts of epochs that have ended, oldest first. The caller repeats this until it returns none.
    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>>;
}

/// Deliveries that are pending, and the circuit breakers of their receivers.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Due deliveries, at most `per_origin` for each origin that is not excluded, so that the backlog of a dead
    /// receiver does not hide the others.
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>>;
    /// Earliest due time among pending deliveries of origins that are not excluded; it can be in the past.
    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>>;
    /// Applies `transition::follow_clock` to the pending deliveries; returns the number of those that moved.
    async fn follow_clock(&self, now: Timestamp) -> Result<u64>;
    /// Content of a delivery. `Error::NotFound` if retention has removed it.
    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload>;
    /// Records the outcome of one attempt. `Error::InvalidState` if the delivery is not pending.
    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()>;
    /// Makes deliveries due again; returns their number. `since` is compared with their creation, which is the finish
    /// of their dispatch. `Error::NotFound` if `Replay::One` names an unknown delivery.
    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64>;
    /// Number of deliveries that `replay` would make due now.
    async fn count_replay(&self, replay: &Replay) -> Result<u64>;
    /// Due deliveries to this origin whose `give_up_after` has passed.
    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>>;
    /// Open circuit breakers, at most `destination::MAX_BREAKERS`.
    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>>;
    /// Stores the `open` breakers and deletes those of the `closed` origins. Above the bound, those that would be
    /// tried first are dropped.
    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()>;
    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>>;
    /// A page of deliveries in the order of their dispatches, newest first, each with its last attempt only. Pages
    /// can be short, as in `dispatches`.
    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>>;
    /// Deliveries of one dispatch, oldest first.
    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>>;
}

/// The event log, and the events that belong to no dispatch and no run.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Identifies this store's event history in cursors.
    fn log(&self) -> &LogName;
    /// Position of the newest committed event. A hint to wake readers; the log is authoritative.
    fn changes(&self) -> watch::Receiver<u64>;
    fn log_bounds(&self) -> LogBounds;
    /// The bounds as the store has them now: those in memory can be behind what another node has committed.
    async fn stored_log_bounds(&self) -> Result<LogBounds> {
        Ok(self.log_bounds())
    }
    /// Events strictly after a position, in order. Reads at most `limit` events or 1 MiB of them and returns the
    /// position it has read to, so that a filter that matches nothing still makes progress.
    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage>;
    /// The newest event of one dispatch.
    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>>;
    /// Appends events of an adapter that belong to no dispatch and no run.
    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()>;
}

/// Reading of dispatches.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Record counts, kept in memory by the writer; exact after every commit.
    fn counts(&self) -> Counts;
    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>>;
    /// The request as it was given to `accept`; `Error::NotFound` if there is none.
    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>>;
    /// Dispatches with this task id, newest first: all, or those of one owner and those of a store of before, which have
    /// none.
    async fn by_task(
        &self,
        task_id: &str,
        owner: Option<KeyOwner>,
        limit: usize,
    ) -> Result<Vec<DispatchRecord>>;
    /// A page of dispatches, newest first, without results. It can be shorter than its limit, even empty, while
    /// `next` is set: the rows that one page looks at are bounded.
    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>>;
    /// Part of a content: at most `limit` bytes from `offset`. `None` if nothing is stored, or only zero bytes.
    async fn content(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Piece>>;
    /// Sums over the usage of dispatches that ended since a time. A million dispatches at most, the newest.
    async fn spending(&self, since: Timestamp) -> Result<SpendingSums>;
}

/// Runs: their events, their state and their artifacts.
#[async_trait]
pub trait Runs: Send + Sync + 'static {
    /// Stores a new run in the status `Planning`, with its first events, or returns the holder of its key. One that is not
    /// admitted is not stored.
    async fn open_run(&self, run: NewRun) -> Result<RunOpened>;
    /// Makes a change in one transaction; returns the log position of the run's last event. `Error::NotFound` if there
    /// is no such run. `Error::InvalidState` if the run has ended or has other events than `after_seq` says, if the end
    /// does not fit the status, or if artifacts exceed the bounds of `runs`.
    async fn append_run(&self, change: RunChange) -> Result<u64>;
    async fn run(&self, id: RunId) -> Result<Option<RunRecord>>;
    /// A page of runs, newest first, without projections.
    async fn runs(&self, filter: RunFilter) -> Result<Page<RunRecord>>;
    /// Runs that have not ended, in the order of their ids after `after`, so oldest first.
    async fn live_runs(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>>;
    /// Artifacts of a run, in the order of their paths; none if there is no such run.
    async fn run_artifacts(&self, id: RunId) -> Result<Vec<RunArtifactInfo>>;
    async fn run_artifact(&self, id: RunId, path: &str) -> Result<Option<RunArtifact>>;
}

/// Signals of AI tools, and their sessions.
#[async_trait]
pub trait Signals: Send + Sync + 'static {
    /// Stores a new session and its events. `Error::InvalidState` if there is one of this id.
    async fn open_signal_session(
        &self,
        session: SignalSession,
        events: Vec<NewEvent>,
    ) -> Result<()>;
    /// Ends and opens the sessions that the signal names, has its record judged and stores it, counts it in its session
    /// and appends the events, in one transaction. A repeat writes nothing at all and is not judged. `Error::NotFound` if its session is neither stored
    /// nor opened, `Error::InvalidState` if the one to open is stored.
    async fn record_signal(&self, signal: NewSignal) -> Result<SignalRecorded>;
    /// Ends those of the sessions that are stored and have not ended, and appends the events.
    async fn end_signal_sessions(
        &self,
        ends: Vec<(String, Timestamp)>,
        events: Vec<NewEvent>,
    ) -> Result<()>;
    /// Sessions of this source with `last_at` at or after `since`, ended ones too, in the order of their ids after
    /// `after`.
    async fn recent_signal_sessions(
        &self,
        source: SignalSource,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>>;
    /// A session and its last records, newest first.
    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>>;
    /// Calls `mark` between two signals in the order in which they are stored, again if its transaction is repeated;
    /// returns the position of the last signal before it.
    async fn mark_signals(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64>;
    /// Sums over the records of a group that arrived since a time, up to and with a position, by the minute of their
    /// arrival.
    async fn signal_amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>>;
    /// Signals that other bridges of the store have recorded after a position, and the position to go on from; without one,
    /// none and the last position.
    async fn signals_of_others(&self, after: Option<u64>) -> Result<(u64, Vec<OtherSignal>)> {
        Ok((after.unwrap_or(0), Vec::new()))
    }
    /// Sums over the records that arrived since a time, by the values of a property. A million records at most, the
    /// newest.
    async fn signal_sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums>;
    /// Interventions that are open, newest first.
    async fn open_interventions(&self, limit: usize) -> Result<Vec<Intervention>>;
    /// Notes the first acknowledgement of an intervention, and appends the events. One that began in a session of
    /// another owner than this is unknown; with `None` the owner does not matter.
    async fn acknowledge_intervention(
        &self,
        id: &str,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged>;
    /// A page of interventions, newest first.
    async fn interventions(&self, filter: InterventionFilter) -> Result<Page<Intervention>>;
    /// Records after the position that was kept, of all sessions, in the order in which they are stored; `None` while
    /// none was kept.
    async fn signals_to_forward(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>>;
    /// Keeps the position up to and with which records were forwarded.
    async fn keep_forwarded(&self, position: u64) -> Result<()>;
    /// A page of sessions, newest first by start. Pages can be short, as in `dispatches`.
    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>>;
}

/// Sealed values: named ones, and the secrets of dispatches.
#[async_trait]
pub trait Secrets: Send + Sync + 'static {
    /// A named sealed value, such as the default signing secret.
    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>>;
    /// Writes a named sealed value unless there is one; returns the stored one.
    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>>;
    /// A page of sealed values: first the named ones, then the secrets of dispatches, oldest first. Starts at 0,
    /// looks at `limit` dispatches and continues at `next`.
    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>>;
    /// Replaces sealed values; returns their number. A value that is no longer equal to `from` stays as it is.
    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64>;
}

/// The nodes: bridges that share the store. What is given here is right for a store with one node.
#[async_trait]
pub trait Nodes: Send + Sync + 'static {
    /// This node.
    fn node(&self) -> &Node;
    /// All nodes, those whose lease has ended too.
    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        Ok(vec![self.node().record()])
    }
    /// Nodes that those of these dispatches belong to which have not started, or have to start again.
    async fn homes(&self, _dispatches: &[DispatchId]) -> Result<Vec<(DispatchId, Home)>> {
        Ok(Vec::new())
    }
    /// Notes for all nodes that an adapter is paused, or no longer is.
    async fn note_pause(&self, _provider: &str, _is_paused: bool) -> Result<()> {
        Ok(())
    }
    /// Keeps a ticket; false if there are too many.
    async fn keep_ticket(&self, ticket: Ticket, now: Timestamp) -> Result<bool> {
        Ok(self.node().tickets.keep(ticket, now))
    }
    /// Removes a ticket, which can be used once; `None` if it is unknown or expired.
    async fn take_ticket(&self, hash: &Digest, now: Timestamp) -> Result<Option<Ticket>> {
        Ok(self.node().tickets.take(hash, now))
    }
}

/// State of the store itself, retention and close.
#[async_trait]
pub trait Maintenance: Send + Sync + 'static {
    /// Identifies this store in the environment of child processes; created once.
    fn store_id(&self) -> &str;
    /// Loss that an answered change outlives, as of the start.
    fn durability(&self) -> Durability;
    /// Ability to make changes, with the reason if it is impaired.
    fn health(&self) -> StoreHealth;
    /// `Ok` while changes can be written, otherwise the reason why not.
    fn status(&self) -> std::result::Result<(), String> {
        self.health().writable()
    }
    /// Returns, with the reason, once the writer has made no progress for `Config::stall`. Changes that waited for it are
    /// refused then and never made; the outcome of those under way becomes known when they end.
    async fn stalled(&self) -> String;
    /// Returns after the store's files were removed or replaced under it, and never otherwise. Changes are refused then.
    async fn moved(&self);
    /// Performance metrics; record counts are in `counts`.
    fn meters(&self) -> Arc<Meters>;
    /// Removes expired records in one small step: at most `limit` finished dispatches without a pending delivery,
    /// with everything that belongs to them, as many ended runs, and a few old events that belong to neither. A run and
    /// its events are gone for readers at once; its rows go in further steps.
    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept>;
    /// Removes old signals in one small step: at most `limit` that arrived before this time, in the order of arrival;
    /// when none is left, at most `limit` sessions without records whose start and `last_at` are before it.
    async fn sweep_signals(&self, before: Timestamp, limit: usize) -> Result<SweptSignals>;
    /// Writes the queued changes, checkpoints and closes. Later calls fail. Returns the reason if the writer made no
    /// progress for `Config::stall`: what was answered is on disk, and the rest is left to the next start.
    async fn close(&self) -> Option<String>;
}
