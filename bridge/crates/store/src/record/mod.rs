//! Input and output types of the store. Requests, results and secrets are opaque bytes here; only values that are
//! searched, ordered or compared are fields.

mod approval;
mod content;
mod delivery;
mod event;
mod key;
mod run;
mod signal;
mod spending;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_base::id::DispatchId;

pub use self::approval::{Approval, ApprovalFilter, ApprovalStatus, Decision};
pub use self::content::{Content, Piece};
pub use self::delivery::{
    AfterAttempt, DeliveryAttempt, DeliveryPayload, DeliveryRecord, DeliveryState, DueDelivery,
    Replay, Settlement,
};
pub use self::event::{EventFilter, EventPage, EventTotals, LogBounds};
pub use self::key::{IdempotencyKey, KeyOwner, KeySpace, RunKey};
pub use self::run::{
    NewRun, RunArtifact, RunArtifactInfo, RunChange, RunEvent, RunFilter, RunOpened, RunRecord,
    RunStatus,
};
pub use self::signal::{
    Acknowledged, Acknowledgement, Charge, Intervention, InterventionFilter, Judge, Judgement,
    NewSignal, OtherSignal, Severity, SignalEntry, SignalGroup, SignalProperty, SignalRecord,
    SignalRecorded, SignalSession, SignalSessionFilter, SignalSource, SignalSums, SignalTotals,
    SignalVerdict, SweptSignals,
};
pub use self::spending::{Spending, SpendingSums};

/// Dispatch that holds an idempotency key, without its result.
#[derive(Clone, Debug)]
pub struct Known {
    pub dispatch: DispatchRecord,
    pub fingerprint: Digest,
}

/// Outcome for a second request with a known key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyVerdict {
    /// Same request: return the stored dispatch; if it is finished, its delivery is made due again.
    Same,
    /// The key was used for another body.
    Conflict,
    /// A new dispatch takes over the key; an undelivered delivery of the old one is superseded.
    TakeOver,
}

/// Dispatch to be accepted.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewDispatch {
    pub id: DispatchId,
    pub key: IdempotencyKey,
    pub task_id: String,
    pub agent_id: String,
    pub run_id: Option<String>,
    /// Earlier dispatch that the caller repeats; one whose key it takes over is recorded in its place.
    #[serde(default)]
    pub retry_of: Option<DispatchId>,
    pub trace_id: String,
    /// Adapter chosen by routing.
    pub provider: String,
    /// The caller named the adapter; the dispatch is never rerouted.
    pub pinned: bool,
    /// Routing decision as JSON.
    pub routing: Box<RawValue>,
    /// The validated dispatch as JSON, without secrets.
    pub request: Box<RawValue>,
    /// Digest of the members that must be the same when the request is sent again.
    pub fingerprint: Digest,
    /// Contents of the attachments that came in the body, by their position in the request.
    pub attachments: Vec<Vec<u8>>,
    /// Sealed secrets.
    pub secrets: Option<Vec<u8>>,
    /// Set only if the chosen adapter supports sessions: dispatches of one adapter and session run one after another,
    /// in the order in which they became ready.
    pub session: Option<String>,
    pub priority: i8,
    pub accepted_at: Timestamp,
    pub not_before: Option<Timestamp>,
    /// Waits for an approval before anything else.
    pub is_held: bool,
    /// True if it can run on the node that accepts it only.
    pub is_bound: bool,
    /// Deadline for the start; after it the dispatch ends as `queue_timeout`.
    pub start_by: Timestamp,
    /// Receiver of the result; `None` if the caller requested no callback.
    pub callback: Option<Callback>,
    /// `execution.accepted`, `execution.queued`.
    pub events: Vec<NewEvent>,
    /// Start event, set if the caller has capacity: if the dispatch need not wait, its first attempt begins in the
    /// same commit.
    pub start: Option<NewEvent>,
    /// Limit of queued dispatches; at the limit the answer is `Acceptance::QueueFull`.
    pub queue_limit: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Callback {
    pub url: String,
    /// Normalised scheme, host and port: the unit of concurrency limits and replay.
    pub origin: String,
}

