//! What goes into the store and what comes out of it. Requests, results and secrets are opaque bytes
//! here; only what is searched, ordered or compared is a field.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use forge_base::event::{Event, NewEvent};
use forge_base::id::{DeliveryId, DispatchId};

/// Two namespaces: a header never meets a task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeySpace {
    /// The `Idempotency-Key` header.
    Header,
    /// The `taskId`, when there is no header.
    Task,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdempotencyKey {
    pub space: KeySpace,
    pub value: String,
}

/// What a key stands for. `dispatch` comes without its result.
#[derive(Clone, Debug)]
pub struct Known {
    pub dispatch: DispatchRecord,
    /// What counts of its request, see [`NewDispatch::counted`].
    pub counted: String,
}

/// What a second request under a known key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyVerdict {
    /// The stored one; when it is finished its delivery is made due again.
    Same,
    /// The key was used for another body.
    Conflict,
    /// A new dispatch takes the key over; the old one's undelivered deliveries are superseded.
    TakeOver,
}

/// A dispatch as it is accepted.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewDispatch {
    pub id: DispatchId,
    pub key: IdempotencyKey,
    pub task_id: String,
    pub agent_id: String,
    pub run_id: Option<String>,
    pub trace_id: String,
    /// The adapter it was routed to.
    pub provider: String,
    /// The caller named the adapter; it is never routed again.
    pub pinned: bool,
    /// What routing decided, as JSON.
    pub routing: Box<RawValue>,
    /// The validated dispatch as JSON, without secrets.
    pub request: Box<RawValue>,
    /// So many bytes of it count: the same step sent again begins with the same.
    pub counted_bytes: usize,
    /// Its secrets, sealed.
    pub secrets: Option<Vec<u8>>,
    /// Set only when the chosen adapter honours it: dispatches of one adapter and session run one
    /// after another in the order in which they may start.
    pub session: Option<String>,
    pub priority: i8,
    pub accepted_at: Timestamp,
    pub not_before: Option<Timestamp>,
    /// When it has not started by then it ends as `queue_timeout`.
    pub start_by: Timestamp,
    /// Where its result is owed; `None` when the caller asked for no callback.
    pub callback: Option<Callback>,
    /// `execution.accepted`, `execution.queued`.
    pub events: Vec<NewEvent>,
    /// The caller has room for it: when nothing keeps it waiting, its first attempt begins in the same
    /// commit, with this event.
    pub start: Option<NewEvent>,
    /// At most so many dispatches may wait; one more is `Acceptance::QueueFull`.
    pub queue_limit: u64,
}

impl NewDispatch {
    /// What tells its request from that of another step.
    pub fn counted(&self) -> &str {
        &self.request.get()[..self.counted_bytes]
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Callback {
    pub url: String,
    /// Scheme, host and port, normalised: what concurrency and replay go by.
    pub origin: String,
}

#[derive(Debug)]
pub enum Acceptance {
    /// On disk; `retry_of` when it took the key of a failed one over.
    Accepted {
        retry_of: Option<DispatchId>,
        /// Its first attempt, when `NewDispatch::start` asked for it and it need not wait.
        begun: Option<Box<Begun>>,
    },
    /// The same request again, without its result; when it was finished its delivery is due again.
    Duplicate(Box<DispatchRecord>),
    /// The key stands for another body.
    Conflict(DispatchId),
    QueueFull,
}

/// A dispatch that may start.
#[derive(Clone, Debug)]
pub struct Ready {
    pub id: DispatchId,
    pub provider: String,
    pub pinned: bool,
    /// Attempts so far; unpinned dispatches with none may be routed again.
    pub attempts: u32,
}

#[derive(Debug)]
pub struct Reroute {
    pub id: DispatchId,
    pub provider: String,
    pub session: Option<String>,
    pub routing: Box<RawValue>,
}

/// The right to write about one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: DispatchId,
    pub attempt: u32,
    pub epoch: u64,
}

/// Who says that a dispatch ends or goes back.
#[derive(Clone, Debug)]
pub enum Claim {
    /// It is queued and nobody runs it.
    Unstarted(DispatchId),
    /// The attempt that this process runs.
    Attempt(Lease),
    /// An attempt of an older epoch, whose process is gone.
    Interrupted { id: DispatchId, attempt: u32 },
}

impl Claim {
    pub fn id(&self) -> DispatchId {
        match self {
            Claim::Unstarted(id) | Claim::Interrupted { id, .. } => *id,
            Claim::Attempt(lease) => lease.id,
        }
    }
}

/// What an execution needs, handed out with the running mark.
#[derive(Debug)]
pub struct Begun {
    pub lease: Lease,
    pub dispatch: DispatchRecord,
    pub secrets: Option<Vec<u8>>,
    /// The session id that an earlier attempt recorded.
    pub recorded_session: Option<String>,
    /// What earlier attempts used, in the words of `dispatch/budget`; opaque.
    pub spent: Option<Box<RawValue>>,
}

/// A piece of an execution, written as one batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    pub events: Vec<NewEvent>,
    /// The runtime's session id, once it is known: what `recovery: resume` continues.
    pub session: Option<String>,
    /// Replaces `Begun::spent` for later attempts.
    pub spent: Option<Box<RawValue>>,
}

