//! Adapters in processes of their own: a library in a child of this binary, or any program that speaks
//! lines of JSON. The instance above does not notice: the same calls, events and answers, on a socket or
//! on pipes. What ends with the process is one adapter's; it is started again, up to a point.

pub(super) mod conform;
mod crashes;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub(super) mod launch;
mod lines;
mod probe;
mod program;
pub(super) mod remote;
pub(super) mod restart;
mod wire;

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a library runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// In the bridge. What ends the process ends the bridge.
    #[default]
    InProcess,
    /// In a child of the bridge. What ends the process ends what runs in this adapter.
    Process,
}

/// `[plugin.restart]` of the configuration: what happens to adapters whose process ends.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// The wait before the second start within the window, doubled each time. The first is not waited for.
    #[serde(with = "forge_base::duration")]
    pub backoff: Duration,
    /// The longest wait.
    #[serde(with = "forge_base::duration")]
    pub backoff_max: Duration,
    /// So many ends within the window, and it is not started again.
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
