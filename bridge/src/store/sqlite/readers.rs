//! A few read-only connections, lent out one at a time to threads that may block.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::schema;
use super::writer::Failure;
use crate::store::Error;

pub(super) struct Readers {
    file: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

struct Idle {
    connections: Vec<Connection>,
    /// Raised when the file is opened anew: older connections are not taken back.
    generation: u64,
}

impl Readers {
    pub(super) fn new(file: PathBuf, count: usize) -> Self {
        Self {
            file,
            permits: Arc::new(Semaphore::new(count.max(1))),
            idle: Mutex::new(Idle {
                connections: Vec::new(),
                generation: 0,
            }),
        }
    }

    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| Error::Unavailable("it is closed".to_owned()))?;
        let readers = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            let (connection, generation) = readers.lend()?;
            let result = query(&connection);
            readers.take_back(connection, generation);
            drop(permit);
            result
        });
        match reading.await {
            Ok(result) => result.map_err(Failure::into_error),
            Err(error) => Err(Error::Unavailable(error.to_string())),
        }
    }

    fn lend(&self) -> rusqlite::Result<(Connection, u64)> {
        let (connection, generation) = {
            let mut idle = self.idle();
            (idle.connections.pop(), idle.generation)
        };
        let connection = match connection {
            Some(connection) => connection,
            None => schema::open_reader(&self.file)?,
        };
        Ok((connection, generation))
    }

    fn take_back(&self, connection: Connection, generation: u64) {
        let mut idle = self.idle();
        if idle.generation == generation && !self.permits.is_closed() {
            idle.connections.push(connection);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is idle now, and what is lent out when it comes back.
    pub(super) fn forget(&self) {
        let mut idle = self.idle();
        idle.generation += 1;
        idle.connections.clear();
    }

    pub(super) fn close(&self) {
        self.permits.close();
        self.forget();
    }
}
