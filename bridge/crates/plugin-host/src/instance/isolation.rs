//! Choice between the bridge's process and a process of its own for an adapter.

use serde::{Deserialize, Serialize};

/// Process that a library runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In the bridge. A crash ends the bridge.
    #[default]
    InProcess,
    /// In a child of the bridge. A crash ends the executions of this adapter.
    Process,
}
