//! Runs: their log, their state and their artifacts. Request, projection and positions are opaque JSON.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_base::id::RunId;

use super::key::RunKey;

/// Run to be stored.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    /// Unique among stored runs.
    pub key: Option<RunKey>,
    /// Digest of the request, compared when the key comes again.
    pub fingerprint: Digest,
    pub trace_id: String,
    pub created_at: Timestamp,
    /// Never changed.
    pub request: Box<RawValue>,
    pub projection: Box<RawValue>,
    /// First events, at least one.
    pub events: Vec<RunEvent>,
    /// False if it must not be stored: then only the run that has its key is an answer.
    pub is_admitted: bool,
}

#[derive(Debug)]
pub enum RunOpened {
    New,
    /// The key belongs to this run, which had the same request.
    Known(RunRecord),
    /// The key belongs to this run, which had another request.
    Conflict(RunId),
    /// No run has the key, and the new one is not admitted.
    NotAdmitted,
}

/// Event of a run. The store assigns its position and its `seq`.
#[derive(Clone, Debug)]
pub struct RunEvent {
    pub task_id: Option<String>,
    /// 0 if it belongs to no attempt.
    pub attempt: u32,
    pub event: NewEvent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunArtifact {
    pub path: String,
    pub kind: String,
    pub updated_at: Timestamp,
    pub bytes: Vec<u8>,
}

/// An artifact without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunArtifactInfo {
    pub path: String,
    pub kind: String,
    pub updated_at: Timestamp,
    /// Bytes.
    pub size: u64,
}

/// Change of a run, written in one transaction.
#[derive(Clone, Debug)]
pub struct RunChange {
    pub id: RunId,
    /// Number of events that the run has before these.
    pub after_seq: u64,
    pub events: Vec<RunEvent>,
    /// `None` leaves it unchanged.
    pub projection: Option<Box<RawValue>>,
    /// Positions up to which events of its dispatches were taken over; `None` leaves them unchanged.
    pub taken_over: Option<Box<RawValue>>,
    pub status: RunStatus,
    /// Replace those of the same path.
    pub artifacts: Vec<RunArtifact>,
    /// End of the run and the retention after it; set if and only if `status` is an ended one.
    pub end: Option<(Timestamp, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Planning,
    PlanReview,
    Executing,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl RunStatus {
    /// True if the run changes no more.
    pub fn is_ended(self) -> bool {
        match self {
            RunStatus::Planning
            | RunStatus::PlanReview
            | RunStatus::Executing
            | RunStatus::Paused => false,
            RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => true,
        }
    }
}

#[derive(Clone, Debug)]
pub struct RunRecord {
    pub id: RunId,
    pub status: RunStatus,
    /// Number of events.
    pub seq: u64,
    /// Position of the last event in the log.
    pub last_position: u64,
    pub trace_id: String,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub request: Box<RawValue>,
    /// JSON `null` in lists, because it can be large.
    pub projection: Box<RawValue>,
    /// `None` before the first change that sets it.
    pub taken_over: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    /// `Page::next` of the previous page.
    pub before: Option<u64>,
    pub limit: usize,
}
