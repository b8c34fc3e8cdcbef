//! Child processes that cannot be orphaned: the supervisor under which adapters start programs, and the reaper that
//! kills what a crash left behind. Independent of the programs and of the callers that start them.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::reaper::{Dead, Executable};
use forge_base::metrics::Counter;

mod depth;
pub mod exec;
pub mod ownership;
mod proc;
pub mod program;
mod reaper;
pub mod relay;
mod secrecy;
mod user;

pub use self::reaper::Swept;
pub use self::secrecy::close_memory;
pub use self::user::{User, UserError};

/// Id of the bridge that a process belongs to, in the environment of every child: that of its store, or of its node if
/// several bridges share one.
pub const STORE_VARIABLE: &str = "FORGE_BRIDGE_STORE";
/// `<dispatch>/<attempt>`; in the environment of every child of an execution.
pub const EXECUTION_VARIABLE: &str = "FORGE_EXECUTION";

/// Longest wait of a sweep for killed processes to end.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which adopted children are looked for, which no signal announces.
const ORPHANS_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Program with the `exec` subcommand; default: the running executable.
    pub supervisor: Option<PathBuf>,
    /// Time between SIGTERM and SIGKILL.
    #[serde(with = "forge_base::duration")]
    pub grace: Duration,
    /// User of the programs that adapters start, by name or as `uid:gid`; default: that of the bridge.
    pub user: Option<String>,
    /// Folder of the folders of executions, an absolute path. Default: that of the system for temporary files, or one of
    /// the bridge if programs run as another user.
    pub folder: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            supervisor: None,
            grace: Duration::from_secs(2),
            user: None,
            folder: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read /proc/self/stat; is /proc mounted?")]
    NoProc,
    #[error("cannot open the program of this process, which supervises others")]
    Program(#[source] std::io::Error),
    #[error("cannot become a child subreaper")]
    Adopt(#[source] rustix::io::Errno),
    #[error("cannot handle SIGCHLD")]
    Signals(#[source] std::io::Error),
}

/// Children of one bridge. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Children {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store_id: String,
    supervisor: Vec<String>,
    relay: Vec<String>,
    executable: Executable,
    /// Descriptor that the supervisor's path names.
    _opened: Option<OwnedFd>,
    meters: Meters,
}

/// Metrics of the children of one bridge.
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
        let (supervisor, program, opened) = match &config.supervisor {
            Some(path) => (path.clone(), path.clone(), None),
            None => {
                let (opened, path) = open_own_program().map_err(Error::Program)?;
                let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
                (link.into(), path, Some(opened))
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                store_id: store_id.to_owned(),
                relay: vec![program.display().to_string(), "relay".to_owned()],
                executable: Executable::of(&supervisor),
                supervisor: vec![
                    supervisor.display().to_string(),
                    "exec".to_owned(),
                    format!("--bridge={us}:{start}"),
                    format!("--store={store_id}"),
                    format!("--grace-ms={}", config.grace.as_millis()),
                    "--".to_owned(),
                ],
                _opened: opened,
                meters: Meters::default(),
            }),
        })
    }

    /// Command prefix that runs a program under a supervisor. For this process, while this object lives.
    pub fn supervisor(&self) -> &[String] {
        &self.inner.supervisor
    }

    /// Command prefix that runs a program under a supervisor, as this user.
    pub fn supervisor_as(&self, user: &User) -> Vec<String> {
        let mut prefix = self.inner.supervisor.clone();
        let last = prefix.len() - 1;
        prefix.insert(last, format!("--user={}:{}", user.uid, user.gid));
        prefix
    }

    /// Command prefix that joins stdin and stdout with a socket; the path of the socket follows. Its program has a
    /// path, since other processes start it, too.
    pub fn relay(&self) -> &[String] {
        &self.inner.relay
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Kills processes that earlier bridges of this id left behind. Blocks. Runs at boot, with the folder of the store
    /// locked and before recovery.
    pub fn reap_leftovers(&self) -> Swept {
        self.record(reaper::sweep(&self.inner.store_id, SWEEP_LIMIT))
    }

    /// Kills what is left of this bridge below this process. Blocks. Runs at the end, when nothing is started any more.
    pub fn end(&self) -> Swept {
        let store = Some(self.inner.store_id.as_str());
        self.record(reaper::sweep_orphans(
            &self.inner.executable,
            store,
            SWEEP_LIMIT,
        ))
    }

    /// Number of live processes of this bridge, without supervisors and adapter hosts. Reads all of `/proc`.
    pub fn living(&self) -> usize {
        reaper::count(&self.inner.store_id)
    }

    /// Kills orphans, as those of a supervisor that was killed, and reaps adopted zombies, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut ended = signal(SignalKind::child()).map_err(Error::Signals)?;
        // For orphans that are adopted later than their supervisor ends.
        let mut tick = tokio::time::interval(ORPHANS_EVERY);
        let mut dead = Dead::default();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ended.recv() => {}
                _ = tick.tick() => {}
            }
            dead = self.round(dead).await;
        }
    }

    async fn round(&self, mut dead: Dead) -> Dead {
        let children = self.clone();
        let round = tokio::task::spawn_blocking(move || {
            let swept = reaper::sweep_orphans(&children.inner.executable, None, SWEEP_LIMIT);
            if swept != Swept::default() {
                let Swept { killed, left } = children.record(swept);
                tracing::warn!(
                    swept.killed = killed,
                    swept.left = left,
                    "a supervisor was killed; {killed} of its processes were killed, too"
                );
            }
            dead.reap(Instant::now());
            dead
        });
        // Reached only by a panic or when the runtime ends; the times of zombies then start again.
        round.await.unwrap_or_default()
    }

    fn record(&self, swept: Swept) -> Swept {
        self.inner.meters.reaped.add(swept.killed as u64);
        self.inner.meters.escaped.add(swept.left as u64);
        swept
    }
}

/// Opens the file that this process runs; returns its path, too. The descriptor refers to that file even if another
/// one has its path now, and a child of this process can execute it by its number. `/proc/<pid>/exe` would do the same,
/// but is closed to other processes, as the memory is.
fn open_own_program() -> std::io::Result<(OwnedFd, PathBuf)> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = open("/proc/self/exe", flags, Mode::empty())?;
    Ok((opened, std::env::current_exe()?))
}
