//! Thread that copies the WAL into the database file while the writer continues. The WAL restarts only after the
//! writer itself has copied the last frames, since nothing may be written between.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::wal::{self, Mode};
use super::{connection, lock};

pub(super) struct Checkpointer {
    requests: Sender<()>,
    state: Arc<Mutex<State>>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// From the request until the end of the checkpoint.
    is_running: bool,
    failure: Option<rusqlite::Error>,
}

impl Checkpointer {
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        let (requests, requested) = channel();
        let state = Arc::new(Mutex::new(State::default()));
        let (file, shared) = (file.to_owned(), Arc::clone(&state));
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&file, &requested, &shared))?;
        Ok(Self {
            requests,
            state,
            thread,
        })
    }

    /// Starts a checkpoint, unless one is running.
    pub(super) fn request(&self) {
        let mut state = lock(&self.state);
        if !state.is_running {
            state.is_running = self.requests.send(()).is_ok();
        }
    }

    /// True while a checkpoint is running; otherwise how the last one ended, reported once. Meanwhile the writer
    /// must not checkpoint: it would count pages as copied that a failed sync has lost.
    pub(super) fn is_running(&self) -> rusqlite::Result<bool> {
        let mut state = lock(&self.state);
        match state.failure.take() {
            Some(error) => Err(error),
            None => Ok(state.is_running),
        }
    }

    /// Waits for the running checkpoint, closes the connection, and returns how the last checkpoint ended.
    pub(super) fn stop(self) -> rusqlite::Result<()> {
        drop(self.requests);
        // The panic hook has logged a panic.
        let _ = self.thread.join();
        lock(&self.state).failure.take().map_or(Ok(()), Err)
    }
}

fn run(file: &Path, requested: &Receiver<()>, state: &Mutex<State>) {
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
        let mut state = lock(state);
        state.is_running = false;
        match done {
            Ok(connection) => open = Some(connection),
            // Another process checkpoints, or recovers the file; the next request tries again.
            Err(error) if connection::is_busy(&error) => {}
            Err(error) => state.failure = Some(error),
        }
    }
}
