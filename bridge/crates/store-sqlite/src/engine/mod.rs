//! SQLite as an engine: one thread that writes with group commit, one that checkpoints, a pool of readers, and
//! recovery after a failure. It knows connections, files and threads; no table and no dispatch. *Invariant: a change is
//! answered after its commit is synced, one that was refused is not in the file, and after the start nothing but SQLite
//! opens the database file.*

mod change;
mod checkpointer;
pub(super) mod connection;
mod failure;
#[cfg(test)]
mod progress_tests;
mod reader_pool;
mod recovery;
#[cfg(test)]
mod tests;
pub(super) mod wal;
mod write_queue;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::watch;

use forge_base::folder_lock::FolderLock;
use forge_store::meters::Meters;
use forge_store::progress::{StoreHealth, WriteProgress};
use forge_store::{Config, Error, Result};

pub(super) use change::{Failure, Urgency};
pub(super) use reader_pool::Length;

use reader_pool::ReaderPool;
use write_queue::WriteQueue;
use writer::Writer;

/// In-memory state that changes with the file: rolled back with a transaction, published after its commit.
pub(super) trait TransactionState: Send + 'static {
    type Savepoint: Copy;

    fn savepoint(&self) -> Self::Savepoint;
    fn rollback_to(&mut self, savepoint: Self::Savepoint);
    /// Publishes the state; runs after a commit is synced and before its changes are answered.
    fn committed(&mut self);
    /// Reads the state from the reopened file, publishes it, and writes a trial row. False if the file is another store's.
    fn reload(&mut self, connection: &Connection) -> rusqlite::Result<bool>;
}

/// Handle to an open database file. Dropping it writes the queued changes and closes the file.
pub(super) struct Engine<S: TransactionState>(Arc<Shared<S>>);

/// Parts that the handle shares with the writer thread.
struct Shared<S> {
    file: PathBuf,
    config: Config,
    queue: WriteQueue<S>,
    readers: Arc<ReaderPool>,
    meters: Arc<Meters>,
    progress: Arc<WriteProgress>,
    /// The files were removed or replaced under the open store.
    is_moved: watch::Sender<bool>,
    /// The writer thread has closed the file.
    is_closed: watch::Sender<bool>,
}

impl<S: TransactionState> Engine<S> {
    /// Starts the writer thread. `connection` has been configured for writing, and `state` was read from it.
    pub(super) fn start(
        file: PathBuf,
        config: Config,
        lock: FolderLock,
        connection: Connection,
        state: S,
    ) -> io::Result<Self> {
        let progress = Arc::new(WriteProgress::new(config.stall));
        let shared = Arc::new(Shared {
            queue: WriteQueue::new(config.queue_bytes, Arc::clone(&progress)),
            progress,
            readers: ReaderPool::start(&file, &config)?,
            meters: Arc::default(),
            is_moved: watch::Sender::new(false),
            is_closed: watch::Sender::new(false),
            file,
            config,
        });
        let wal = wal::watched(&shared.file)?;
        Writer::start(Arc::clone(&shared), lock, wal, connection, state)?;
        Ok(Self(shared))
    }

    pub(super) fn health(&self) -> StoreHealth {
        let refusal = self.0.queue.refusal();
        refusal.map_or_else(|| self.0.progress.health(), StoreHealth::Offline)
    }

    /// Returns, with the reason, once the writer thread has made no progress for `Config::stall` and the changes that
    /// waited for it are refused.
    pub(super) async fn stalled(&self) -> String {
        let reason = self.0.progress.stalled().await;
        self.0.queue.refuse_waiting(&reason);
        reason
    }

    /// Returns after the files were removed or replaced under the open store.
    pub(super) async fn moved(&self) {
        // The sender lives as long as this handle.
        let _ = self.0.is_moved.subscribe().wait_for(|moved| *moved).await;
    }

    pub(super) fn meters(&self) -> Arc<Meters> {
        (self.0.meters.queue_bytes).set(self.0.queue.bytes_in_use());
        self.0.meters.progress.set(&self.0.progress.report());
        Arc::clone(&self.0.meters)
    }

    /// Waits for room in the queue, then for the commit. `change` is run again if its transaction was rolled back
    /// because of another change.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        change: impl Fn(&Connection, &mut S) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.0.queue.submit(urgency, bytes, change).await
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.readers.read(length, query).await
    }

    /// Returns after the queued changes are on disk and the file is closed, or with the reason if the writer thread makes
    /// no progress for `Config::stall` from now on: a store that has failed before is closed, too.
    pub(super) async fn close(&self) -> Option<String> {
        self.0.readers.close();
        self.0.queue.close();
        let mut closed = self.0.is_closed.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as this handle.
            _ = closed.wait_for(|closed| *closed) => None,
            reason = async {
                tokio::time::sleep(self.0.progress.stall()).await;
                self.stalled().await
            } => Some(reason),
        }
    }
}

impl<S: TransactionState> Drop for Engine<S> {
    fn drop(&mut self) {
        self.0.readers.close();
        self.0.queue.close();
    }
}

const CLOSED: &str = "it is closed";

fn closed() -> Error {
    Error::Unavailable(CLOSED.to_owned())
}

/// Locks the mutex, also if a thread panicked while it held it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
