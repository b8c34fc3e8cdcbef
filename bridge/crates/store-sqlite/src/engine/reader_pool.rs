//! Threads that read, each with its own connection. Short queries have a thread of their own, so that the scheduler
//! and the outbox never wait behind a list.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, InterruptHandle};
use tokio::sync::{Semaphore, oneshot};

use super::{Settings, closed, connection, lock};
use forge_store::Result;

/// Queries that wait for one group of threads; further callers wait for room.
const MAX_WAITING: usize = 1024;

/// Cost of a query.
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
    pub(super) fn start(settings: &Settings) -> io::Result<Self> {
        let long = settings.readers.saturating_sub(1).max(1);
        Ok(Self {
            short: Readers::start(settings, 1)?,
            long: Readers::start(settings, long)?,
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

    /// Closes every connection and keeps queries waiting until `resume`. A running query is interrupted.
    pub(super) fn suspend(&self) {
        self.all(|readers| {
            let mut state = readers.state();
            state.suspended = true;
            for handle in state.running.iter().flatten() {
                handle.interrupt();
            }
            readers.wake.notify_all();
        });
        self.wait_until_disconnected();
    }

    /// Returns after `suspend` or `close` has closed every connection.
    pub(super) fn wait_until_disconnected(&self) {
        self.all(|readers| {
            let mut state = readers.state();
            while state.connections > 0 {
                let waited = readers.closed_one.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        });
    }

    pub(super) fn resume(&self) {
        self.all(|readers| {
            readers.state().suspended = false;
            readers.wake.notify_all();
        });
    }

    /// Ends the threads, without waiting for them. Queries that wait are dropped, those that run are interrupted.
    pub(super) fn close(&self) {
        self.all(|readers| {
            readers.room.close();
            let mut state = readers.state();
            state.closed = true;
            state.jobs.clear();
            for handle in state.running.iter().flatten() {
                handle.interrupt();
            }
            readers.wake.notify_all();
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
    jobs: VecDeque<Job>,
    sleeping: usize,
    connections: usize,
    /// By thread, while it runs a query.
    running: Vec<Option<InterruptHandle>>,
    suspended: bool,
    closed: bool,
}

/// Next step of a thread.
enum Next {
    Run(Job),
    /// Close the connection, if there is one, and ask again.
    Release,
    End,
}

impl Readers {
    fn start(settings: &Settings, threads: usize) -> io::Result<Arc<Self>> {
        let running = (0..threads).map(|_| None).collect();
        let readers = Arc::new(Self {
            file: settings.file.clone(),
            busy_timeout: settings.busy_timeout,
            state: Mutex::new(State {
                running,
                ..State::default()
            }),
            wake: Condvar::new(),
            closed_one: Condvar::new(),
            room: Arc::new(Semaphore::new(MAX_WAITING)),
        });
        for number in 0..threads {
            let readers = Arc::clone(&readers);
            std::thread::Builder::new()
                .name("store-reader".to_owned())
                .spawn(move || readers.run(number))?;
        }
        Ok(readers)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn submit(&self, job: Job) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.jobs.push_back(job);
        if state.sleeping > 0 {
            self.wake.notify_one();
        }
    }

    fn next(&self, is_connected: bool) -> Next {
        let mut state = self.state();
        loop {
            if state.closed {
                return Next::End;
            }
            if state.suspended && is_connected {
                return Next::Release;
            }
            if !state.suspended
                && let Some(job) = state.jobs.pop_front()
            {
                // Counted before it is opened, so that `suspend` waits for it.
                state.connections += usize::from(!is_connected);
                return Next::Run(job);
            }
            state.sleeping += 1;
            let waited = self.wake.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
    }

    fn run(&self, number: usize) {
        let mut open: Option<Connection> = None;
        loop {
            match self.next(open.is_some()) {
                Next::Run(job) => open = self.run_job(number, open, job),
                Next::Release => {
                    drop(open.take());
                    self.count_closed();
                }
                Next::End => break,
            }
        }
        if open.take().is_some() {
            self.count_closed();
        }
    }

    fn run_job(&self, number: usize, open: Option<Connection>, job: Job) -> Option<Connection> {
        let opened = match open {
            Some(connection) => Ok(connection),
            None => connection::open_reader(&self.file, self.busy_timeout),
        };
        let kept = match opened {
            Ok(connection) => {
                self.state().running[number] = Some(connection.get_interrupt_handle());
                let run = catch_unwind(AssertUnwindSafe(|| job(Ok(&connection))));
                self.state().running[number] = None;
                // After a panic the connection is in an unknown state; the caller sees no answer.
                run.is_ok().then_some(connection)
            }
            Err(error) => {
                // The job only passes the error on.
                let _ = catch_unwind(AssertUnwindSafe(|| job(Err(error))));
                None
            }
        };
        if kept.is_none() {
            self.count_closed();
        }
        kept
    }

    fn count_closed(&self) {
        self.state().connections -= 1;
        self.closed_one.notify_all();
    }
}
