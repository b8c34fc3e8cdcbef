//! Connections that read, opened when they are needed. A caller has one to itself while it reads, so that a long answer
//! delays no other one. *Invariant: no read waits without a limit, and a connection whose answer was not read to its end
//! is closed.*

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::{Client, Row};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::link::{Link, explain};
use super::target::Target;
use super::{closed, lock};
use crate::rows::statement::Statement;
use forge_store::{Error, Result};

pub(crate) struct Readers {
    target: Target,
    room: Semaphore,
    /// Longest read, with the wait for a connection.
    limit: Duration,
    idle: Mutex<Vec<Reader>>,
    /// Drives the connections.
    tasks: TaskTracker,
}

/// A connection; closed when it is dropped.
struct Reader {
    client: Arc<Client>,
    _connection: AbortOnDropHandle<()>,
}

impl Readers {
    pub(crate) fn new(
        target: Target,
        count: usize,
        limit: Duration,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            room: Semaphore::new(count.max(1)),
            limit,
            idle: Mutex::default(),
            tasks,
        })
    }

    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<Row>> {
        let limit = self.limit;
        let late = || Error::Unavailable(format!("the database did not answer within {limit:?}"));
        let read = timeout(limit, self.read_once(&statement)).await;
        read.unwrap_or_else(|_| Err(late()))
    }

    async fn read_once(&self, statement: &Statement<'_>) -> Result<Vec<Row>> {
        let _room = self.room.acquire().await.map_err(|_| closed())?;
        let idle = lock(&self.idle).pop();
        // A connection can have ended while it was idle: the statement is tried once more on a new one.
        if let Some(reader) = idle.filter(|reader| !reader.client.is_closed()) {
            match statement.rows(&reader.client).await {
                Err(error) if error.is_closed() => {}
                answer => return self.answer(reader, answer),
            }
        }
        let reader = self.connect().await.map_err(Error::Unavailable)?;
        let answer = statement.rows(&reader.client).await;
        self.answer(reader, answer)
    }

    async fn connect(&self) -> Result<Reader, String> {
        let link = Link::connect_within(&self.target, self.limit).await?;
        let (client, connection) = link.split();
        let driving = self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = explain(&error), "a reading connection has ended");
            }
        });
        Ok(Reader {
            client,
            _connection: AbortOnDropHandle::new(driving),
        })
    }

    fn answer(
        &self,
        reader: Reader,
        answer: Result<Vec<Row>, tokio_postgres::Error>,
    ) -> Result<Vec<Row>> {
        if !self.room.is_closed() && !reader.client.is_closed() {
            lock(&self.idle).push(reader);
        }
        answer.map_err(|error| Error::Unavailable(explain(&error)))
    }

    /// Refuses further reads and closes the connections.
    pub(crate) fn close(&self) {
        self.room.close();
        lock(&self.idle).clear();
    }
}
