//! Threads that read, each with its own connection. Short queries have a thread of their own, so that the scheduler
//! and the outbox never wait behind a list.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

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
    short: Arc<Readers>,
    long: Arc<Readers>,
}

impl ReaderPool {
    /// Starts one thread for short queries, and the rest, at least one, for long ones.
    pub(super) fn start(file: &Path, config: &Config) -> io::Result<Self> {
        let long = config.readers.saturating_sub(1).max(1);
        Ok(Self {
            short: Readers::start(file, config, 1)?,
            long: Readers::start(file, config, long)?,
        })
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<rusqlite::Result<T>> {
        let readers = match length {
            Length::Short => &self.short,
            Length::Long => &self.long,
        };
        let room = Arc::clone(&readers.room).acquire_owned().await;
        let room = room.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        readers.submit(Box::new(move |connection| {
            let result = connection.and_then(query);
            drop(room);
            // The caller can have gone away.
            let _ = reply.send(result);
        }));
        answer.await.map_err(|_| closed())
    }

    /// Closes every connection, after the query that it runs, and keeps further queries waiting until `resume`.
    pub(super) fn suspend(&self) {
        self.all(|readers| readers.set(Access::Suspended));
        self.wait_until_closed();
    }

    pub(super) fn resume(&self) {
        self.all(|readers| readers.set(Access::Open));
    }

    /// Ends the threads, without waiting for them. Queries that wait are dropped.
    pub(super) fn close(&self) {
        self.all(|readers| {
            readers.room.close();
            readers.set(Access::Closed);
        });
    }

    /// Returns when no connection is open, after `suspend` or `close`.
    pub(super) fn wait_until_closed(&self) {
        self.all(|readers| {
            let mut state = lock(&readers.state);
            while state.connections > 0 {
                let waited = readers.closed_one.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        });
    }

    fn all(&self, each: impl Fn(&Readers)) {
        each(&self.short);
        each(&self.long);
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.close();
    }
}

type Job = Box<dyn FnOnce(rusqlite::Result<&Connection>) + Send>;

/// Threads that serve one queue.
struct Readers {
    file: PathBuf,
    busy_timeout: Duration,
    state: Mutex<State>,
    /// Wakes a thread.
    wake: Condvar,
    /// Signals that a connection was closed.
    closed_one: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    access: Access,
    jobs: VecDeque<Job>,
    sleeping: usize,
    connections: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Access {
    #[default]
    Open,
    Suspended,
    Closed,
}

impl Readers {
    fn start(file: &Path, config: &Config, threads: usize) -> io::Result<Arc<Self>> {
        let readers = Arc::new(Self {
            file: file.to_owned(),
            busy_timeout: config.busy_timeout,
            state: Mutex::default(),
            wake: Condvar::new(),
            closed_one: Condvar::new(),
            room: Arc::new(Semaphore::new(MAX_WAITING)),
        });
        for _ in 0..threads {
            let readers = Arc::clone(&readers);
            std::thread::Builder::new()
                .name("store-reader".to_owned())
                .spawn(move || readers.run())?;
        }
        Ok(readers)
    }

    fn submit(&self, job: Job) {
        let mut state = lock(&self.state);
        if state.access == Access::Closed {
            return;
        }
        state.jobs.push_back(job);
        if state.sleeping > 0 {
            self.wake.notify_one();
        }
    }

    /// Closed readers stay closed.
    fn set(&self, access: Access) {
        let mut state = lock(&self.state);
        if state.access != Access::Closed {
            state.access = access;
        }
        if state.access == Access::Closed {
            state.jobs.clear();
        }
        self.wake.notify_all();
    }

    /// Serves queries until the pool is closed.
    fn run(&self) {
        let mut open: Option<Connection> = None;
        let mut state = lock(&self.state);
        while state.access != Access::Closed {
            if state.access == Access::Suspended && open.is_some() {
                drop(state);
                self.disconnect(open.take());
                state = lock(&self.state);
            } else if state.access == Access::Open
                && let Some(job) = state.jobs.pop_front()
            {
                // Counted before it is opened, so that `suspend` waits for it.
                state.connections += usize::from(open.is_none());
                drop(state);
                open = self.run_job(open, job);
                state = lock(&self.state);
            } else {
                state.sleeping += 1;
                let woken = self.wake.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
        drop(state);
        if open.is_some() {
            self.disconnect(open);
        }
    }

    fn run_job(&self, open: Option<Connection>, job: Job) -> Option<Connection> {
        let opened = open.map_or_else(
            || connection::open_reader(&self.file, self.busy_timeout),
            Ok,
        );
        let run = |connection| catch_unwind(AssertUnwindSafe(|| job(connection)));
        match opened {
            // After a panic the connection is in an unknown state; the caller sees no answer.
            Ok(connection) => match run(Ok(&connection)) {
                Ok(()) => return Some(connection),
                Err(_) => self.disconnect(Some(connection)),
            },
            Err(error) => {
                // The job only passes the error on.
                let _ = run(Err(error));
                self.disconnect(None);
            }
        }
        None
    }

    /// Closes a connection that was counted, if it could be opened.
    fn disconnect(&self, connection: Option<Connection>) {
        drop(connection);
        lock(&self.state).connections -= 1;
        self.closed_one.notify_all();
    }
}
