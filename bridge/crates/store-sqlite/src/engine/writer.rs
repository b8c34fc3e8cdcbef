//! Writer thread. It takes the queued changes as one batch, runs them in one transaction, and answers after the
//! commit is synced. A change that fails is rolled back alone.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::change::{self, Failure, QueuedChange};
use super::checkpointer::Checkpointer;
use super::failure::StoreFailure;
use super::wal::{self, Frames, Mode};
use super::{FolderLock, Shared, TransactionState, connection};
use forge_base::failpoint;
use forge_base::folder_lock::WatchedFiles;
use forge_store::Error;
use forge_store::progress::Work;

/// A batch of this many changes counts as load: the next commit then begins at the earliest `BATCH_INTERVAL` after the
/// beginning of this one, so that more changes share it.
const GROUP_COMMIT_MIN: usize = 8;
const BATCH_INTERVAL: Duration = Duration::from_micros(400);
/// Longest time between two looks after the files before an answer, and idle time after which the WAL is checkpointed.
const TICK: Duration = Duration::from_secs(1);
/// Bytes of changes after which the length of the WAL is checked.
const CHECK_BYTES: usize = 256 << 10;
/// Frames that the checkpointer thread copies at a time.
const CHECKPOINT_FRAMES: u64 = 1_000;
/// Frames after which the writer copies the rest, so that the WAL starts again.
const LONG_WAL_FRAMES: u64 = 4_000;
/// Multiple of the WAL's limit above which the writer copies all of it itself. This is backpressure if the
/// checkpointer does not keep up; below it a reader that let the WAL grow does not cost a pause when it ends.
const BACKPRESSURE: u64 = 8;

pub(super) struct Writer<S> {
    pub(super) shared: Arc<Shared<S>>,
    /// Held until the file is closed.
    pub(super) lock: FolderLock,
    /// The WAL and its shared memory, as opened.
    pub(super) wal: WatchedFiles,
    /// Last look after the files.
    looked_at: Instant,
    /// None while the file is closed after a failure.
    pub(super) connection: Option<Connection>,
    pub(super) checkpointer: Checkpointer,
    pub(super) state: S,
    /// Bytes of changes that were written since the length of the WAL was checked.
    unchecked_bytes: usize,
    /// Last write that is not checkpointed yet.
    written_at: Option<Instant>,
    /// Batch whose transaction a failure ended. None of it is answered before its end is cut from the WAL.
    pub(super) unanswered: Vec<QueuedChange<S>>,
}

type Outcomes = Vec<Result<(), Error>>;

impl<S: TransactionState> Writer<S> {
    pub(super) fn start(
        shared: Arc<Shared<S>>,
        lock: FolderLock,
        wal: WatchedFiles,
        connection: Connection,
        state: S,
    ) -> io::Result<()> {
        let writer = Self {
            checkpointer: Checkpointer::default(),
            shared,
            lock,
            wal,
            looked_at: Instant::now(),
            connection: Some(connection),
            state,
            unchecked_bytes: 0,
            written_at: Some(Instant::now()),
            unanswered: Vec::new(),
        };
        let thread = thread::Builder::new().name("store".to_owned());
        thread.spawn(move || writer.run()).map(drop)
    }

    fn run(mut self) {
        let mut not_before = Instant::now();
        let mut tick_at = not_before + TICK;
        let is_well = loop {
            let next = self.shared.queue.next(not_before, tick_at);
            let begun = Instant::now();
            let mut done = match next {
                None => break true,
                Some(batch) if batch.is_empty() => Ok(()),
                Some(batch) => {
                    if batch.len() >= GROUP_COMMIT_MIN {
                        not_before = begun + BATCH_INTERVAL;
                    }
                    self.written_at = Some(begun);
                    let written = self.write(batch);
                    written.and_then(|()| Ok(self.check_wal_size()?))
                }
            };
            if begun >= tick_at {
                tick_at = begun + TICK;
                done = done.and_then(|()| self.tick(begun));
            }
            if let Err(failure) = done
                && !self.recover(&failure)
            {
                break false;
            }
        };
        self.close(is_well);
    }

    /// Looks whether the files are in place, and checkpoints the WAL if nothing was written for a while.
    fn tick(&mut self, now: Instant) -> Result<(), StoreFailure> {
        self.look_after_files()?;
        match self.written_at {
            Some(written_at) if written_at + TICK <= now => Ok(self.checkpoint_when_idle()?),
            Some(_) | None => Ok(()),
        }
    }

