//! The durable record: what was accepted, what ran, what is owed. Speaks in terms of the domain and
//! in batches, so that another database is a folder and not a rewrite. Knows nothing of HTTP, of
//! adapters, or of what stands inside a request or a result.
#![forbid(unsafe_code)]

#[cfg(feature = "model")]
pub mod contract;
pub mod destination;
#[cfg(feature = "model")]
pub mod memory;
pub mod meters;
pub mod record;
pub mod rules;
pub mod sealed;
pub mod transition;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::watch;

use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::{DeliveryId, DispatchId};

use destination::{DueQuery, OpenBreaker};
use meters::Meters;
use record::{
    Acceptance, Begun, CancelRequest, Claim, Counts, DeliveryFilter, DeliveryPayload,
    DeliveryRecord, DispatchFilter, DispatchRecord, DueDelivery, EventFilter, EventPage, Finish,
    Finished, IdempotencyKey, Interrupted, Known, Lease, LogBounds, NewDispatch, Output, Page,
    Progress, Ready, Replay, Requeue, Reroute, Settlement, Swept,
};
use sealed::{Resealed, Sealed};

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Connections that read, besides the one that writes.
    pub readers: usize,
    /// Length of the write-ahead log above which it is truncated, even if that delays writers.
    pub wal_limit_bytes: u64,
    /// Longest wait for a write lock that another process holds. After it changes are refused until the lock is released.
    #[serde(with = "forge_base::duration")]
    pub busy_timeout: Duration,
    /// Bounds of the write queue.
    pub queue_bytes: usize,
    pub queue_ops: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            readers: 3,
            wal_limit_bytes: 64 << 20,
            busy_timeout: Duration::from_secs(10),
            queue_bytes: 64 << 20,
            queue_ops: 8192,
        }
    }
}

