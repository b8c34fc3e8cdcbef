//! A thread that copies the WAL into the database file while the writer goes on. The WAL begins again only after the
//! writer itself has copied the last frames, since nothing may be written between.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::wal::{self, Mode};
use super::{connection, lock};

pub(super) struct Checkpointer {
    requests: Option<SyncSender<()>>,
    failure: Arc<Mutex<Option<rusqlite::Error>>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        // Without a buffer: a request during a checkpoint is dropped.
        let (requests, requested) = sync_channel(0);
        let failure = Arc::new(Mutex::new(None));
        let (file, failed) = (file.to_owned(), Arc::clone(&failure));
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&file, &requested, &failed))?;
        Ok(Self {
            requests: Some(requests),
            failure,
            thread: Some(thread),
        })
    }

    /// Starts a checkpoint, unless one is running.
    pub(super) fn request(&self) {
        if let Some(requests) = &self.requests {
            let _ = requests.try_send(());
        }
    }

    /// Why the last checkpoint failed; reported once.
    pub(super) fn take_failure(&self) -> Option<rusqlite::Error> {
        lock(&self.failure).take()
    }

    /// Waits for the running checkpoint and closes the connection.
    pub(super) fn stop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has logged a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(file: &Path, requested: &Receiver<()>, failure: &Mutex<Option<rusqlite::Error>>) {
    let mut open: Option<Connection> = None;
    while requested.recv().is_ok() {
        let connection = match open.take() {
            Some(connection) => Ok(connection),
            None => connection::open_checkpointer(file),
        };
        let done = connection.and_then(|connection| {
            wal::checkpoint(&connection, Mode::Passive)?;
            Ok(connection)
        });
        match done {
            Ok(connection) => open = Some(connection),
            // Another process checkpoints, or recovers the file; the next request tries again.
            Err(error) if connection::is_busy(&error) => {}
            Err(error) => *lock(failure) = Some(error),
        }
    }
}