/// How many events the dispatch has up to its result, and where the last one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTotals {
    pub count: u64,
    pub last: u64,
}

/// A terminal result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finish {
    pub at: Timestamp,
    /// `None` is `ok`.
    pub error_code: Option<String>,
    /// The result of `contract.md` §2 as a JSON object, all but `events`, which the store adds.
    pub result: Box<RawValue>,
    /// The whole output, kept apart when the result holds only its beginning.
    pub output: Option<String>,
    /// The last events, `execution.completed` or `execution.failed` at the end.
    pub events: Vec<NewEvent>,
    /// Where the result goes; made due at once.
    pub delivery: Option<NewDelivery>,
    /// Retention starts at the later of the finish and the delivery's end.
    pub retention: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct NewDelivery {
    /// While nothing is sent to its receiver it ends so long after it was first made due, or replayed.
    pub give_up_after: Duration,
}

/// A result that is on disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    pub totals: EventTotals,
    /// What the delivery will send.
    pub body: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Finished {
    Recorded(Recorded),
    /// A cancel request came first: finish again with a result that says `cancelled`.
    CancelRequested,
}

#[derive(Debug)]
pub struct Requeue {
    /// `execution.retrying`, saying why.
    pub event: NewEvent,
}

#[derive(Debug, PartialEq, Eq)]
pub enum CancelRequest {
    /// It has not started; the caller finishes it at once.
    Queued,
    /// It runs in this process.
    Running {
        attempt: u32,
    },
    /// Too late.
    Finished,
    Unknown,
}

/// What a crash left running.
#[derive(Debug)]
pub struct Interrupted {
    pub dispatch: DispatchRecord,
    pub attempt: u32,
    pub request: Box<RawValue>,
    pub recorded_session: Option<String>,
    pub cancel_requested: bool,
    pub spent: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub dispatch: DispatchId,
    pub callback: Callback,
    /// Attempts made so far.
    pub attempts: u32,
    /// When the present series of attempts began: first made due, or replayed.
    pub since: Timestamp,
}

#[derive(Debug)]
pub struct DeliveryPayload {
    /// The result with `events` in it.
    pub body: Vec<u8>,
    pub trace_id: String,
    /// The dispatch as it was accepted: holds the callback's headers and retry policy.
    pub request: Box<RawValue>,
    pub secrets: Option<Vec<u8>>,
}

/// What became of a delivery that was due. The store numbers the attempts itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Settlement {
    /// When it ended, if it did.
    pub at: Timestamp,
    /// The attempt that was made; a delivery can also end without a further one.
    pub attempt: Option<DeliveryAttempt>,
    pub next: AfterAttempt,
    /// `callback.attempted` and, at the end, `callback.delivered` or `callback.dead`.
    pub events: Vec<NewEvent>,
    pub retention: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterAttempt {
    Delivered,
    Retry { due: Timestamp },
    Dead,
}

