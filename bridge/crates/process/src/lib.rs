//! Child processes that cannot be orphaned: the supervisor under which adapters start programs, and the reaper that
//! kills what a crash left behind. Independent of the programs and of the callers that start them.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::reaper::{Orphanage, Tag};
use forge_base::metrics::Counter;

pub mod exec;
mod proc;
mod reaper;
pub mod relay;

pub use self::reaper::Swept;

/// Id of the store that a process belongs to; in the environment of every child.
pub const STORE_VARIABLE: &str = "FORGE_BRIDGE_STORE";
/// `<dispatch>/<attempt>`; in the environment of every child of an execution.
pub const EXECUTION_VARIABLE: &str = "FORGE_EXECUTION";

/// Longest wait of a sweep for killed processes to end.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Program with the `exec` subcommand; default: the running executable.
    pub supervisor: Option<PathBuf>,
    /// Time between SIGTERM and SIGKILL.
    #[serde(with = "forge_base::duration")]
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            supervisor: None,
            grace: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read /proc/self/stat; is /proc mounted?")]
    NoProc,
    #[error("cannot become a child subreaper")]
    Adopt(#[source] rustix::io::Errno),
    #[error("cannot handle SIGCHLD")]
    Signals(#[source] std::io::Error),
}

/// Children of one store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Children {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store_id: String,
    supervisor: Vec<String>,
    relay: Vec<String>,
    meters: Meters,
}

/// Metrics of the children of one store.
#[derive(Debug, Default)]
pub struct Meters {
    /// Processes killed because their bridge or supervisor was gone.
    pub reaped: Counter,
    /// Processes still alive after a sweep.
    pub escaped: Counter,
}

impl Children {
    /// Makes this process a child subreaper, so that it adopts what a dead supervisor leaves behind.
    pub fn new(config: &Config, store_id: &str) -> Result<Self, Error> {
        let us = getpid();
        let start = proc::stat(us).ok_or(Error::NoProc)?.start;
        set_child_subreaper(Some(us)).map_err(Error::Adopt)?;
        // The link refers to the running file even if its path has been replaced.
        let program = match &config.supervisor {
            Some(path) => path.display().to_string(),
            None => format!("/proc/{us}/exe"),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                store_id: store_id.to_owned(),
                relay: vec![program.clone(), "relay".to_owned()],
                supervisor: vec![
                    program,
                    "exec".to_owned(),
                    format!("--bridge={us}:{start}"),
                    format!("--store={store_id}"),
                    format!("--grace-ms={}", config.grace.as_millis()),
                    "--".to_owned(),
                ],
                meters: Meters::default(),
            }),
        })
    }

    /// Command prefix that runs a program under a supervisor.
    pub fn supervisor(&self) -> &[String] {
        &self.inner.supervisor
    }

    /// Command prefix that joins stdin and stdout with a socket; the path of the socket follows.
    pub fn relay(&self) -> &[String] {
        &self.inner.relay
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Kills processes that earlier bridges on this store left behind. Blocks. Runs at boot, with the store locked
    /// and before recovery.
    pub fn reap_leftovers(&self) -> Swept {
        self.sweep_tag(None)
    }

    /// Kills the remaining processes of one execution. Blocks.
    pub fn sweep(&self, execution: &str) -> Swept {
        self.sweep_tag(Some(execution))
    }

    /// Number of live processes of this store, without supervisors and adapter hosts. Reads all of `/proc`.
    pub fn living(&self) -> usize {
        reaper::count(Tag {
            store: &self.inner.store_id,
            execution: None,
        })
    }

    /// Sweeps the execution of every supervisor that dies, and reaps adopted zombies, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut ended = signal(SignalKind::child()).map_err(Error::Signals)?;
        // For supervisors started by an adapter in its own process: the death of those sends no SIGCHLD to the
        // bridge.
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        let mut orphanage = Orphanage::default();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ended.recv() => {}
                _ = tick.tick() => {}
            }
            orphanage = self.round(orphanage).await;
        }
    }

    async fn round(&self, mut orphanage: Orphanage) -> Orphanage {
        let children = self.clone();
        let round = tokio::task::spawn_blocking(move || {
            for execution in orphanage.round(&children.inner.store_id, Instant::now()) {
                let swept = children.sweep(&execution);
                tracing::warn!(
                    execution.id = execution,
                    swept.killed,
                    swept.left,
                    "the supervisor of {execution} died; its processes were killed"
                );
            }
            orphanage
        });
        // Reached only by a panic or when the runtime ends; the times of zombies then start again.
        round.await.unwrap_or_default()
    }

    fn sweep_tag(&self, execution: Option<&str>) -> Swept {
        let tag = Tag {
            store: &self.inner.store_id,
            execution,
        };
        let swept = reaper::sweep(tag, SWEEP_LIMIT);
        self.inner.meters.reaped.add(swept.killed as u64);
        self.inner.meters.escaped.add(swept.left as u64);
        swept
    }
}
