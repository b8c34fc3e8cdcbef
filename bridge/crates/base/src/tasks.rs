//! Where the tasks of a bridge run. Connections have threads of their own, so that however many read
//! along, what executes and delivers goes on, and neither wakes the threads of the other for nothing.

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Tasks that are waited for at the end. They run where this was made, whoever spawns them.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    home: Handle,
}

impl Tasks {
    /// At home in the runtime that this is called in.
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

    /// One that runs where this is called.
    pub fn spawn_here<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.tracker.spawn(task)
    }

    pub fn close(&self) {
        self.tracker.close();
    }

    /// Until it is closed and all have ended.
    pub async fn wait(&self) {
        self.tracker.wait().await;
    }

    /// How many have not ended.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}

/// A runtime with half of the processors: the work has one, and each [`Edge`] another.
pub fn half_runtime() -> io::Result<Runtime> {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    Builder::new_multi_thread()
        .worker_threads(processors.div_ceil(2))
        .enable_all()
        .build()
}

/// A runtime of connections. Dropped, it ends what still runs in it, and waits for nobody.
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