/// One attempt as operators see it. The store keeps the first 5 and the last 20.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryAttempt {
    /// 1 for the first.
    pub number: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub at: Timestamp,
    pub duration_ms: u64,
    /// The HTTP status, when there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What went wrong, when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The first 20 kB of the answer's body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// What to deliver again.
#[derive(Clone, Debug)]
pub enum Replay {
    /// Whatever its state.
    One(DeliveryId),
    Many {
        /// `host` or `host:port`.
        host: Option<String>,
        since: Option<Timestamp>,
        status: DeliveryState,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Pending,
    Delivered,
    Dead,
    Superseded,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryRecord {
    pub id: DeliveryId,
    pub dispatch_id: DispatchId,
    pub task_id: String,
    pub url: String,
    pub status: DeliveryState,
    pub attempt_count: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub created_at: Timestamp,
    /// The next attempt, while pending.
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub due_at: Option<Timestamp>,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub settled_at: Option<Timestamp>,
    pub attempts: Vec<DeliveryAttempt>,
}

/// Where a dispatch stands.
#[derive(Clone, Debug, PartialEq)]
pub enum DispatchState {
    /// Recorded, waiting for its turn, its time or its session.
    Queued,
    Running {
        attempt: u32,
        started_at: Timestamp,
    },
    /// `error_code: None` is `ok`.
    Finished {
        at: Timestamp,
        error_code: Option<String>,
    },
}

/// The record of one dispatch, all but its request.
#[derive(Clone, Debug)]
pub struct DispatchRecord {
    pub id: DispatchId,
    pub task_id: String,
    pub agent_id: String,
    pub run_id: Option<String>,
    pub trace_id: String,
    pub provider: String,
    pub pinned: bool,
    pub routing: Box<RawValue>,
    pub session: Option<String>,
    pub priority: i8,
    pub state: DispatchState,
    /// Attempts begun so far.
    pub attempts: u32,
    pub cancel_requested: bool,
    pub accepted_at: Timestamp,
    pub not_before: Option<Timestamp>,
    pub start_by: Timestamp,
    pub first_started_at: Option<Timestamp>,
    pub retry_of: Option<DispatchId>,
    pub callback: Option<Callback>,
    /// The result of `contract.md` §2 with `events`, once finished. Lists leave it out.
    pub result: Option<Box<RawValue>>,
}

#[derive(Debug)]
pub struct Output {
    pub bytes: Vec<u8>,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Queued,
    Running,
    Ok,
    Error,
}

#[derive(Clone, Debug, Default)]
pub struct DispatchFilter {
    pub status: Option<Status>,
    pub provider: Option<String>,
    pub agent_id: Option<String>,
    pub run_id: Option<String>,
    /// Accepted at or after.
    pub since: Option<Timestamp>,
    /// `Page::next` of the page before.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub status: Option<DeliveryState>,
    /// `host` or `host:port`.
    pub host: Option<String>,
    pub before: Option<u64>,
    pub limit: usize,
}

/// Newest first; `next` continues, `None` is the end.
#[derive(Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    pub dispatch: Option<DispatchId>,
    pub provider: Option<String>,
    pub agent_id: Option<String>,
    pub task_id: Option<String>,
    pub kind: Option<String>,
}

#[derive(Debug)]
pub struct EventPage {
    pub events: Vec<Arc<Event>>,
    /// Everything up to here was looked at.
    pub scanned: u64,
    /// There may be more after `scanned` right now.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The highest position ever given out; 0 when none was.
    pub issued: u64,
    /// The highest position that retention has removed; a firehose cursor below it has a gap.
    pub removed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub queued: u64,
    pub running: u64,
    pub deliveries_pending: u64,
    pub deliveries_dead: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub dispatches: u64,
    /// Another step would find more.
    pub more: bool,
}
