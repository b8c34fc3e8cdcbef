//! Loss that a committed change outlives.

use std::fmt;

use serde::Serialize;

/// Loss that a change outlives once its commit has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The change is on the disks of one machine.
    Server,
    /// The change is on the disks of a standby, too.
    Replicated,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Replicated => "replicated",
        })
    }
}
