//! Runtimes and tracked tasks. Connections have threads of their own, so that many readers do not delay execution and
//! delivery, and neither wakes the other's threads without need.

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{self, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tasks that shutdown waits for. They run on the runtime where this was created, whichever runtime spawns them.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    home: Handle,
}

impl Tasks {
    /// Uses the runtime of the caller.
    pub fn here() -> Self {
        Self {
            tracker: TaskTracker::new(),
            home: Handle::current(),
        }
    }

    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.tracker.spawn_on(task, &self.home)
    }

    /// Spawns a task on the runtime of the caller.
    pub fn spawn_here<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.tracker.spawn(task)
    }

    pub fn close(&self) {
        self.tracker.close();
    }

    /// Waits until `close` was called and all tasks have ended.
    pub async fn wait(&self) {
        self.tracker.wait().await;
    }

    /// Number of tasks that have not ended.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}

/// Rounds of work: the first is due at once, each other one an interval later, and after a late one an interval after it.
#[derive(Debug)]
pub struct Rounds {
    ticks: Interval,
    ending: CancellationToken,
}

impl Rounds {
    pub fn every(interval: Duration, ending: CancellationToken) -> Self {
        let mut ticks = time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, ending }
    }

    /// Waits for the next round; false once the token is cancelled.
    pub async fn due(&mut self) -> bool {
        tokio::select! {
            () = self.ending.cancelled() => false,
            _ = self.ticks.tick() => true,
        }
    }

    /// Does the work of a round, which is dropped when the token is cancelled.
    pub async fn work(&self, round: impl Future) {
        self.ending.run_until_cancelled(round).await;
    }
}

/// Runtime with a thread for every second processor: one for execution and delivery, another for each [`IoRuntime`].
pub fn half_runtime() -> io::Result<Runtime> {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    Builder::new_multi_thread()
        .worker_threads(processors.div_ceil(2))
        .enable_all()
        .build()
}

/// Runtime for connections. Dropping it cancels its tasks without waiting for them.
pub struct IoRuntime(Option<Runtime>);

impl IoRuntime {
    pub fn new() -> io::Result<Self> {
        half_runtime().map(|runtime| Self(Some(runtime)))
    }

    pub fn handle(&self) -> &Handle {
        let runtime = self.0.as_ref();
        runtime.expect("it is there until it is dropped").handle()
    }
}

impl Drop for IoRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
