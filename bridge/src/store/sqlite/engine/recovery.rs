//! After a failure. The outcome of the last commit is unknown and pages that were not synced can be missing, so every
//! connection is closed, what was not committed is cut from the WAL, and the file is recovered from the WAL's beginning
//! before the next write. Meanwhile changes are refused. Nothing is answered or read before the cut.

use std::time::{Duration, Instant};

use super::change::QueuedChange;
use super::checkpointer::Checkpointer;
use super::failure::{FailureKind, ReopenSchedule, StoreFailure};
use super::wal::{self, Mode};
use super::writer::{FailedBatch, Writer};
use super::{TransactionState, connection, lock};

/// Interval of attempts to take a write lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

impl<S: TransactionState> Writer<S> {
    /// Refuses what waits, and returns when changes can be written again. False when the store is to be closed.
    pub(super) fn recover(&mut self, failed: FailedBatch<S>) -> bool {
        let FailedBatch { failure, changes } = failed;
        let then = match failure.kind {
            FailureKind::Damage => {
                "nothing more is written to it: stop the bridge, look with `forge-bridge store check`, restore a backup"
            }
            FailureKind::Lock | FailureKind::Sync | FailureKind::Other => {
                "new work is refused until it can be written again"
            }
        };
        tracing::error!("the store failed: {}; {then}", failure.reason);
        let failed_at = Instant::now();
        for change in self.set_unavailable(&failure.reason) {
            change.refuse(&failure.reason);
        }
        let is_back = match failure.kind {
            FailureKind::Damage => {
                refuse(changes, &failure.reason);
                self.queue.pause(None)
            }
            FailureKind::Lock => {
                // Its transaction never began.
                refuse(changes, &failure.reason);
                self.wait_for_lock()
            }
            FailureKind::Sync | FailureKind::Other => self.reopen(&failure, changes),
        };
        if is_back {
            *lock(&self.status) = Ok(());
            self.queue.set_available();
            tracing::info!("the store is back after {:.1?}", failed_at.elapsed());
        }
        is_back
    }

    fn set_unavailable(&self, reason: &str) -> impl Iterator<Item = QueuedChange<S>> + use<S> {
        *lock(&self.status) = Err(reason.to_owned());
        self.queue.set_unavailable(reason).into_iter()
    }

    fn wait_for_lock(&mut self) -> bool {
        while self.queue.pause(Some(Instant::now() + LOCK_POLL)) {
            match self.try_lock() {
                Ok(()) => return true,
                Err(error) if connection::is_busy(&error) => {}
                Err(error) => {
                    let failure = StoreFailure::new(&error, &self.settings.file);
                    return self.reopen(&failure, Vec::new());
                }
            }
        }
        false
    }

    /// Closes and reopens the file, until it succeeds.
    fn reopen(&mut self, failure: &StoreFailure, mut changes: Vec<QueuedChange<S>>) -> bool {
        let mut schedule = ReopenSchedule::new();
        let mut needs_full_recovery = failure.kind == FailureKind::Sync;
        let mut is_cut = false;
        let mut committed_frames = None;
        loop {
            let mut done = Ok(());
            if !is_cut {
                done = self.disconnect(&mut committed_frames, &mut needs_full_recovery);
                is_cut = done.is_ok();
                if is_cut {
                    // They are not in the file, and will not be found there.
                    refuse(std::mem::take(&mut changes), &failure.reason);
                    self.readers.resume();
                }
            }
            let done = done.and_then(|()| self.reconnect(&mut needs_full_recovery));
            let Err(reason) = done else {
                return true;
            };
            // The trial write can have failed half-way.
            is_cut &= self.connection.is_none();
            for change in self.set_unavailable(&reason) {
                change.refuse(&reason);
            }
            if !self.queue.pause(Some(schedule.next_attempt())) {
                return false;
            }
        }
    }

    /// Closes every connection and cuts the end of the WAL that was not committed.
    fn disconnect(
        &mut self,
        committed_frames: &mut Option<u64>,
        needs_full_recovery: &mut bool,
    ) -> Result<(), String> {
        self.readers.suspend();
        if let Some(Err(error)) = self.checkpointer.take().map(Checkpointer::stop) {
            let failure = StoreFailure::new(&error, &self.settings.file);
            *needs_full_recovery |= failure.kind == FailureKind::Sync;
        }
        if let Some(connection) = &self.connection {
            if !connection.is_autocommit() {
                // It is rolled back at the latest when the connection is closed.
                let _ = connection.execute_batch("ROLLBACK");
            }
            let frames = wal::checkpoint(connection, Mode::Noop);
            let frames =
                frames.map_err(|error| format!("cannot read the length of the WAL: {error}"))?;
            if frames.is_hindered {
                return Err(
                    "cannot read the length of the WAL: another process holds it".to_owned(),
                );
            }
            *committed_frames = Some(frames.in_wal);
            self.connection = None;
        }
        if let Some(frames) = *committed_frames {
            let cut = wal::cut(&self.settings.file, frames);
            cut.map_err(|error| format!("cannot cut the WAL: {error}"))?;
            *committed_frames = None;
        }
        Ok(())
    }

    /// Opens the file, which recovers it, and makes a trial write.
    fn reconnect(&mut self, needs_full_recovery: &mut bool) -> Result<(), String> {
        let file = &self.settings.file;
        wal::sync(file).map_err(|error| format!("cannot sync the WAL: {error}"))?;
        let opened = connection::open(file).and_then(|connection| {
            connection::configure(&connection, &self.settings)?;
            let frames = wal::checkpoint(&connection, Mode::Noop)?;
            Ok((connection, frames))
        });
        let (opened, frames) = opened.map_err(|error| StoreFailure::new(&error, file).reason)?;
        if *needs_full_recovery && frames.in_file > 0 {
            return Err(format!(
                "a sync failed, and {} cannot be recovered while another process has it open; close that one",
                file.display()
            ));
        }
        *needs_full_recovery = false;
        let opened = self.connection.insert(opened);
        match self.state.reload(opened) {
            Ok(true) => {}
            Ok(false) => {
                return Err("the file was replaced by another store; restart the bridge".to_owned());
            }
            Err(error) => {
                let failure = StoreFailure::new(&error, file);
                *needs_full_recovery = failure.kind == FailureKind::Sync;
                return Err(failure.reason);
            }
        }
        let checkpointer = Checkpointer::start(file).map_err(|error| error.to_string())?;
        self.checkpointer = Some(checkpointer);
        self.state.committed();
        Ok(())
    }
}

fn refuse<S>(changes: Vec<QueuedChange<S>>, reason: &str) {
    for change in changes {
        change.refuse(reason);
    }
}
