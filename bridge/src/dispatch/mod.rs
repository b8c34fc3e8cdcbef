//! The heart: one file an arrow of `request → validate → recall → route → record → assemble → execute
//! → normalise → finish`. Knows no HTTP, no SQL and no plugin boundary.

pub mod request;
pub mod schema;
pub mod trace;
pub mod validate;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const MIB: usize = 1024 * 1024;

/// What a dispatch may ask for and what it gets when it does not ask.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Seconds of one attempt when the dispatch names none.
    pub default_timeout: Duration,
    /// The most that a dispatch may ask for.
    pub max_timeout: Duration,
    /// How long a dispatch may wait for its start when it names nothing.
    pub queue_timeout: Duration,
    /// The most that a dispatch may ask for.
    pub max_queue_timeout: Duration,
    /// How many dispatches may wait; one more is answered 429.
    pub queue_limit: u64,
    /// Attempts of one dispatch under `recovery: retry` and `resume`, the first one included.
    pub max_attempts: u32,
    /// Folders below which `workspace.dir` may be. None: no dispatch may name a folder.
    pub workspace_roots: Vec<PathBuf>,
    /// What a result and a callback hold of an output; the rest is read by its own route.
    pub output_inline_bytes: usize,
    /// A longer output ends its dispatch as `output_too_large`.
    pub output_limit_bytes: usize,
    /// The longest `outputSchema`, as compact JSON.
    pub schema_limit_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_timeout: 600 * SECOND,
            max_timeout: DAY,
            queue_timeout: DAY,
            max_queue_timeout: 30 * DAY,
            queue_limit: 1_000_000,
            max_attempts: 3,
            workspace_roots: Vec::new(),
            output_inline_bytes: MIB,
            output_limit_bytes: 16 * MIB,
            schema_limit_bytes: MIB / 4,
        }
    }
}