/// Why the store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The disk, the file or the database refused; nothing may be promised until it is back.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A row is damaged, or a newer version wrote it; the others are as they were.
    #[error("a record cannot be read: {0}")]
    Unreadable(String),
    /// The claim names an attempt or epoch that is no longer the current one.
    #[error("the claim on {0} is no longer current")]
    Stale(DispatchId),
    /// No such record.
    #[error("no such record")]
    NotFound,
    /// The record is not in a state that allows this.
    #[error("{0}")]
    InvalidState(&'static str),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One durable store. Every method that changes something returns after its commit is on disk.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Names this store in the environment of child processes; made once.
    fn store_id(&self) -> &str;
    /// Names the history of events in this store.
    fn log(&self) -> &LogName;
    /// The boot that this process is; one more at every open.
    fn epoch(&self) -> u64;
    /// Whether the store can be written just now, and if not, why.
    fn status(&self) -> std::result::Result<(), String>;
    /// The highest event position that is committed. A hint to wake readers; the log is the truth.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Kept in memory by the writer; exact at every commit.
    fn counts(&self) -> Counts;
    /// How it works; what it holds is in `counts`.
    fn meters(&self) -> Arc<Meters>;

    // Accepting.

    /// What is known under this key.
    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>>;
    /// Records the dispatch, its key and its first events, or says what the key already stands for.
    /// The key rules of `record::Known::verdict` are applied again inside the transaction. A key of
    /// `KeySpace::Task` is the task id itself. A duplicate of a finished dispatch makes its delivery due
    /// again; a take-over settles the old one's pending and dead deliveries as superseded. With `start` and
    /// nothing to wait for it is running when this returns, as if `begin` had been called.
    async fn accept(&self, new: NewDispatch) -> Result<Acceptance>;

    // Scheduling.

    /// What may start now on this adapter, best first (priority, then age); dispatches that wait for
    /// a time or for their session are not in it, nor those with a cancel request.
    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>>;
    /// Names of adapters that have queued dispatches, with how many.
    async fn queues(&self) -> Result<Vec<(String, u64)>>;
    /// Lets those start whose `notBefore` has come. How many.
    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize>;
    /// Queued dispatches whose `start_by` has passed.
    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>>;
    /// Queued dispatches with a cancel request that nobody has finished (a crash came between).
    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>>;
    /// The next moment at which `promote` or `overdue` will have something to do.
    async fn next_queue_event(&self) -> Result<Option<Timestamp>>;
    /// Moves a dispatch that never started to another adapter; when adapter or session change, it goes
    /// to the end of its new session's queue. `Error::Stale` when it started or was cancelled.
    async fn reroute(&self, reroute: Reroute) -> Result<()>;

    // Executing.

    /// The durable `running` mark: a new attempt under this epoch. `Error::Stale` when the dispatch is
    /// not queued any more, waits for its time or session, was cancelled, or belongs to another adapter.
    /// Comes with its request, as it was given to `accept`.
    async fn begin(
        &self,
        id: DispatchId,
        provider: &str,
        started: NewEvent,
    ) -> Result<(Begun, Box<RawValue>)>;
    /// Appends what happened. `Error::Stale` when the lease is not current.
    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()>;
    /// Result, last events and delivery in one transaction. `Finished::CancelRequested` when a cancel
    /// was recorded first and the result does not honour it: nothing is written then.
    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished>;
    /// Back to the queue for another attempt, without a result, in its old place. It may wait there as
    /// long as a new one: `start_by` moves. `Error::InvalidState` when a cancel was requested: then it is
    /// to be finished.
    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()>;
    /// Records the wish to cancel; on disk when it returns.
    async fn request_cancel(&self, id: DispatchId, at: Timestamp) -> Result<CancelRequest>;
    /// What ran under an older epoch, oldest first. Asked until empty, at boot.
    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>>;
    /// Events of an adapter that belong to no dispatch.
    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()>;

    // Delivering.

    /// Deliveries that are due, at most `per_origin` for each origin that is not excluded, so that a
    /// dead receiver with a million due deliveries does not hide the others.
    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>>;
    /// The earliest due time among pending deliveries, past or future, of origins not excluded.
    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>>;
    /// What is sent. `Error::NotFound` when retention has taken it.
    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload>;
    /// The outcome of one attempt. `Error::InvalidState` when the delivery is not pending any more.
    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()>;
    /// Makes deliveries due again; how many. `since` compares with their creation, which is the finish
    /// of their dispatch. `Error::NotFound` when the one that is named does not exist.
    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64>;

    /// Deliveries to this origin that are due and have not ended in the time that they were given.
    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>>;
    /// Receivers that are not called for the time being, at most `destination::MAX_BREAKERS`.
    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>>;
    /// Notes those that are open now, and forgets those of the origins that are not any more. Beyond the
    /// bound, those that would be tried first are not kept.
    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()>;

    // Reading.

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>>;
    /// A dispatch as it was given to `accept`; `Error::NotFound` when there is none.
    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>>;
    /// All dispatches with this task id, newest first.
    async fn by_task(&self, task_id: &str, limit: usize) -> Result<Vec<DispatchRecord>>;
    /// Newest first, without results. A page may be shorter than its limit, even empty, while `next` says
    /// that there is more: a filter that matches little is answered in bounded steps.
    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>>;
    /// A piece of the output that was kept apart: at most `limit` bytes from `offset`. `None` when the
    /// result holds it all.
    async fn output(&self, id: DispatchId, offset: u64, limit: usize) -> Result<Option<Output>>;
    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>>;
    /// In the order of their dispatches, newest first, each with its last attempt alone; short pages as in
    /// `dispatches`.
    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>>;
    /// Deliveries of one dispatch, oldest first.
    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>>;
    /// Events strictly after a position, in order. Looks at no more than `limit` events, or 1 MiB of
    /// them, and says how far it looked, so that a filter that matches nothing still makes progress.
    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage>;
    /// The newest event of one dispatch.
    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>>;
    fn log_bounds(&self) -> LogBounds;

    // Keeping house.

    /// Removes what is past its retention, in one small step: at most `limit` finished dispatches to which
    /// nothing is pending, with all that belongs to them, and a few old events of no dispatch.
    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept>;
    /// A named sealed value, such as the default signing secret.
    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>>;
    /// Writes a named sealed value unless there is one; returns the one that counts.
    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>>;
    /// What lies sealed: first the named values, then the secrets of dispatches, oldest first. Begins at 0,
    /// looks at `limit` dispatches, and goes on at `next`.
    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>>;
    /// Puts what was sealed anew in its place; how much. What changed meanwhile stays as it is.
    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64>;
    /// Writes what is queued, checkpoints and closes. Later calls fail.
    async fn close(&self);
}
