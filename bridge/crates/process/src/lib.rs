//! Children that cannot be orphaned: the supervisor under which adapters start programs, and the reaper
//! that kills what a crash left behind. It must not know what the programs are or who starts them.
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

/// Which store a process belongs to; in the environment of every child.
pub const STORE_VARIABLE: &str = "FORGE_BRIDGE_STORE";
/// `<dispatch>/<attempt>`; in the environment of every child of an execution.
pub const EXECUTION_VARIABLE: &str = "FORGE_EXECUTION";

/// How long a sweep waits for killed processes to be gone.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The program that has the `exec` subcommand; by default this executable as it was started.
    pub supervisor: Option<PathBuf>,
    /// Between the request to end and the kill.
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
    #[error("cannot become the adopter of orphaned processes")]
    Adopt(#[source] rustix::io::Errno),
    #[error("cannot listen for ended children")]
    Signals(#[source] std::io::Error),
}

/// The children of one store. Cheap to clone.
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

/// What is counted of the children of one store.
#[derive(Debug, Default)]
pub struct Meters {
    /// Killed because their bridge or their supervisor was gone.
    pub reaped: Counter,
    /// Still there after a sweep had its time.
    pub escaped: Counter,
}

impl Children {
    /// Makes this process the adopter of orphans, so that it sees what a dead supervisor leaves.
    pub fn new(config: &Config, store_id: &str) -> Result<Self, Error> {
        let us = getpid();
        let start = proc::stat(us).ok_or(Error::NoProc)?.start;
        set_child_subreaper(Some(us)).map_err(Error::Adopt)?;
        // The link is to the file that is running, also when its path means another one by now.
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

    /// What stands before a program's own arguments to run it under a supervisor.
    pub fn supervisor(&self) -> &[String] {
        &self.inner.supervisor
    }

    /// What stands before the path of a socket to join stdin and stdout with it.
    pub fn relay(&self) -> &[String] {
        &self.inner.relay
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Kills what earlier bridges on this store left behind. Blocks; at boot, with the store locked and
    /// before recovery.
    pub fn reap_leftovers(&self) -> Swept {
        self.sweep_tag(None)
    }

    /// Kills what is left of one execution. Blocks.
    pub fn sweep(&self, execution: &str) -> Swept {
        self.sweep_tag(Some(execution))
    }

    /// How many processes of this store live now; supervisors and adapter hosts are not counted. Reads all of `/proc`.
    pub fn living(&self) -> usize {
        reaper::count(Tag {
            store: &self.inner.store_id,
            execution: None,
        })
    }

    /// Sweeps the execution of every supervisor that dies, and buries ended strangers, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut ended = signal(SignalKind::child()).map_err(Error::Signals)?;
        // For supervisors that are no children of ours (an adapter in a process of its own starts them):
        // their orphans come without a signal.
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
                    "the supervisor of {execution} died, its processes were killed"
                );
            }
            orphanage
        });
        // Only a panic or the runtime's end gets here; zombies are then counted anew.
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
