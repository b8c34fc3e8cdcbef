//! PostgreSQL as an engine: a task that writes changes in batches, connections that read, and what becomes of a commit
//! whose answer is lost. It knows connections and batches; no dispatch. *Invariant: a change is answered after its
//! transaction has committed, and one that was refused is not in the database.*

mod change;
mod connect;
mod counter;
mod doubt;
pub(crate) mod instant;
mod keeper;
pub(crate) mod link;
mod outcome;
mod probe;
mod queue;
pub(crate) mod readers;
pub(crate) mod server_state;
pub(crate) mod target;
pub(crate) mod timeouts;
mod tls;
mod url;
mod vitals;
mod writer;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::batch::{Needs, Placed};
use crate::published::Published;
use crate::rows::statement::Statement;
use forge_store::meters::Meters;
use forge_store::progress::{StoreHealth, WriteProgress};
use forge_store::{Config, Error, Result};

pub(crate) use change::Decide;
use doubt::Slots;
use instant::Instant;
use keeper::Keeper;
use link::Link;
use queue::WriteQueue;
use readers::Readers;
use target::Target;
use timeouts::{CLOSE_TIMEOUT, READ_TIMEOUT, poll_timeout, write_timeout};
use writer::Writer;

/// Handle to an open database. Dropping it writes the queued changes.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    readers: Arc<Readers>,
    /// The writer, and the questions for outcomes.
    writing: TaskTracker,
    /// Gives the writer up.
    abandon: CancellationToken,
    /// Everything else.
    tasks: TaskTracker,
    keeper: CancellationToken,
    _keeper: DropGuard,
}

/// Parts that the handle shares with the writer.
struct Shared {
    target: Target,
    queue: WriteQueue,
    published: Arc<Published>,
    meters: Arc<Meters>,
    progress: Arc<WriteProgress>,
    /// Begin of the batch or of the connecting under way; none while the writer is connected and waits.
    busy_since: Mutex<Option<Instant>>,
    slots: Slots,
    /// Before the last request that began or renewed the lease.
    renewed: Mutex<Instant>,
    /// Epoch under which a commit of unknown outcome can have started what this node does not run; 0: none.
    doubted_epoch: AtomicU64,
}

impl Engine {
    /// Starts the writer on the first connection, and on the second one the keeper of the lease, which was asked for at
    /// `begun`.
    pub(crate) fn start(
        config: &Config,
        target: Target,
        [mut writing_link, mut keeping_link]: [Link; 2],
        begun: Instant,
        published: &Arc<Published>,
    ) -> Self {
        writing_link.set_limit(write_timeout(Some(config.lease)));
        keeping_link.set_limit(poll_timeout(config.lease));
        let tasks = TaskTracker::new();
        let readers = Readers::new(
            target.clone(),
            &published.identity.store_id,
            config.readers,
            READ_TIMEOUT,
            tasks.clone(),
        );
        let progress = Arc::new(WriteProgress::new(config.stall));
        let shared = Arc::new(Shared {
            target,
            queue: WriteQueue::new(config.queue_bytes, Arc::clone(&progress)),
            progress,
            busy_since: Mutex::default(),
            slots: Slots::default(),
            published: Arc::clone(published),
            meters: Arc::default(),
            renewed: Mutex::new(begun),
            doubted_epoch: AtomicU64::new(0),
        });
        let writing = TaskTracker::new();
        let writer = Writer::new(Arc::clone(&shared), writing_link, writing.clone());
        let abandon = CancellationToken::new();
        writing.spawn(abandon.clone().run_until_cancelled_owned(writer.run()));
        let keeper = CancellationToken::new();
        let keeping = Keeper::new(Arc::clone(&shared), tasks.clone(), keeping_link);
        tasks.spawn(keeping.run(keeper.clone()));
        let watching = vitals::watch(Arc::clone(&readers), Arc::clone(&shared.meters));
        tasks.spawn(keeper.clone().run_until_cancelled_owned(watching));
        Self {
            shared,
            readers,
            writing,
            abandon,
            tasks,
            _keeper: keeper.clone().drop_guard(),
            keeper,
        }
    }

    pub(crate) fn health(&self) -> StoreHealth {
        let refusal = self.shared.queue.refusal();
        refusal.map_or_else(|| self.shared.progress.health(), StoreHealth::Offline)
    }

    /// Returns, with the reason, once the writer has made no progress for `Config::stall` and the changes that waited for
    /// it are refused.
    pub(crate) async fn stalled(&self) -> String {
        let reason = self.shared.progress.stalled().await;
        self.shared.queue.refuse_waiting(&reason);
        reason
    }

    pub(crate) fn meters(&self) -> Arc<Meters> {
        let meters = &self.shared.meters;
        meters.queue_bytes.set(self.shared.queue.bytes_in_use());
        meters.progress.set(&self.shared.progress.report());
        let age = lock(&self.shared.renewed).elapsed();
        meters.shared.lease_age_ms.set(age.as_millis() as u64);
        Arc::clone(meters)
    }

    /// Waits for room in the queue, then for the commit. Returns the positions of the batch besides.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        needs: Needs,
        decide: impl Decide<T>,
    ) -> Result<(T, Placed)> {
        self.shared.queue.submit(bytes, needs, decide).await
    }

    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<Row>> {
        self.readers.read(statement).await
    }

    /// Returns after the queued changes have committed and the connections are closed, or with the reason if the writer
    /// makes no progress for `Config::stall`.
    pub(crate) async fn close(&self) -> Option<String> {
        self.shared.queue.close();
        self.readers.close();
        self.writing.close();
        let stalled = tokio::select! {
            biased;
            () = self.writing.wait() => None,
            reason = self.stalled() => Some(reason),
        };
        if stalled.is_some() {
            self.abandon.cancel();
        }
        self.keeper.cancel();
        self.tasks.close();
        if timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("connections of the store have not ended");
        }
        stalled
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.readers.close();
    }
}

const TAKEN: &str = "another bridge has started as this node";
const CLOSED: &str = "it is closed";

fn closed() -> Error {
    Error::Unavailable(CLOSED.to_owned())
}

/// Locks the mutex, also if a thread panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
