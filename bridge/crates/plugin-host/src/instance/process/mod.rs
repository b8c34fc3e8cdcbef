//! Adapters in processes of their own: a library in a child of this binary, or a program that speaks lines of JSON. An
//! instance has the same calls, events and answers, over a socket or pipes. A crash affects one adapter only; its
//! process is restarted, up to a limit.

pub(super) mod conform;
mod crashes;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub(crate) mod launch;
mod lines;
mod probe;
mod program;
pub(super) mod remote;
pub(super) mod restart;
mod wire;

use std::time::Duration;

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

/// `[plugin.restart]` of the configuration: restart policy for adapters whose process ends.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// Wait before the second restart within the window, doubled each time. The first is immediate. Default: 100 ms.
    #[serde(with = "forge_base::duration")]
    pub backoff: Duration,
    /// Longest wait. Default: 30 s.
    #[serde(with = "forge_base::duration")]
    pub backoff_max: Duration,
    /// Number of crashes within the window that quarantines the adapter. Default: 5.
    pub crash_limit: usize,
    #[serde(with = "forge_base::duration")]
    pub crash_window: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
            crash_limit: 5,
            crash_window: Duration::from_secs(60),
        }
    }
}