    /// Looks whether the files are in place, if the last look is older than `TICK`. A WAL that is not is copied into the
    /// database file at once, because no later start finds it.
    fn look_after_files(&mut self) -> Result<(), StoreFailure> {
        if self.looked_at.elapsed() < TICK {
            return Ok(());
        }
        self.looked_at = Instant::now();
        if !self.lock.is_in_place() {
            return Err(StoreFailure::Moved);
        }
        match self.wal.is_in_place() {
            true => Ok(()),
            false => Err(self.save_wal()),
        }
    }

    /// Copies the committed changes of a WAL that was removed or replaced into the database file.
    pub(super) fn save_wal(&mut self) -> StoreFailure {
        // A checkpointer that has opened the new WAL fails, which says nothing about the old one; a failed sync does.
        let copied = match self.checkpointer.stop().map_err(StoreFailure::from) {
            Err(StoreFailure::Sync(error)) => Err(error),
            Ok(()) | Err(_) => self
                .roll_back()
                .and_then(|()| self.checkpoint(Mode::Truncate)),
        };
        let is_saved = match copied {
            Ok(frames) => frames.is_all_in_file(),
            Err(error) => {
                tracing::error!(%error, "the removed write-ahead log cannot be copied into the database file");
                false
            }
        };
        StoreFailure::WalMoved { is_saved }
    }

    /// Ends a transaction that a failure has left open.
    pub(super) fn roll_back(&self) -> rusqlite::Result<()> {
        let connection = self.connection()?;
        match connection.is_autocommit() {
            true => Ok(()),
            false => execute(connection, "ROLLBACK"),
        }
    }

    /// Writes and answers a batch.
    fn write(&mut self, mut batch: Vec<QueuedChange<S>>) -> Result<(), StoreFailure> {
        failpoint::point("store.batch");
        if let Err(moved) = self.look_after_files() {
            self.unanswered.extend(batch);
            return Err(moved);
        }
        self.unchecked_bytes += batch.iter().map(|change| change.bytes).sum::<usize>();
        let begun = Instant::now();
        let committed = self.commit(&mut batch);
        let mut changes = batch.into_iter();
        match committed {
            Ok(Some(outcomes)) => {
                self.shared.meters.commits.time(begun.elapsed());
                self.shared.meters.batches.number(changes.len() as u64);
                self.shared.progress.committed();
                self.state.committed();
                // Again, if the commit took long: no later start would find what is answered now.
                let looked = self.look_after_files();
                if let Err(
                    failure @ (StoreFailure::Moved | StoreFailure::WalMoved { is_saved: false }),
                ) = &looked
                {
                    // They are in the files that were moved, which can be put back.
                    let reason = format!("{failure}; the outcome of this change is not known");
                    changes.for_each(|change| change.refuse(&reason));
                    return looked;
                }
                for (change, outcome) in changes.zip(outcomes) {
                    change.answer(outcome);
                }
                failpoint::point("store.answered");
                looked
            }
            Ok(None) => {
                while let Some(change) = changes.next() {
                    let written = self.write(vec![change]);
                    written.inspect_err(|_| self.unanswered.extend(changes.by_ref()))?;
                }
                Ok(())
            }
            Err(error) => {
                self.shared.meters.failures.inc();
                self.unanswered.extend(changes);
                // Outside of a transaction nothing of the batch was written.
                let is_outside = self.connection().is_ok_and(Connection::is_autocommit);
                match connection::is_busy(&error) && is_outside {
                    true => Err(StoreFailure::Lock(self.shared.config.busy_timeout)),
                    false => Err(error.into()),
                }
            }
        }
    }

    /// Takes the write lock without waiting for it, and releases it.
    pub(super) fn try_lock(&self) -> rusqlite::Result<()> {
        self.without_waiting(|| {
            self.connection()?
                .execute_batch("BEGIN IMMEDIATE; ROLLBACK")
        })
    }

    /// Runs an operation that waits neither for readers nor for a lock of another process.
    fn without_waiting<T>(&self, run: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.connection()?.busy_timeout(Duration::ZERO)?;
        let done = run();
        (self.connection()?).busy_timeout(self.shared.config.busy_timeout)?;
        done
    }

    fn connection(&self) -> rusqlite::Result<&Connection> {
        self.connection.as_ref().ok_or_else(closed_file)
    }

