//! First message from the bridge to its child.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Order of the bridge: the library to load, and its limits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: String,
    /// Name that the library must declare.
    pub(super) library: String,
    /// Path that the library was found at, for messages.
    pub(super) path: PathBuf,
    /// Private copy of the checked file.
    pub(super) copy: PathBuf,
    pub(super) digest: String,
    /// The payload of `create`.
    pub(super) create: String,
    pub(super) payload_bytes: usize,
    pub(super) event_bytes: usize,
    pub(super) queue_bytes: usize,
    pub(super) execution_bytes: Option<usize>,
    pub(super) waiting_bytes: usize,
    pub(super) deadline_ms: u64,
    pub(super) call_timeout_ms: u64,
    /// Limit of the data that the library adds: heap, stacks of threads, private mappings.
    pub(super) memory_limit_bytes: Option<u64>,
}
