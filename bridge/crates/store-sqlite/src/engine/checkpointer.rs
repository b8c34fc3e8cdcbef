//! Thread that copies the WAL into the database file while the writer continues. The WAL restarts only after the
//! writer itself has copied the last frames, since nothing may be written between.

use std::path::Path;
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use super::connection;
use super::wal::{self, Mode};

/// At most one thread at a time, which ends with its checkpoint.
#[derive(Default)]
pub(super) struct Checkpointer {
    /// Kept from one checkpoint to the next.
    connection: Option<Connection>,
    running: Option<JoinHandle<rusqlite::Result<Option<Connection>>>>,
}

impl Checkpointer {
    /// Starts a checkpoint. The caller has made sure that none is running.
    pub(super) fn start(&mut self, file: &Path) {
        let (file, open) = (file.to_owned(), self.connection.take());
        let checkpoint = move || match checkpoint(&file, open) {
            // Another process checkpoints, or recovers the file; the next request tries again.
            Err(error) if connection::is_busy(&error) => Ok(None),
            done => done.map(Some),
        };
        let thread = thread::Builder::new().name("store-checkpoint".to_owned());
        // If the system has no thread left, the writer copies the WAL itself when it is too long.
        self.running = thread.spawn(checkpoint).ok();
    }

    /// True while a checkpoint is running; otherwise how the last one ended, reported once. Meanwhile the writer
    /// must not checkpoint: it would count pages as copied that a failed sync has lost.
    pub(super) fn is_running(&mut self) -> rusqlite::Result<bool> {
        match &self.running {
            Some(running) if !running.is_finished() => Ok(true),
            Some(_) | None => self.wait().map(|()| false),
        }
    }

    /// Waits for the running checkpoint, closes the connection, and returns how the last checkpoint ended.
    pub(super) fn stop(&mut self) -> rusqlite::Result<()> {
        let ended = self.wait();
        self.connection = None;
        ended
    }

    fn wait(&mut self) -> rusqlite::Result<()> {
        // The panic hook has logged a panic.
        if let Some(Ok(ended)) = self.running.take().map(JoinHandle::join) {
            self.connection = ended?;
        }
        Ok(())
    }
}

fn checkpoint(file: &Path, open: Option<Connection>) -> rusqlite::Result<Connection> {
    let connection = open.map_or_else(|| connection::open_checkpointer(file), Ok)?;
    wal::checkpoint(&connection, Mode::Passive)?;
    Ok(connection)
}
