//! Warm processes: started and initialised ahead, they wait for a run. Each serves one run and is killed with it, so
//! nothing reaches another agent's session; what a run leaves out is only the wait for the start.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forge_adapter_api::Host;
use forge_adapter_api::child::memory_bytes;
use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::config::Settings;
use crate::outcome::{End, outcome};
use crate::process::{self, AgentProcess};

/// The waiting processes of an instance.
pub(crate) struct Warm {
    host: Host,
    settings: Arc<Settings>,
    /// Oldest first; `None` once closed.
    spares: Mutex<Option<Vec<Spare>>>,
    /// Reason why the last process that waited, or should have, is gone.
    failure: Arc<Mutex<Option<String>>>,
}

/// Properties of a process that are decided before any session; a run takes only one that has its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpareKind {
    /// True if the agent is told that it can use the files of a workspace.
    pub(crate) has_files: bool,
    /// Options before the configured arguments.
    pub(crate) options: Vec<String>,
}

/// One process that starts or waits.
struct Spare {
    kind: SpareKind,
    /// Empty while it starts.
    start: Arc<OnceLock<Start>>,
    /// Hands the process over; dropping it ends the process.
    claim: oneshot::Sender<()>,
    /// Owns the process until then; aborted on drop, which kills the process.
    keeper: JoinSet<Option<AgentProcess>>,
}

#[derive(Clone, Copy)]
struct Start {
    pid: Option<u32>,
    at: Timestamp,
    took: Duration,
}

impl Warm {
    pub(crate) fn new(host: Host, settings: Arc<Settings>) -> Self {
        Self {
            host,
            settings,
            spares: Mutex::new(Some(Vec::new())),
            failure: Arc::default(),
        }
    }

    /// Takes a process of this kind; waits for one that is starting. `None` if there is none.
    pub(crate) async fn take(&self, kind: &SpareKind) -> Option<AgentProcess> {
        loop {
            let mut spare = {
                let mut spares = self.spares();
                let spares = spares.as_mut()?;
                let fits = |spare: &Spare| spare.kind == *kind && spare.is_alive();
                spares.remove(spares.iter().position(fits)?)
            };
            // One that has just ended gives nothing.
            let _ = spare.claim.send(());
            if let Some(Ok(Some(process))) = spare.keeper.join_next().await {
                return Some(process);
            }
        }
    }

    /// Starts what is missing, for runs like the one that calls this.
    pub(crate) fn refill(&self, kind: &SpareKind) {
        if let Some(spares) = self.spares().as_mut() {
            spares.retain(Spare::is_alive);
            while spares.len() < self.settings.table.warm {
                spares.push(self.spare(kind.clone()));
            }
        }
    }

    /// Ends all waiting processes; no other starts.
    pub(crate) async fn close(&self) {
        let spares = self.spares().take();
        join_all(spares.into_iter().flatten().map(Spare::end)).await;
    }

    /// Ends all waiting processes, which have read settings that are no longer valid. Returns their number.
    pub(crate) async fn renew(&self) -> usize {
        let spares = self.spares().as_mut().map(std::mem::take);
        let ended = spares.into_iter().flatten().map(Spare::end);
        join_all(ended).await.len()
    }

    /// Waiting processes for the health check, with their resident memory. Reads `/proc`.
    pub(crate) fn report(&self) -> Value {
        let starts: Vec<Start> = {
            let spares = self.spares();
            let alive = spares.iter().flatten().filter(|spare| spare.is_alive());
            alive
                .filter_map(|spare| spare.start.get().copied())
                .collect()
        };
        let lines = starts.iter().map(|start| {
            json!({
                "pid": start.pid, "startedAt": format!("{:.3}", start.at),
                "startMs": u64::try_from(start.took.as_millis()).ok(),
                "memoryBytes": start.pid.and_then(memory_bytes),
            })
        });
        lines.collect()
    }

    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    fn spares(&self) -> MutexGuard<'_, Option<Vec<Spare>>> {
        lock(&self.spares)
    }

    fn spare(&self, kind: SpareKind) -> Spare {
        let (claim, claimed) = oneshot::channel();
        let start = Arc::default();
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(
            self.host.clone(),
            Arc::clone(&self.settings),
            kind.clone(),
            Arc::clone(&start),
            Arc::clone(&self.failure),
            claimed,
        ));
        Spare {
            kind,
            start,
            claim,
            keeper,
        }
    }
}

impl Spare {
    fn is_alive(&self) -> bool {
        !self.claim.is_closed()
    }

    /// Ends the process; one that is still starting is killed without a wait.
    async fn end(mut self) {
        drop(self.claim);
        if self.start.get().is_some() {
            self.keeper.join_next().await;
        }
    }
}

/// Starts a process and keeps it until it is claimed, or for `warm_idle`; `None` if it has ended.
async fn keep(
    host: Host,
    settings: Arc<Settings>,
    kind: SpareKind,
    start: Arc<OnceLock<Start>>,
    failure: Arc<Mutex<Option<String>>>,
    claimed: oneshot::Receiver<()>,
) -> Option<AgentProcess> {
    let tag = format!("{}/warm", host.instance());
    let (at, began) = (Timestamp::now(), Instant::now());
    let mut process = match AgentProcess::start(&host, &settings, &tag, None, &kind.options, true) {
        Ok(process) => process,
        Err(error) => return fail(&failure, error.message),
    };
    let rpc = &mut process.rpc;
    let waited = async {
        process.agent = Some(process::initialize(rpc, kind.has_files).await?);
        let (pid, took) = (rpc.pid(), began.elapsed());
        // Set once, here.
        let _ = start.set(Start { pid, at, took });
        *lock(&failure) = None;
        tokio::select! {
            biased;
            claim = claimed => Ok(claim.is_ok()),
            () = sleep(settings.table.warm_idle.unsigned_abs()) => Ok(false),
            end = process::ended(rpc) => Err(end),
        }
    };
    match waited.await {
        Ok(true) => Some(process),
        Ok(false) => {
            // The exit status of a process without a session says nothing.
            let _ = rpc.stop(Duration::ZERO).await;
            None
        }
        Err(end) => {
            let end: End = process::stop(rpc, end, Duration::ZERO).await;
            fail(&failure, outcome(end, None).error.unwrap_or_default())
        }
    }
}

fn fail(failure: &Mutex<Option<String>>, reason: String) -> Option<AgentProcess> {
    tracing::warn!("a warm process failed: {reason}");
    *lock(failure) = Some(reason);
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
