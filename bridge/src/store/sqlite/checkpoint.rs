//! A thread that carries the WAL into the file while the writer goes on. Only the writer can have the WAL
//! begin anew, since nothing may be written between the last page carried and that.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::shared::lock;
use super::{schema, wal_file};

pub(super) struct Checkpointer {
    asks: Option<SyncSender<()>>,
    failure: Arc<Mutex<Option<rusqlite::Error>>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        // Nothing waits in the channel: who is carrying cannot be asked.
        let (asks, asked) = sync_channel(0);
        let failure = Arc::new(Mutex::new(None));
        let (file, failed) = (file.to_owned(), Arc::clone(&failure));
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || carry(&file, &asked, &failed))?;
        Ok(Self {
            asks: Some(asks),
            failure,
            thread: Some(thread),
        })
    }

    /// Has the thread carry what it can. One that is at it is not asked again.
    pub(super) fn ask(&self) {
        if let Some(asks) = &self.asks {
            let _ = asks.try_send(());
        }
    }

    /// Why the last attempt failed, told once.
    pub(super) fn take_failure(&self) -> Option<rusqlite::Error> {
        lock(&self.failure).take()
    }

    /// Waits for what is being carried, and closes the file.
    pub(super) fn end(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been told by the hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.end();
    }
}

fn carry(file: &Path, asked: &Receiver<()>, failure: &Mutex<Option<rusqlite::Error>>) {
    let mut open: Option<Connection> = None;
    while asked.recv().is_ok() {
        let carried = match open.take() {
            Some(connection) => Ok(connection),
            None => schema::open_checkpointer(file),
        }
        .and_then(|connection| {
            wal_file::carrying(|| {
                connection
                    .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
                    .query_row([], |_| Ok(()))
            })?;
            Ok(connection)
        });
        match carried {
            Ok(connection) => open = Some(connection),
            Err(error) => *lock(failure) = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            match found() {
                Some(found) => return found,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn the_log_is_carried_beside_one_who_writes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db");
        let writer = Connection::open(&file).unwrap();
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;
                 CREATE TABLE t (n INTEGER PRIMARY KEY);",
            )
            .unwrap();
        let checkpointer = Checkpointer::start(&file).unwrap();
        let left = until(|| {
            writer
                .execute_batch("INSERT INTO t DEFAULT VALUES")
                .unwrap();
            checkpointer.ask();
            let frames = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(2)?));
            let (all, carried): (i64, i64) = writer
                .query_row("PRAGMA wal_checkpoint(NOOP)", [], frames)
                .unwrap();
            (carried > 0).then_some(all - carried)
        });
        assert!(left >= 0);
        assert!(checkpointer.take_failure().is_none());
    }

    #[test]
    fn a_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let checkpointer = Checkpointer::start(&folder.path().join("nowhere/db")).unwrap();
        until(|| {
            checkpointer.ask();
            checkpointer.take_failure()
        });
    }
}
