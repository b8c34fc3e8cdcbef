//! Connections that read, opened when they are needed. A caller has one to itself while it reads, so that a long answer
//! delays no other one.

use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tokio_postgres::{Client, Row};
use tokio_util::task::TaskTracker;

use super::link::explain;
use super::target::Target;
use super::{closed, lock};
use crate::rows::statement::Statement;
use forge_store::{Error, Result};

pub(crate) struct Readers {
    target: Target,
    room: Semaphore,
    idle: Mutex<Vec<Client>>,
    /// Drives the connections.
    tasks: TaskTracker,
}

impl Readers {
    pub(crate) fn new(target: Target, count: usize, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            target,
            room: Semaphore::new(count.max(1)),
            idle: Mutex::default(),
            tasks,
        })
    }

    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<Row>> {
        let _room = self.room.acquire().await.map_err(|_| closed())?;
        let idle = lock(&self.idle).pop();
        // A connection can have ended while it was idle: the statement is tried once more on a new one.
        if let Some(client) = idle.filter(|client| !client.is_closed()) {
            match statement.rows(&client).await {
                Err(error) if error.is_closed() => {}
                answer => return self.answer(client, answer),
            }
        }
        let connected = self.target.connect().await;
        let (client, connection) = connected.map_err(Error::Unavailable)?;
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = explain(&error), "a reading connection has ended");
            }
        });
        let answer = statement.rows(&client).await;
        self.answer(client, answer)
    }

    fn answer(
        &self,
        client: Client,
        answer: Result<Vec<Row>, tokio_postgres::Error>,
    ) -> Result<Vec<Row>> {
        if !self.room.is_closed() {
            lock(&self.idle).push(client);
        }
        answer.map_err(|error| Error::Unavailable(explain(&error)))
    }

    /// Refuses further reads and closes the connections.
    pub(crate) fn close(&self) {
        self.room.close();
        lock(&self.idle).clear();
    }
}
