//! Services of the bridge for an adapter.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::export::HostLink;
use crate::folder::{Folder, TempFolder};
use crate::log;

/// The bridge, as seen by an adapter instance. Cheap to clone.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    link: Option<HostLink>,
    create: Create,
}

/// Arguments of `create`. Absent members have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Create {
    /// The JSON schema version that the bridge uses; 0 if it was not sent.
    pub schema: u32,
    /// The id of this instance. It differs from the library's provider id where one library serves several
    /// ids.
    pub instance: String,
    /// Id of the bridge: that of its store, or of its node if several bridges share one. Child processes carry it so that
    /// none outlives the bridge.
    pub store_id: String,
    /// Epoch: the number of the bridge's boot on its store, incremented at each; 0 without a persistent
    /// store.
    pub epoch: u64,
    /// A folder of this adapter's own with mode 0700, kept over restarts. `None` without a bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// The folder in which the folders of executions are created. `None`: that of the system for temporary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temp_dir: Option<PathBuf>,
    /// Arguments to prepend to the argv of a child process so that it dies with the bridge. Empty: none.
    pub supervisor: Vec<String>,
    /// A command that connects its stdin and stdout to the Unix socket named by a further argument, for
    /// programs that want to start a server of the adapter. Empty: not available.
    pub relay: Vec<String>,
    /// User of the programs that the adapter starts, if not the bridge's; the supervisor switches to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// The bridge's size limits.
    pub limits: Limits,
    /// The most verbose level that the bridge logs: `error`, `warn`, `info`, `debug` or `trace`. Default:
    /// `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

/// A user of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct User {
    /// Name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Id of its primary group.
    pub gid: u32,
    /// Home directory.
    pub home: PathBuf,
}

/// Size limits in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Limit of a request or an answer; default: 16 MiB.
    pub payload_bytes: usize,
    /// Limit of one event; default: 1 MiB.
    pub event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 16 << 20,
            event_bytes: 1 << 20,
        }
    }
}

impl Host {
    /// A host without a bridge, for unit tests: logs and events are discarded.
    pub fn detached() -> Self {
        Self::detached_with(Create::default())
    }

    /// Like [`detached`](Self::detached), with these arguments of `create`.
    pub fn detached_with(create: Create) -> Self {
        Self(Arc::new(Inner { link: None, create }))
    }

    /// The id of this instance; usually `NAME`.
    pub fn instance(&self) -> &str {
        &self.0.create.instance
    }

    /// Id of the bridge: that of its store, or of its node if several bridges share one.
    pub fn store_id(&self) -> &str {
        &self.0.create.store_id
    }

    /// Epoch: the number of the bridge's boot on its store, incremented at each. Data with a smaller epoch
    /// belongs to an earlier boot. 0 without a persistent store, as in tests.
    pub fn epoch(&self) -> u64 {
        self.0.create.epoch
    }

    /// The folder in which this adapter keeps data over restarts, such as a key of its own; it has mode 0700 and
    /// exists. `None` without a bridge, as in tests.
    pub fn state_dir(&self) -> Option<&Path> {
        self.0.create.state_dir.as_deref()
    }

    /// Creates a temporary folder, as for one execution and its programs.
    pub fn temp_folder(&self) -> io::Result<TempFolder> {
        match &self.0.create.temp_dir {
            Some(parent) => TempFolder::create_in(parent, self.instance()),
            None => TempFolder::create(self.instance()),
        }
    }

    /// Removes the temporary folders of this instance that killed processes left behind.
    pub fn remove_leftovers(&self) {
        match &self.0.create.temp_dir {
            Some(parent) => TempFolder::remove_leftovers_in(parent, self.instance()),
            None => TempFolder::remove_leftovers(self.instance()),
        }
    }

    /// Arguments to prepend to the argv of a child process; empty without a supervisor.
    pub fn supervisor(&self) -> &[String] {
        &self.0.create.supervisor
    }

    /// The command that connects its stdin and stdout to the Unix socket named by a further argument; empty
    /// if not available.
    pub fn relay(&self) -> &[String] {
        &self.0.create.relay
    }

    /// The user of the programs that the adapter starts; `None` for that of the bridge. Files made for them must
    /// belong to it: [`Program::folder`](crate::child::Program::folder).
    pub fn user(&self) -> Option<&User> {
        self.0.create.user.as_ref()
    }

    /// Restricts what is done with files in the folder to the rights of the adapter's programs: the bridge can have more,
    /// and must not lend them.
    pub fn confine(&self, folder: Folder) -> Folder {
        match self.user() {
            Some(user) => folder.as_user(user.uid, user.gid),
            None => folder,
        }
    }

    /// The bridge's size limits.
    pub fn limits(&self) -> Limits {
        self.0.create.limits
    }

    /// The sink for events that belong to no execution.
    pub fn events(&self) -> Events {
        self.events_of(0)
    }

    /// Logs a line from threads of the adapter's own. On tasks of its runtime, `tracing` does the same and
    /// adds the ids of the execution.
    pub fn log(&self, level: tracing::Level, message: &str) {
        if let Some(link) = self.0.link {
            log::line(link, level, message);
        }
    }

    pub(crate) fn attached(link: HostLink, create: Create) -> Self {
        Self(Arc::new(Inner {
            link: Some(link),
            create,
        }))
    }

    pub(crate) fn events_of(&self, call: u64) -> Events {
        match self.0.link {
            Some(link) => Events::of_call(link, call, self.limits().event_bytes),
            None => Events::nowhere(),
        }
    }
}
