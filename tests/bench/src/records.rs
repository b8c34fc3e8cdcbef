//! What it costs at least to keep a dispatch in SQLite: a row that is written when it comes, when its result is
//! there, and when that was delivered. One thread writes, and all that waits is one commit.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

const BATCH: usize = 1024;
/// How long what nobody waits for looks for others to share its commit, as in the bridge.
const RIDE: Duration = Duration::from_millis(5);

const ACCEPTED: &str = "INSERT INTO dispatch (task, text) VALUES (?, ?)";
const FINISHED: &str = "UPDATE dispatch SET result = ?2 WHERE task = ?1";
const DELIVERED: &str = "UPDATE dispatch SET delivered = ?2 WHERE task = ?1";

pub(crate) struct Records(Sender<Change>);

struct Change {
    statement: &'static str,
    task: String,
    text: String,
    /// Waits for the commit.
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
                write(&connection, batch)
                    .expect("the disk of the benchmark keeps what it is given");
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

    /// Without waiting.
    pub(crate) fn delivered(&self, task: &str) {
        self.hand_in(DELIVERED, task, "200".to_owned(), None);
    }

    async fn keep(&self, statement: &'static str, task: &str, text: String) {
        let (done, kept) = oneshot::channel();
        self.hand_in(statement, task, text, Some(done));
        kept.await.expect("the writer lives as long as we do");
    }

    fn hand_in(
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
        handed.expect("the writer lives as long as we do");
    }
}

/// All that waits.
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
        // The client may have gone.
        let _ = waits.send(());
    }
    Ok(())
}
