//! Threads that read, each with its own connection. Short queries have a thread of their own, so that the scheduler
//! and the outbox never wait behind a list.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::change::refusal;
use super::{closed, connection, lock};
use forge_store::{Config, Result};

/// Queries that wait for one group of threads; further callers wait for room.
const MAX_WAITING: usize = 1024;

/// Cost of a query. All are bounded, so none is interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// A few steps in an index.
    Short,
    /// A page of rows.
    Long,
}

pub(super) struct ReaderPool {
    file: PathBuf,
    busy_timeout: Duration,
    short: JobQueue,
    long: JobQueue,
    /// Read-locked while a query runs.
    access: RwLock<()>,
    /// One for each thread, opened by its first query.
    connections: Vec<Mutex<Option<Connection>>>,
}

impl ReaderPool {
    /// Starts one thread for short queries, and the rest, at least one, for long ones.
    pub(super) fn start(file: &Path, config: &Config) -> io::Result<Arc<Self>> {
        let threads = config.readers.max(2);
        let pool = Arc::new(Self {
            file: file.to_owned(),
            busy_timeout: config.busy_timeout,
            short: JobQueue::default(),
            long: JobQueue::default(),
            access: RwLock::default(),
            connections: (0..threads).map(|_| Mutex::default()).collect(),
        });
        let lengths = iter::once(Length::Short).chain(iter::repeat(Length::Long));
        for (thread, length) in lengths.take(threads).enumerate() {
            let pool = Arc::clone(&pool);
            let builder = thread::Builder::new().name("store-reader".to_owned());
            builder.spawn(move || pool.run(length, &pool.connections[thread]))?;
        }
        Ok(pool)
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let queue = self.queue(length);
        let room = Arc::clone(&queue.room).acquire_owned().await;
        let room = room.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        queue.submit(Box::new(move |connection| {
            let result = connection.and_then(query);
            drop(room);
            // The caller can have gone away.
            let _ = reply.send(result);
        }));
        let result = answer.await.map_err(|_| closed())?;
        result.map_err(|error| refusal(&error))
    }

    /// Closes every connection after the query that it runs; further queries wait until the guard is dropped.
    pub(super) fn suspend(&self) -> RwLockWriteGuard<'_, ()> {
        let access = self.access.write();
        let access = access.unwrap_or_else(PoisonError::into_inner);
        for connection in &self.connections {
            lock(connection).take();
        }
        access
    }

    /// Ends the threads, without waiting for them. Queries that wait are dropped.
    pub(super) fn close(&self) {
        self.short.close();
        self.long.close();
    }

    fn queue(&self, length: Length) -> &JobQueue {
        match length {
            Length::Short => &self.short,
            Length::Long => &self.long,
        }
    }

    /// Serves queries until the pool is closed.
    fn run(&self, length: Length, connection: &Mutex<Option<Connection>>) {
        let queue = self.queue(length);
        while let Some(job) = queue.next() {
            let _access = self.access.read().unwrap_or_else(PoisonError::into_inner);
            if !queue.room.is_closed() {
                self.run_job(&mut lock(connection), job);
            }
        }
    }

    fn run_job(&self, open: &mut Option<Connection>, job: Job) {
        let opened = match open.take() {
            Some(connection) => Ok(connection),
            None => connection::open_reader(&self.file, self.busy_timeout),
        };
        match opened {
            Ok(connection) => {
                let run = catch_unwind(AssertUnwindSafe(|| job(Ok(&connection))));
                // After a panic the connection is in an unknown state; the caller sees no answer.
                *open = run.is_ok().then_some(connection);
            }
            Err(error) => job(Err(error)),
        }
    }
}

type Job = Box<dyn FnOnce(rusqlite::Result<&Connection>) + Send>;

/// Queries that wait for one group of threads.
struct JobQueue {
    jobs: Mutex<VecDeque<Job>>,
    wake: Condvar,
    /// Closed before `jobs` is emptied for the last time.
    room: Arc<Semaphore>,
}

impl Default for JobQueue {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            wake: Condvar::new(),
            room: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }
}

impl JobQueue {
    fn submit(&self, job: Job) {
        let mut jobs = lock(&self.jobs);
        if !self.room.is_closed() {
            jobs.push_back(job);
            self.wake.notify_one();
        }
    }

    /// Waits for a query; `None` after the pool was closed.
    fn next(&self) -> Option<Job> {
        let waits = |jobs: &mut VecDeque<Job>| jobs.is_empty() && !self.room.is_closed();
        let jobs = self.wake.wait_while(lock(&self.jobs), waits);
        jobs.unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn close(&self) {
        self.room.close();
        lock(&self.jobs).clear();
        self.wake.notify_all();
    }
}
