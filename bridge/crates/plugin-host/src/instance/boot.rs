//! Parameters for creating an instance: the file, the limits, and the processes that can hold it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::boundary::loaded_images::LoadedImages;
use crate::boundary::trust::Trust;
use crate::instance::built_in::BuiltIn;
use crate::instance::environment::Environment;
use crate::instance::isolation::Isolation;
use crate::instance::queue::Bounds;

/// Parameters for creating an instance.
pub(crate) struct Boot {
    pub id: String,
    /// Name that the library must declare.
    pub library: String,
    pub source: Source,
    /// The payload of `create`.
    pub create: Vec<u8>,
    pub bounds: Limits,
    /// Time limit for loading and `create` together.
    pub deadline: Duration,
}

/// Limits of everything that an instance exchanges with the bridge, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub payload: usize,
    pub execution: Bounds,
    /// Requests that wait for the call thread.
    pub waiting: usize,
}

/// Origin of an instance.
pub(crate) enum Source {
    /// A file that was found: a library, or a program that speaks the line protocol.
    Found(Box<Found>),
    /// A library that the bridge has checked and copied, for its child to load.
    Verified {
        path: PathBuf,
        copy: PathBuf,
        digest: String,
    },
    /// Part of the bridge, with the runtime of its calls.
    BuiltIn(Arc<dyn BuiltIn>, Handle),
}

/// A file that was found, and the rules for running it.
pub(crate) struct Found {
    pub path: PathBuf,
    /// Folder of the private copies.
    pub copies: PathBuf,
    pub trust: Trust,
    /// SHA-256 from the allow-list.
    pub digest: Option<String>,
    pub images: Arc<LoadedImages>,
    pub isolation: Isolation,
    /// `None` without a supervisor: then no child can be started, and libraries are not probed.
    pub launcher: Option<Launcher>,
}

/// Parameters for starting processes for one adapter.
pub(crate) struct Launcher {
    /// The command that starts a program under the supervisor.
    pub supervisor: Vec<String>,
    /// Store that the processes belong to.
    pub store_id: String,
    /// Variables that the processes can be given.
    pub environment: Environment,
    pub memory_limit_bytes: Option<u64>,
    /// Time that the adapter can hold a thread before it counts as blocked.
    pub call_timeout: Duration,
}
