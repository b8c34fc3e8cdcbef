//! Minimal storage of a dispatch in SQLite: one row, written at acceptance, at the result and at delivery.
//! One thread writes, with all waiting changes in one commit.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

const BATCH: usize = 1024;
/// Time that changes without a waiting caller wait for others to share their commit, as in the bridge.
const RIDE: Duration = Duration::from_millis(5);

const ACCEPTED: &str = "INSERT INTO dispatch (task, text) VALUES (?, ?)";
const FINISHED: &str = "UPDATE dispatch SET result = ?2 WHERE task = ?1";
const DELIVERED: &str = "UPDATE dispatch SET delivered = ?2 WHERE task = ?1";

pub(crate) struct Records(Sender<Change>);

struct Change {
    statement: &'static str,
    task: String,
    text: String,
    /// Notified after the commit.
    waits: Option<oneshot::Sender<()>>,
}

impl Records {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(folder.join("records.sqlite"))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE dispatch (
               seq INTEGER PRIMARY KEY, task TEXT NOT NULL, text TEXT NOT NULL, result TEXT, delivered TEXT
             ) STRICT;
             CREATE UNIQUE INDEX dispatch_task ON dispatch (task);",
        )?;
        let (changes, inbox) = mpsc::channel();
        thread::spawn(move || {
            while let Some(batch) = next(&inbox) {
                write(&connection, batch).expect("writes to the disk succeed");
            }
        });
        Ok(Self(changes))
    }

    pub(crate) async fn accepted(&self, task: &str, text: String) {
        self.keep(ACCEPTED, task, text).await;
    }

    pub(crate) async fn finished(&self, task: &str, result: String) {
        self.keep(FINISHED, task, result).await;
    }

    /// Records the delivery without waiting for the commit.
    pub(crate) fn delivered(&self, task: &str) {
        self.submit(DELIVERED, task, "200".to_owned(), None);
    }

    async fn keep(&self, statement: &'static str, task: &str, text: String) {
        let (done, kept) = oneshot::channel();
        self.submit(statement, task, text, Some(done));
        kept.await.expect("the writer thread outlives this handle");
    }

    fn submit(
        &self,
        statement: &'static str,
        task: &str,
        text: String,
        waits: Option<oneshot::Sender<()>>,
    ) {
        let task = task.to_owned();
        let change = Change {
            statement,
            task,
            text,
            waits,
        };
        let handed = self.0.send(change);
        handed.expect("the writer thread outlives this handle");
    }
}

/// Next batch: all waiting changes.
fn next(inbox: &Receiver<Change>) -> Option<Vec<Change>> {
    let mut batch = vec![inbox.recv().ok()?];
    while batch.iter().all(|change| change.waits.is_none()) {
        match inbox.recv_timeout(RIDE) {
            Ok(change) => batch.push(change),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    batch.extend(inbox.try_iter().take(BATCH));
    Some(batch)
}

fn write(connection: &Connection, batch: Vec<Change>) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    for change in &batch {
        let mut statement = transaction.prepare_cached(change.statement)?;
        statement.execute([&change.task, &change.text])?;
    }
    transaction.commit()?;
    for waits in batch.into_iter().filter_map(|change| change.waits) {
        // The client might have disconnected.
        let _ = waits.send(());
    }
    Ok(())
}
