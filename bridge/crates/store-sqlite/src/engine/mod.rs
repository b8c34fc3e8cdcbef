//! SQLite as an engine: one thread that writes with group commit, one that checkpoints, a pool that reads, and
//! recovery after a failure. It knows connections, files and threads; no table and no dispatch. *Invariant: a change is
//! answered after its commit is synced, one that was refused is not in the file, and after the start nothing but SQLite
//! opens the database file.*

mod change;
mod checkpointer;
pub(super) mod connection;
mod failure;
mod folder_lock;
mod reader_pool;
mod recovery;
#[cfg(test)]
mod tests;
mod wal;
mod write_queue;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use forge_store::meters::Meters;
use forge_store::{Error, Result};

pub(super) use change::{Failure, Urgency};
pub(super) use folder_lock::FolderLock;
pub(super) use reader_pool::Length;
pub(super) use wal::{make_durable, sync_folder};

use reader_pool::ReaderPool;
use write_queue::WriteQueue;
use writer::Writer;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) file: PathBuf,
    /// Connections that read.
    pub(super) readers: usize,
    /// The WAL is truncated above this length, even if that delays writers.
    pub(super) wal_limit_bytes: u64,
    /// Longest wait for a write lock that another process holds.
    pub(super) busy_timeout: Duration,
    /// Bounds of the write queue.
    pub(super) queue_ops: usize,
    pub(super) queue_bytes: usize,
}

/// In-memory state that changes with the file: rolled back with a transaction, published after its commit.
pub(super) trait TransactionState: Send + 'static {
    type Savepoint: Copy;

    fn savepoint(&self) -> Self::Savepoint;
    fn rollback_to(&mut self, savepoint: Self::Savepoint);
    /// Publishes the state; runs after a commit is synced and before its changes are answered.
    fn committed(&mut self);
    /// Reads the state from the reopened file and writes a trial row. False if the file is another store's.
    fn reload(&mut self, connection: &Connection) -> rusqlite::Result<bool>;
}

/// `Ok` while changes can be written, otherwise the reason why not.
type Status = Arc<Mutex<Result<(), String>>>;

/// Handle to an open database file. Dropping it writes the queued changes and closes the file.
pub(super) struct Engine<S: TransactionState> {
    queue: Arc<WriteQueue<S>>,
    readers: Arc<ReaderPool>,
    status: Status,
    meters: Arc<Meters>,
}

impl<S: TransactionState> Engine<S> {
    /// Starts the threads. `connection` has been configured for writing, and `state` was read from it.
    pub(super) fn start(
        settings: Settings,
        lock: FolderLock,
        connection: Connection,
        state: S,
    ) -> io::Result<Self> {
        let queue = Arc::new(WriteQueue::new(settings.queue_ops, settings.queue_bytes));
        let readers = Arc::new(ReaderPool::start(&settings)?);
        let status = Status::new(Mutex::new(Ok(())));
        let meters = Arc::<Meters>::default();
        let engine = Self {
            queue: Arc::clone(&queue),
            readers: Arc::clone(&readers),
            status: Arc::clone(&status),
            meters: Arc::clone(&meters),
        };
        Writer::start(writer::Setup {
            settings,
            lock,
            connection,
            state,
            queue,
            readers,
            status,
            meters,
        })?;
        Ok(engine)
    }

    pub(super) fn status(&self) -> Result<(), String> {
        lock(&self.status).clone()
    }

    pub(super) fn meters(&self) -> Arc<Meters> {
        self.meters.queue_bytes.set(self.queue.bytes_in_use());
        Arc::clone(&self.meters)
    }

    /// Waits for room in the queue, then for the commit. `change` is run again if its transaction was rolled back
    /// because of another change.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        change: impl Fn(&Connection, &mut S) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.queue.submit(urgency, bytes, change).await
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<rusqlite::Result<T>> {
        self.readers.read(length, query).await
    }

    /// Returns after the queued changes are on disk and the file is closed.
    pub(super) async fn close(&self) {
        self.readers.close();
        self.queue.close().await;
    }
}

impl<S: TransactionState> Drop for Engine<S> {
    fn drop(&mut self) {
        self.readers.close();
        self.queue.request_close();
    }
}

fn closed() -> Error {
    Error::Unavailable("it is closed".to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