    /// Runs the batch in one transaction. Changes are refused before they write anything, so they need no savepoint. If
    /// one fails later all the same, only a rollback takes back what it wrote: the batch is not written, and the result
    /// is `None` if it has other changes, which the caller then writes one by one.
    fn commit(&mut self, batch: &mut [QueuedChange<S>]) -> rusqlite::Result<Option<Outcomes>> {
        let connection = self.connection.as_ref().ok_or_else(closed_file)?;
        let start = self.state.savepoint();
        let state = &mut self.state;
        let is_alone = batch.len() == 1;
        let progress = &self.shared.progress;
        let _working = progress.working(Work::Statement);
        let run = || {
            execute(connection, "BEGIN IMMEDIATE")?;
            let mut outcomes = Vec::with_capacity(batch.len());
            for change in batch {
                let written = connection.total_changes();
                let outcome = run_change(connection, state, change)?;
                let is_half_written = outcome.is_err() && connection.total_changes() != written;
                outcomes.push(outcome);
                if is_half_written {
                    execute(connection, "ROLLBACK")?;
                    state.rollback_to(start);
                    return Ok(is_alone.then_some(outcomes));
                }
            }
            failpoint::point("store.commit.before");
            let _working = progress.working(Work::Commit);
            execute(connection, "COMMIT")?;
            failpoint::point("store.commit.after");
            Ok(Some(outcomes))
        };
        run().inspect_err(|_| self.state.rollback_to(start))
    }

    /// Checkpoints when the WAL has become long.
    fn check_wal_size(&mut self) -> rusqlite::Result<()> {
        if self.unchecked_bytes < CHECK_BYTES {
            return Ok(());
        }
        self.unchecked_bytes = 0;
        if self.checkpointer.is_running()? {
            return Ok(());
        }
        let frames = self.checkpoint(Mode::Noop)?;
        let limit = self.shared.config.wal_limit_bytes;
        let is_nearly_copied = frames.not_in_file() < CHECKPOINT_FRAMES;
        if !is_nearly_copied && frames.bytes() <= BACKPRESSURE.saturating_mul(limit) {
            // Repeated while a reader keeps it from copying anything: that takes little, and the reader can end.
            self.checkpointer.start(&self.shared.file);
        } else if frames.bytes() > limit {
            self.without_waiting(|| self.checkpoint(Mode::Truncate))?;
        } else if frames.in_wal >= LONG_WAL_FRAMES {
            self.checkpoint(Mode::Passive)?;
        }
        Ok(())
    }

    /// Copies the WAL, so that the next write starts it again. While another checkpoint runs, the next tick tries again.
    fn checkpoint_when_idle(&mut self) -> rusqlite::Result<()> {
        if self.checkpointer.is_running()? {
            return Ok(());
        }
        self.written_at = None;
        match self.checkpoint(Mode::Passive) {
            Ok(frames) if frames.is_all_in_file() => self.shared.meters.wal_bytes.set(0),
            Err(error) if !connection::is_busy(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    fn checkpoint(&self, mode: Mode) -> rusqlite::Result<Frames> {
        let _working = self.shared.progress.working(Work::Checkpoint);
        let frames = wal::checkpoint(self.connection()?, mode)?;
        self.shared.meters.wal_bytes.set(frames.bytes());
        Ok(frames)
    }

    /// Closes the file, after a checkpoint of the WAL if the store `is_well`. After a failure the WAL stays as it is, for
    /// the next start to recover.
    fn close(mut self, is_well: bool) {
        let shared = Arc::clone(&self.shared);
        let _working = shared.progress.working(Work::Close);
        self.shared.readers.close();
        drop(self.shared.readers.suspend());
        let checkpointed = self.checkpointer.stop();
        if let Some(connection) = self.connection.take()
            && is_well
        {
            let folded = checkpointed
                .and_then(|()| wal::checkpoint(&connection, Mode::Truncate))
                .and_then(|_| connection::close_orderly(connection));
            if let Err(error) = folded {
                tracing::warn!(%error, "the last checkpoint failed; the next start recovers the WAL");
            }
        }
        let Self { shared, lock, .. } = self;
        drop(lock);
        shared.is_closed.send_replace(true);
    }
}

/// The outer error means that the transaction is lost.
fn run_change<S: TransactionState>(
    connection: &Connection,
    state: &mut S,
    change: &mut QueuedChange<S>,
) -> rusqlite::Result<Result<(), Error>> {
    let before = state.savepoint();
    let Err(failure) = change.run(connection, state) else {
        return Ok(Ok(()));
    };
    state.rollback_to(before);
    let goes_on = !connection.is_autocommit();
    match failure {
        Failure::Refused(error) if goes_on => Ok(Err(error)),
        Failure::Refused(_) => Err(closed_file()),
        Failure::Sql(error) if goes_on && connection::is_of_the_values(&error) => {
            tracing::error!(%error, "a change failed because of its values");
            Ok(Err(change::refusal(&error)))
        }
        Failure::Sql(error) => Err(error),
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn closed_file() -> rusqlite::Error {
    let misuse = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_MISUSE);
    rusqlite::Error::SqliteFailure(misuse, Some("the transaction is gone".to_owned()))
}
