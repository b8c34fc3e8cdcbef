//! Recovery after a failure. The outcome of the last commit is unknown, so the uncommitted end is cut from the WAL
//! and the connections that write are closed. After a failed sync pages can be missing as well, so every connection
//! is closed, and the file is recovered from the beginning of the WAL before the next write. Meanwhile changes are
//! refused. Nothing is answered before the cut.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::failure::StoreFailure;
use super::wal::{self, Mode};
use super::writer::Writer;
use super::{TransactionState, connection};
use forge_store::retry::RetryDelays;

/// Interval of attempts to take a write lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Interval of doing nothing after a failure that only a restart ends.
const FOREVER: Duration = Duration::from_secs(3600);

impl<S: TransactionState> Writer<S> {
    /// Refuses waiting changes, and returns when changes can be written again. False when the store is to be closed.
    pub(super) fn recover(&mut self, failure: &StoreFailure) -> bool {
        let moved;
        let failure = match failure {
            // A connection that was opened on the new file mixes its pages with the WAL of the old one.
            StoreFailure::Damage(_) if !self.lock.is_in_place() => &StoreFailure::Moved,
            StoreFailure::Damage(_) if !self.wal.is_in_place() => {
                moved = self.save_wal();
                &moved
            }
            failure => failure,
        };
        let then = match failure {
            StoreFailure::Damage(_) => {
                "no more changes are written: stop the bridge, run `forge-bridge store check`, restore a backup"
            }
            StoreFailure::Moved => {
                "no more changes are written: stop the bridge, put its data folder back, start it again"
            }
            StoreFailure::WalMoved { is_saved: true } => {
                "no more changes are written; all that were answered are in the database file: stop the bridge, remove what is now at the paths of its -wal and -shm, start it again"
            }
            StoreFailure::WalMoved { is_saved: false } => {
                "no more changes are written: stop the bridge, put its -wal back or restore a backup, start it again"
            }
            StoreFailure::Lock(_) | StoreFailure::Sync(_) | StoreFailure::Other(_) => {
                "new work is refused until it can be written again"
            }
        };
        let file = self.shared.file.display();
        tracing::error!(%file, "the store failed: {failure}; {then}");
        let failed_at = Instant::now();
        self.shared.queue.set_unavailable(&failure.to_string());
        let is_back = match failure {
            StoreFailure::Damage(_) | StoreFailure::Moved | StoreFailure::WalMoved { .. } => {
                self.refuse_unanswered(failure);
                let is_moved = !matches!(failure, StoreFailure::Damage(_));
                self.shared.is_moved.send_replace(is_moved);
                while self.shared.queue.pause(Instant::now() + FOREVER) {}
                false
            }
            StoreFailure::Lock(_) => {
                // Its transaction never began.
                self.refuse_unanswered(failure);
                self.wait_for_lock()
            }
            StoreFailure::Sync(_) | StoreFailure::Other(_) => self.reopen(failure),
        };
        if is_back {
            self.shared.queue.set_available();
            tracing::info!("the store is back after {:.1?}", failed_at.elapsed());
        }
        is_back
    }

    fn refuse_unanswered(&mut self, failure: &StoreFailure) {
        for change in self.unanswered.drain(..) {
            change.refuse(&failure.to_string());
        }
    }

    fn wait_for_lock(&mut self) -> bool {
        while self.shared.queue.pause(Instant::now() + LOCK_POLL) {
            match self.try_lock() {
                Ok(()) => return true,
                Err(error) if connection::is_busy(&error) => {}
                Err(error) => return self.reopen(&error.into()),
            }
        }
        false
    }

    /// Closes and reopens the file, until it succeeds.
    fn reopen(&mut self, failure: &StoreFailure) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut delays = RetryDelays::default();
        let mut needs_full_recovery = matches!(failure, StoreFailure::Sync(_));
        let mut suspended = None;
        let mut is_cut = false;
        loop {
            let mut done = Ok(());
            if !is_cut && !self.wal.is_in_place() {
                // After a failed sync the pages of the WAL can be missing.
                let moved = match needs_full_recovery {
                    true => StoreFailure::WalMoved { is_saved: false },
                    false => self.save_wal(),
                };
                return self.recover(&moved);
            }
            if !is_cut {
                let checkpointed = self.checkpointer.stop().map_err(StoreFailure::from);
                needs_full_recovery |= matches!(checkpointed, Err(StoreFailure::Sync(_)));
                // Readers see nothing behind the committed frames. Their connections keep the shared memory, which
                // cannot be created again while the disk is full.
                if needs_full_recovery && suspended.is_none() {
                    suspended = Some(shared.readers.suspend());
                }
                done = self.disconnect();
                is_cut = done.is_ok();
                if is_cut {
                    // They are not in the file, and will not be found there.
                    self.refuse_unanswered(failure);
                    suspended = None;
                }
            }
            if is_cut && !self.lock.is_in_place() {
                return self.recover(&StoreFailure::Moved);
            }
            let done = done.and_then(|()| self.reconnect(&mut needs_full_recovery));
            let Err(reason) = done else {
                return true;
            };
            // The trial write can have failed half-way.
            is_cut &= self.connection.is_none();
            shared.queue.set_unavailable(&reason);
            if !shared.queue.pause(Instant::now() + delays.next_delay()) {
                return false;
            }
        }
    }

    /// Cuts the uncommitted end of the WAL, and closes the connection that writes. The cut comes first: without a
    /// connection another process that opens the file would recover that end.
    fn disconnect(&mut self) -> Result<(), String> {
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        self.roll_back().map_err(cannot("roll back"))?;
        let frames = wal::checkpoint(connection, Mode::Noop);
        let frames = frames.map_err(cannot("read the length of the WAL"))?;
        if frames.is_hindered {
            // Without a count all of the WAL would be cut.
            return Err("cannot read the length of the WAL: another process holds it".to_owned());
        }
        wal::cut(&self.shared.file, frames.in_wal).map_err(cannot("cut the WAL"))?;
        self.connection = None;
        Ok(())
    }

    /// Opens the file, which recovers it, and makes a trial write.
    fn reconnect(&mut self, needs_full_recovery: &mut bool) -> Result<(), String> {
        let file = &self.shared.file;
        wal::sync(file).map_err(cannot("sync the WAL"))?;
        let opened = connection::open(file).and_then(|connection| {
            connection::configure(&connection, &self.shared.config)?;
            let frames = wal::checkpoint(&connection, Mode::Noop)?;
            Ok((connection, frames))
        });
        let (opened, frames) = opened.map_err(|error| StoreFailure::from(error).to_string())?;
        if *needs_full_recovery && frames.in_file > 0 {
            return Err(
                "a sync failed, and the database file cannot be recovered while another process has it open; end that process"
                    .to_owned(),
            );
        }
        *needs_full_recovery = false;
        let opened = self.connection.insert(opened);
        let reloaded = self.state.reload(opened).map_err(|error| {
            let failure = StoreFailure::from(error);
            *needs_full_recovery = matches!(failure, StoreFailure::Sync(_));
            failure.to_string()
        });
        match reloaded? {
            true => {
                self.wal = wal::watched(file).map_err(cannot("look at the WAL"))?;
                Ok(())
            }
            false => Err("the file was replaced by another store; restart the bridge".to_owned()),
        }
    }
}

fn cannot<E: Display>(what: &str) -> impl Fn(E) -> String {
    move |error| format!("cannot {what}: {error}")
}