#[derive(Debug)]
pub enum Acceptance {
    /// Recorded; `retry_of` is the failed dispatch whose key it took over.
    Accepted {
        retry_of: Option<DispatchId>,
        /// First attempt, if `NewDispatch::start` was set and the dispatch did not have to wait.
        begun: Option<Box<Begun>>,
    },
    /// Same request, returned without its result; if it was finished, its delivery is due again.
    Duplicate(Box<DispatchRecord>),
    /// The key belongs to another request, this dispatch.
    Conflict(DispatchId),
    QueueFull,
}

/// Dispatch that can start.
#[derive(Clone, Debug)]
pub struct Ready {
    pub id: DispatchId,
    pub provider: String,
    pub pinned: bool,
    /// Attempts so far; an unpinned dispatch without any can be rerouted.
    pub attempts: u32,
}

#[derive(Debug)]
pub struct Reroute {
    pub id: DispatchId,
    pub provider: String,
    pub session: Option<String>,
    pub routing: Box<RawValue>,
}

/// Right to write about one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub id: DispatchId,
    pub attempt: u32,
    pub epoch: u64,
}

/// Right to finish or requeue a dispatch, checked against its current attempt.
#[derive(Clone, Debug)]
pub enum Claim {
    /// Queued, with no attempt running.
    Unstarted(DispatchId),
    /// Held, and its approval is refused by this decision.
    Rejected(DispatchId, Decision),
    /// The attempt that this process runs.
    Attempt(Lease),
    /// An attempt of an older epoch, whose process is gone.
    Interrupted { id: DispatchId, attempt: u32 },
}

impl Claim {
    pub fn id(&self) -> DispatchId {
        match self {
            Claim::Unstarted(id) | Claim::Rejected(id, _) | Claim::Interrupted { id, .. } => *id,
            Claim::Attempt(lease) => lease.id,
        }
    }
}

/// Limits of a claim of queued dispatches.
#[derive(Clone, Copy, Debug)]
pub struct ClaimLimits {
    /// Maximum number of dispatches.
    pub count: usize,
    /// Maximum number of attempts of a dispatch: the last one runs alone.
    pub max_attempts: u32,
    /// Time for which the dispatches of a session wait for the node that ran the last one. `None`: all nodes share the
    /// sessions of the adapter.
    pub home_grace: Option<Duration>,
}

/// Dispatch whose next attempt was marked as running by a claim.
#[derive(Debug)]
pub struct Claimed {
    pub begun: Begun,
    /// The request as it was given to `accept`.
    pub request: Box<RawValue>,
}

/// Input of an execution, returned with the running mark.
#[derive(Debug)]
pub struct Begun {
    pub lease: Lease,
    pub dispatch: DispatchRecord,
    pub secrets: Option<Vec<u8>>,
    /// Session id that an earlier attempt recorded.
    pub recorded_session: Option<String>,
    /// Usage of earlier attempts in the format of `dispatch/budget`; opaque.
    pub spent: Option<Box<RawValue>>,
}

/// Part of an execution, written as one batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    pub events: Vec<NewEvent>,
    /// Session id of the runtime, once known: `recovery: resume` continues it.
    pub session: Option<String>,
    /// Replaces `Begun::spent` for later attempts.
    pub spent: Option<Box<RawValue>>,
    #[serde(skip)]
    pub charge: Option<Charge>,
}

