//! Connections that read, each used by one query at a time on a blocking thread of the runtime. Short queries have a
//! connection of their own, so that the scheduler and the outbox never wait behind a list.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, InterruptHandle};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{Settings, closed, connection, lock};
use forge_store::Result;

/// Interval at which running queries are interrupted until they have ended.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

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
    /// One connection for short queries, and the rest, at least one, for long ones.
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            short: Readers::new(settings, 1),
            long: Readers::new(settings, settings.readers.saturating_sub(1).max(1)),
        }
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<rusqlite::Result<T>> {
        let readers = match length {
            Length::Short => Arc::clone(&self.short),
            Length::Long => Arc::clone(&self.long),
        };
        let turn = Arc::clone(&readers.turns).acquire_owned().await;
        let turn = turn.map_err(|_| closed())?;
        let run = spawn_blocking(move || {
            let result = readers.run(query);
            drop(turn);
            result
        });
        // An error means that the query panicked, or that the runtime ends.
        run.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Closes every connection and keeps queries waiting until `resume`. Running queries are interrupted.
    pub(super) fn suspend(&self) {
        self.set(Access::Suspended);
        self.wait_until_disconnected();
    }

    pub(super) fn resume(&self) {
        self.set(Access::Open);
    }

    /// Refuses further queries, without waiting for those that run.
    pub(super) fn close(&self) {
        self.set(Access::Closed);
    }

    /// Interrupts running queries, after `suspend` or `close`, and returns when no connection is open.
    pub(super) fn wait_until_disconnected(&self) {
        self.short.wait_until_disconnected();
        self.long.wait_until_disconnected();
    }

    fn set(&self, access: Access) {
        self.short.set(access);
        self.long.set(access);
    }
}

/// Connections of one kind of queries.
struct Readers {
    file: PathBuf,
    busy_timeout: Duration,
    /// A permit for each connection.
    turns: Arc<Semaphore>,
    state: Mutex<State>,
    /// Signals a change of `access`, and the end of a query.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    access: Access,
    idle: Vec<Connection>,
    /// Queries that run or open a connection.
    running: usize,
    /// Of all open connections; those of closed ones have no effect.
    handles: Vec<InterruptHandle>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Access {
    #[default]
    Open,
    Suspended,
    Closed,
}

/// Counts a query that ends, also by a panic. Declared before its connection, which is thus closed earlier.
struct Running<'a>(&'a Readers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running -= 1;
        self.0.changed.notify_all();
    }
}

impl Readers {
    fn new(settings: &Settings, connections: usize) -> Arc<Self> {
        Arc::new(Self {
            file: settings.file.clone(),
            busy_timeout: settings.busy_timeout,
            turns: Arc::new(Semaphore::new(connections)),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn run<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<rusqlite::Result<T>> {
        let mut state = lock(&self.state);
        while state.access == Access::Suspended {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.access == Access::Closed {
            return Err(closed());
        }
        state.running += 1;
        let idle = state.idle.pop();
        drop(state);
        let _running = Running(self);
        let connection = match idle.map_or_else(|| self.connect(), Ok) {
            Ok(connection) => connection,
            Err(error) => return Ok(Err(error)),
        };
        let result = query(&connection);
        let mut state = lock(&self.state);
        if state.access == Access::Open {
            state.idle.push(connection);
        }
        Ok(result)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let connection = connection::open_reader(&self.file, self.busy_timeout)?;
        let handle = connection.get_interrupt_handle();
        lock(&self.state).handles.push(handle);
        Ok(connection)
    }

    /// A closed pool stays closed.
    fn set(&self, access: Access) {
        let mut state = lock(&self.state);
        if state.access != Access::Closed {
            state.access = access;
        }
        if state.access != Access::Open {
            state.idle.clear();
        }
        if state.access == Access::Closed {
            self.turns.close();
        }
        self.changed.notify_all();
    }

    fn wait_until_disconnected(&self) {
        let mut state = lock(&self.state);
        while state.running > 0 {
            for handle in &state.handles {
                handle.interrupt();
            }
            let waited = self.changed.wait_timeout(state, INTERRUPT_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.handles.clear();
    }
}
