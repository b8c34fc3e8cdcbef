//! Pages and bounds of the event log.

use std::sync::Arc;

use forge_base::event::Event;
use forge_base::id::{DispatchId, RunId};

/// Number of events of a dispatch up to its result, and position of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTotals {
    pub count: u64,
    pub last: u64,
}

/// Without a `run`, it leaves out those events of runs that repeat events of their dispatches.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    pub dispatch: Option<DispatchId>,
    /// Selects the events of this run itself, not those of its dispatches.
    pub run: Option<RunId>,
    pub provider: Option<String>,
    pub agent_id: Option<String>,
    pub task_id: Option<String>,
    pub kind: Option<String>,
}

#[derive(Debug)]
pub struct EventPage {
    pub events: Vec<Arc<Event>>,
    /// Position up to which the log has been read.
    pub scanned: u64,
    /// More events can follow `scanned` right now.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// Highest position ever assigned; 0 if none.
    pub issued: u64,
    /// Highest position that retention has removed; an unfiltered cursor below it has a gap.
    pub removed: u64,
}
