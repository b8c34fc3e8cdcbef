//! What the bridge offers an adapter.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::export::HostLink;
use crate::log;

/// The bridge as an adapter instance sees it. Cheap to clone.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    link: Option<HostLink>,
    create: Create,
}

/// What an instance is created with. Absent members have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Create {
    /// The JSON schema version that the bridge speaks; 0 when it did not say.
    pub schema: u32,
    /// The id this instance runs under. It differs from the library's own provider id where one
    /// library serves several.
    pub instance: String,
    /// Names the bridge's store; children carry it so that none outlives the bridge.
    pub store_id: String,
    /// The boot of the bridge on its store, one more at each; 0 when there is no store that lasts.
    pub epoch: u64,
    /// What to put before the argv of a child process so that it dies with the bridge. Empty: nothing.
    pub supervisor: Vec<String>,
    /// A command that joins its stdin and stdout with the Unix socket that is named behind it, for programs
    /// that want to start a server of ours. Empty: there is none.
    pub relay: Vec<String>,
    /// What the bridge takes.
    pub limits: Limits,
    /// The least important level that the bridge wants logged: `error`, `warn`, `info`, `debug` or
    /// `trace`. Absent: `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

/// Bounds in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Of a request or an answer; 16 MiB.
    pub payload_bytes: usize,
    /// Of one event; 1 MiB.
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
    /// A bridge that is not there, for unit tests: logs and events go nowhere.
    pub fn detached() -> Self {
        Self::detached_with(Create::default())
    }

    /// As [`detached`](Self::detached), created with this.
    pub fn detached_with(create: Create) -> Self {
        Self(Arc::new(Inner { link: None, create }))
    }

    /// The id this instance runs under; usually `NAME`.
    pub fn instance(&self) -> &str {
        &self.0.create.instance
    }

    /// Names the bridge's store.
    pub fn store_id(&self) -> &str {
        &self.0.create.store_id
    }

    /// The boot of the bridge on its store, one more at each: what carries a smaller one is of a bridge that is
    /// gone. 0 when there is no store that lasts, as in tests.
    pub fn epoch(&self) -> u64 {
        self.0.create.epoch
    }

    /// What to put before the argv of a child process; empty when there is no supervisor.
    pub fn supervisor(&self) -> &[String] {
        &self.0.create.supervisor
    }

    /// The command that joins its stdin and stdout with the Unix socket that is named behind it; empty when
    /// there is none.
    pub fn relay(&self) -> &[String] {
        &self.0.create.relay
    }

    /// What the bridge takes.
    pub fn limits(&self) -> Limits {
        self.0.create.limits
    }

    /// The sink for events that belong to no execution.
    pub fn events(&self) -> Events {
        self.events_of(0)
    }

    /// Logs a line. For threads of the adapter's own: on tasks of its runtime `tracing` does the same
    /// and knows the execution.
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
