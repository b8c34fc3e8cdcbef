//! Connections that read, each used by one query at a time on a blocking thread of the runtime. Short queries have a
//! connection of their own, so that the scheduler and the outbox never wait behind a list.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{closed, connection, lock};
use forge_store::{Config, Result};

/// Cost of a query. All are bounded, so none is interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// A few steps in an index.
    Short,
    /// A page of rows.
    Long,
}

pub(super) struct ReaderPool {
    /// A permit for each query that can run.
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    connections: Arc<Connections>,
}

impl ReaderPool {
    /// One query can be short, and the rest, at least one, long.
    pub(super) fn new(file: &Path, config: &Config) -> Self {
        Self {
            short: Arc::new(Semaphore::new(1)),
            long: Arc::new(Semaphore::new(config.readers.saturating_sub(1).max(1))),
            connections: Arc::new(Connections {
                file: file.to_owned(),
                busy_timeout: config.busy_timeout,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<rusqlite::Result<T>> {
        let turns = match length {
            Length::Short => &self.short,
            Length::Long => &self.long,
        };
        let turn = Arc::clone(turns).acquire_owned().await;
        let turn = turn.map_err(|_| closed())?;
        let connections = Arc::clone(&self.connections);
        let run = spawn_blocking(move || {
            let result = connections.run(query);
            drop(turn);
            result
        });
        // An error means that the query panicked, or that the runtime ends.
        run.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Closes every connection, after the query that it runs, and keeps further queries waiting until `resume`.
    pub(super) fn suspend(&self) {
        self.connections.set(Access::Suspended);
        self.connections.wait_until_closed();
    }

    pub(super) fn resume(&self) {
        self.connections.set(Access::Open);
    }

    /// Refuses further queries, without waiting for those that run.
    pub(super) fn close(&self) {
        self.short.close();
        self.long.close();
        self.connections.set(Access::Closed);
    }

    /// Returns when no connection is open, after `close`.
    pub(super) fn wait_until_closed(&self) {
        self.connections.wait_until_closed();
    }
}

struct Connections {
    file: PathBuf,
    busy_timeout: Duration,
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
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Access {
    #[default]
    Open,
    Suspended,
    Closed,
}

/// Counts a query that ends, also by a panic. Declared before its connection, which is thus closed earlier.
struct Running<'a>(&'a Connections);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running -= 1;
        self.0.changed.notify_all();
    }
}

impl Connections {
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
        let open = || connection::open_reader(&self.file, self.busy_timeout);
        let connection = match idle.map_or_else(open, Ok) {
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

    /// Closed connections stay closed.
    fn set(&self, access: Access) {
        let mut state = lock(&self.state);
        if state.access != Access::Closed {
            state.access = access;
        }
        if state.access != Access::Open {
            state.idle.clear();
        }
        self.changed.notify_all();
    }

    fn wait_until_closed(&self) {
        let mut state = lock(&self.state);
        while state.running > 0 {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