/// A terminal result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finish {
    pub at: Timestamp,
    /// `None` means `ok`.
    pub error_code: Option<String>,
    /// The schema `Result` of `openapi.json` as a JSON object without `events`, which the store adds.
    pub result: Box<RawValue>,
    /// Whole output, stored apart if the result holds only its beginning.
    pub output: Option<String>,
    /// Contents of the output files, by their position in the result.
    pub output_files: Vec<Vec<u8>>,
    /// Last events, ending with `execution.completed` or `execution.failed`.
    pub events: Vec<NewEvent>,
    /// Delivery of the result; due at once.
    pub delivery: Option<NewDelivery>,
    /// Retention starts at the later of the finish and the delivery's end.
    pub retention: Duration,
    /// Last charge, which ends the session of the dispatch.
    #[serde(skip)]
    pub charge: Option<Charge>,
    /// `None` if nothing is known of its usage.
    pub spending: Option<Spending>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct NewDelivery {
    /// Time after the first due time, or the last replay, at which the delivery ends if nothing is sent to its
    /// receiver.
    pub give_up_after: Duration,
}

/// Result that is on disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    pub totals: EventTotals,
    /// Body that the delivery will send.
    pub body: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Finished {
    Recorded(Recorded),
    /// A cancel request came first: finish again with a `cancelled` result.
    CancelRequested,
}

#[derive(Debug)]
pub struct Requeue {
    /// `execution.retrying` with the reason.
    pub event: NewEvent,
}

#[derive(Debug, PartialEq, Eq)]
pub enum CancelRequest {
    /// Not started; the caller finishes it at once.
    Queued,
    /// Running in this process.
    Running {
        attempt: u32,
    },
    /// Finished before the request.
    Finished,
    Unknown,
}

/// Attempt that a crash interrupted.
#[derive(Debug)]
pub struct Interrupted {
    pub dispatch: DispatchRecord,
    pub attempt: u32,
    pub request: Box<RawValue>,
    pub recorded_session: Option<String>,
    pub cancel_requested: bool,
    pub spent: Option<Box<RawValue>>,
}

/// State of a dispatch.
#[derive(Clone, Debug, PartialEq)]
pub enum DispatchState {
    /// Recorded; waits for capacity, its time, its session or an approval.
    Queued,
    Running {
        attempt: u32,
        started_at: Timestamp,
    },
    /// `error_code: None` means `ok`.
    Finished {
        at: Timestamp,
        error_code: Option<String>,
    },
}

/// Record of one dispatch, without its request.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "four independent properties")]
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
    /// Waits for an approval.
    pub is_held: bool,
    /// Waits for an earlier dispatch of its session.
    pub is_blocked: bool,
    pub accepted_at: Timestamp,
    pub not_before: Option<Timestamp>,
    pub start_by: Timestamp,
    pub first_started_at: Option<Timestamp>,
    pub retry_of: Option<DispatchId>,
    pub callback: Option<Callback>,
    /// State of its delivery, once there is one. In lists only.
    pub delivery: Option<DeliveryState>,
    /// Its usage, if it has ended and something is known of that. In lists only.
    pub spending: Option<Spending>,
    /// Schema `Result` of `openapi.json` with `events`, once finished. Omitted in lists.
    pub result: Option<Box<RawValue>>,
}

/// Node that ran the last dispatch of a session, or that has the folder of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub node: String,
    /// True if no other node can run it.
    pub is_bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Queued,
    Running,
    /// `Ok` and `Error`.
    Finished,
    Ok,
    Error,
}

#[derive(Clone, Debug, Default)]
pub struct DispatchFilter {
    pub status: Option<Status>,
    pub provider: Option<String>,
    pub agent_id: Option<String>,
    pub run_id: Option<String>,
    /// First letters of the task id.
    pub task_prefix: Option<String>,
    /// State of the delivery.
    pub delivery: Option<DeliveryState>,
    /// Accepted at or after this time.
    pub since: Option<Timestamp>,
    /// `Page::next` of the previous page.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub status: Option<DeliveryState>,
    /// `host` or `host:port`.
    pub host: Option<String>,
    /// Created at or after this time.
    pub since: Option<Timestamp>,
    pub before: Option<u64>,
    pub limit: usize,
}

/// Page of a list, newest first. `next` continues it; `None` means the end.
#[derive(Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<u64>,
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
    pub runs: u64,
    /// Another step would remove more.
    pub more: bool,
}
