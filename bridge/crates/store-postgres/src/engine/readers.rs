//! Connections that read, opened when they are needed. A caller has one to itself while it reads, so that a long answer
//! delays no other one. *Invariant: no read waits without a limit, a connection whose answer was not read to its end is
//! closed, and none of before the loss of another one is used.*

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Row};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::link::explain;
use super::target::Target;
use super::timeouts::READ_RETRY;
use super::{closed, lock};
use crate::lineage;
use crate::rows::statement::Statement;
use forge_store::{Error, Result};

pub(crate) struct Readers {
    target: Target,
    store_id: String,
    room: Semaphore,
    /// Longest read, with the wait for a connection.
    limit: Duration,
    idle: Mutex<Vec<Reader>>,
    /// Bounds the connections for second attempts, beyond those of `room`: to one.
    retries: Semaphore,
    /// Drives the connections.
    tasks: TaskTracker,
}

/// A connection; closed when it is dropped.
struct Reader {
    client: Arc<Client>,
    /// Mark of its last check.
    mark: u64,
    _connection: AbortOnDropHandle<()>,
}

type Answer = Result<Vec<Row>, tokio_postgres::Error>;

impl Readers {
    pub(crate) fn new(
        target: Target,
        store_id: &str,
        count: usize,
        limit: Duration,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            store_id: store_id.to_owned(),
            room: Semaphore::new(count.max(1)),
            limit,
            idle: Mutex::default(),
            retries: Semaphore::new(1),
            tasks,
        })
    }

    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<Row>> {
        let limit = self.limit;
        let late = || Error::Unavailable(format!("the database did not answer within {limit:?}"));
        let read = timeout(limit, self.read_in_room(&statement)).await;
        read.unwrap_or_else(|_| Err(late()))
    }

    async fn read_in_room(&self, statement: &Statement<'_>) -> Result<Vec<Row>> {
        let _room = self.room.acquire().await.map_err(|_| closed())?;
        let mut first = pin!(self.read_once(self.take_idle(), statement));
        // An attempt that fails says nothing about the first one.
        let retry = async {
            loop {
                sleep(READ_RETRY).await;
                let _retry = self.retries.acquire().await;
                if let Ok((reader, answer @ Ok(_))) = self.read_once(None, statement).await {
                    return (reader, answer);
                }
            }
        };
        let (reader, answer) = tokio::select! {
            read = &mut first => read?,
            (mut reader, answer) = retry => {
                tracing::debug!("a reading connection gave no answer, and another one did");
                let server = &self.target.server;
                server.suspect_all();
                reader.mark = server.mark();
                (reader, answer)
            }
        };
        if !self.room.is_closed() && !reader.client.is_closed() {
            lock(&self.idle).push(reader);
        }
        answer.map_err(|error| Error::Unavailable(explain(&error)))
    }

    /// A connection that is not in use; those that are suspected are closed.
    fn take_idle(&self) -> Option<Reader> {
        let mark = self.target.server.mark();
        let mut idle = lock(&self.idle);
        idle.retain(|reader| reader.mark == mark && !reader.client.is_closed());
        idle.pop()
    }

    async fn read_once(
        &self,
        idle: Option<Reader>,
        statement: &Statement<'_>,
    ) -> Result<(Reader, Answer)> {
        // A connection can have ended while it was idle: the statement is tried once more on a new one.
        if let Some(reader) = idle {
            match statement.rows(&reader.client).await {
                Err(error) if error.is_closed() => {}
                answer => return Ok((reader, answer)),
            }
        }
        // Boxed, as it is large, and seldom needed.
        let reader = Box::pin(self.connect()).await.map_err(Error::Unavailable)?;
        let answer = statement.rows(&reader.client).await;
        Ok((reader, answer))
    }

    async fn connect(&self) -> Result<Reader, String> {
        let server = Arc::clone(&self.target.server);
        let link = lineage::connect_to(&self.target, &self.store_id, self.limit).await?;
        let (client, connection, mark) = link.split();
        let driving = self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = explain(&error), "a reading connection has ended");
                server.suspect_all();
            }
        });
        Ok(Reader {
            client,
            mark,
            _connection: AbortOnDropHandle::new(driving),
        })
    }

    /// Refuses further reads and closes the connections.
    pub(crate) fn close(&self) {
        self.room.close();
        lock(&self.idle).clear();
    }
}
