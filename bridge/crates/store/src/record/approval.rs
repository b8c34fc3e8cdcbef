//! Dispatches that wait for an approval, and decisions about them.

use jiff::Timestamp;

use super::DispatchRecord;

/// Decision about a dispatch that was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub at: Timestamp,
    /// Name of the token that decided; empty if none was needed.
    pub by: String,
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// Held, and not decided yet.
    Waiting,
    Approved,
    Rejected,
}

/// Dispatch that was held, without its result.
#[derive(Debug)]
pub struct Approval {
    pub dispatch: DispatchRecord,
    pub status: ApprovalStatus,
    /// `None` while it waits.
    pub decision: Option<Decision>,
}

#[derive(Clone, Debug)]
pub struct ApprovalFilter {
    pub status: ApprovalStatus,
    /// `Page::next` of the previous page.
    pub before: Option<u64>,
    pub limit: usize,
}
