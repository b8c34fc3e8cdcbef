//! Writes changes: all of a batch in one transaction, and it is answered after the commit is on disk. A piece that
//! fails takes only itself back. When the disk or the database fails, nobody is told yes, and the file is opened anew
//! before the next write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::checkpoint::Checkpointer;
use super::ledger::Ledger;
use super::lock::Lock;
use super::schema::{self, Tuning};
use super::shared::Shared;
use super::table;
use crate::crash;
use crate::event::LogName;
use crate::store::Error;

/// How long a checkpoint may wait for readers, and so hold up what is queued.
const CHECKPOINT_PATIENCE: Duration = Duration::from_millis(100);
/// Frames in the WAL that are not in the file yet before they are carried there, beside the writer.
const CHECKPOINT_FRAMES: i64 = 1_000;
/// Frames in the WAL before it begins anew. The writer carries the last of them, and all writes wait for it.
const LONG_WAL_FRAMES: i64 = 4_000;
/// How many changes, and how many bytes of them, are written before the WAL is looked at again.
const LOOK_OPS: usize = 64;
const LOOK_BYTES: usize = 256 << 10;

/// Why a piece of work came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// By the rules of the domain; nothing is wrong with the store.
    Refused(Error),
    Sql(rusqlite::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Refused(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sql(error)
    }
}

/// Whether the medium failed, so that nothing else in the same transaction can be trusted.
fn is_of_the_medium(error: &rusqlite::Error) -> bool {
    !matches!(
        error.sqlite_error_code(),
        None | Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig)
    )
}

pub(super) fn panicked() -> rusqlite::Error {
    let internal = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERNAL);
    rusqlite::Error::SqliteFailure(internal, Some("a change panicked".to_owned()))
}

/// What a piece of work sees.
pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) ledger: &'a mut Ledger,
    pub(super) log: &'a LogName,
    pub(super) epoch: u64,
}

impl Tx<'_> {
    /// Runs one statement that is prepared once and kept.
    pub(super) fn execute(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<usize> {
        self.conn.prepare_cached(sql)?.execute(params)
    }
}

/// May be run again in another transaction, when the first one was rolled back.
trait Job: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure>;
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
}

struct Work<T, F> {
    change: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Job for Work<T, F>
where
    T: Send,
    F: Fn(&mut Tx<'_>) -> Result<T, Failure> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
        self.done = None;
        self.done = Some((self.change)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { done, reply, .. } = *self;
        let not_run = || Error::Unavailable("the write was not made".to_owned());
        let result = outcome.and_then(|()| done.ok_or_else(not_run));
        // Nobody waits any more when the caller went away; the change stands all the same.
        let _ = reply.send(result);
    }
}

/// Whether a change may wait for others to share its commit with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    Now,
    /// Nothing comes after it.
    Soon,
}

/// One change on its way to the writer, with the room in the queue that it takes up.
pub(super) struct Op {
    job: Box<dyn Job>,
    pub(super) haste: Haste,
    pub(super) bytes: usize,
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Op {
    pub(super) fn new<T: Send + 'static>(
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
        haste: Haste,
        bytes: usize,
        room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    ) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (reply, receiver) = oneshot::channel();
        let work = Work {
            change,
            done: None,
            reply,
        };
        let op = Self {
            job: Box::new(work),
            haste,
            bytes,
            _room: room,
        };
        (op, receiver)
    }

    pub(super) fn refuse(self, reason: &str) {
        self.job.answer(Err(Error::Unavailable(reason.to_owned())));
    }
}

pub(super) struct Writer {
    pub(super) file: PathBuf,
    pub(super) tuning: Tuning,
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    pub(super) ledger: Ledger,
    pub(super) lock: Lock,
    pub(super) written: Written,
    pub(super) checkpointer: Checkpointer,
}

/// Nothing can be written before the file is opened anew.
pub(super) struct Unwritable {
    pub(super) reason: String,
    /// What is damaged is not written any more, lest more be lost.
    pub(super) is_damage: bool,
}

impl From<String> for Unwritable {
    fn from(reason: String) -> Self {
        Self {
            reason,
            is_damage: false,
        }
    }
}

/// What was written since the WAL was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    ops: usize,
    bytes: usize,
}

impl Writer {
    /// All of the batch in one transaction, then the answers. After an error the outcome is unknown and
    /// everybody has been told so.
    pub(super) fn commit(&mut self, mut batch: Vec<Op>) -> Result<(), Unwritable> {
        crash::point("store.batch");
        self.written.ops += batch.len();
        self.written.bytes += batch.iter().map(|op| op.bytes).sum::<usize>();
        let mut outcomes = Vec::with_capacity(batch.len());
        let begun = Instant::now();
        match self.run_batch(&mut batch, &mut outcomes) {
            Ok(()) => {
                self.shared.meters.commits.time(begun.elapsed());
                self.shared.meters.batches.number(batch.len() as u64);
                self.shared.publish(&mut self.ledger);
                for (op, outcome) in batch.into_iter().zip(outcomes) {
                    op.job.answer(outcome);
                }
                crash::point("store.answered");
                Ok(())
            }
            Err(error) => {
                self.shared.meters.failures.one();
                let why = self.unwritable(&error);
                for op in batch {
                    op.refuse(&why.reason);
                }
                Err(why)
            }
        }
    }

    /// Pieces are refused before they write anything, so none needs a savepoint. If one fails later all
    /// the same, the batch is taken back and made again with a savepoint for each.
    fn run_batch(
        &mut self,
        batch: &mut [Op],
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> rusqlite::Result<()> {
        let start = self.ledger.mark();
        self.statement("BEGIN IMMEDIATE")?;
        for op in &mut *batch {
            let changes = self.connection.total_changes();
            match self.run_op(op)? {
                Err(_) if self.connection.total_changes() != changes => {
                    self.statement("ROLLBACK")?;
                    self.ledger.back_to(start);
                    outcomes.clear();
                    self.statement("BEGIN IMMEDIATE")?;
                    self.run_with_savepoints(batch, outcomes)?;
                    break;
                }
                outcome => outcomes.push(outcome),
            }
        }
        crash::point("store.commit.before");
        self.statement("COMMIT")?;
        crash::point("store.commit.after");
        self.ledger.keep();
        Ok(())
    }

    fn run_with_savepoints(
        &mut self,
        batch: &mut [Op],
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> rusqlite::Result<()> {
        for op in batch {
            self.statement("SAVEPOINT op")?;
            let outcome = self.run_op(op)?;
            if outcome.is_err() {
                self.statement("ROLLBACK TO op")?;
            }
            self.statement("RELEASE op")?;
            outcomes.push(outcome);
        }
        Ok(())
    }

    /// The outer error says that the transaction is lost.
    fn run_op(&mut self, op: &mut Op) -> rusqlite::Result<Result<(), Error>> {
        let before = self.ledger.mark();
        let mut tx = Tx {
            conn: &self.connection,
            ledger: &mut self.ledger,
            log: &self.shared.log,
            epoch: self.shared.epoch,
        };
        // After a panic all that is half done goes with the connection and the ledger.
        let run = catch_unwind(AssertUnwindSafe(|| op.job.run(&mut tx)));
        let Err(failure) = run.unwrap_or_else(|_| Err(panicked().into())) else {
            return Ok(Ok(()));
        };
        self.ledger.back_to(before);
        match failure {
            Failure::Refused(error) => Ok(Err(error)),
            Failure::Sql(error) if is_of_the_medium(&error) || self.connection.is_autocommit() => {
                Err(error)
            }
            Failure::Sql(error) => {
                tracing::error!(%error, "a change does not fit the store");
                Ok(Err(table::refused(&error)))
            }
        }
    }

    fn statement(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Whether so much was written that the WAL is to be looked at.
    pub(super) fn is_to_look(&self) -> bool {
        self.written.ops >= LOOK_OPS || self.written.bytes >= LOOK_BYTES
    }

    /// Carries the WAL into the file if it is long.
    pub(super) fn look(&mut self) -> Result<(), Unwritable> {
        self.written = Written::default();
        self.carry_if_long()
            .map_err(|error| self.unwritable(&error))
    }

    fn carry_if_long(&self) -> rusqlite::Result<()> {
        let (in_wal, in_file) = self.wal("NOOP")?;
        let limit = i64::try_from(self.tuning.wal_limit_bytes / table::PAGE_BYTES);
        if in_wal > limit.unwrap_or(i64::MAX) {
            self.checkpoint("TRUNCATE")?;
        } else if in_wal - in_file >= CHECKPOINT_FRAMES {
            self.checkpointer.ask();
            self.checkpointer.take_failure().map_or(Ok(()), Err)?;
        } else if in_wal >= LONG_WAL_FRAMES {
            self.checkpoint("PASSIVE")?;
        }
        Ok(())
    }

    /// Carries all of the WAL into the file; the next write begins it anew, in the same place.
    pub(super) fn fold(&self) -> Result<(), Unwritable> {
        let (in_wal, in_file) = self
            .checkpoint("RESTART")
            .map_err(|error| self.unwritable(&error))?;
        if in_wal == in_file {
            self.shared.meters.wal_bytes.set(0);
        }
        Ok(())
    }

    /// A checkpoint that readers hinder does what it can; that is not an error.
    fn checkpoint(&self, mode: &str) -> rusqlite::Result<(i64, i64)> {
        self.connection.busy_timeout(CHECKPOINT_PATIENCE)?;
        crash::point("store.checkpoint.before");
        let frames = self.wal(mode)?;
        crash::point("store.checkpoint.after");
        self.connection.busy_timeout(schema::PATIENCE)?;
        Ok(frames)
    }

    /// Frames in the WAL, and how many of them are in the file.
    fn wal(&self, mode: &str) -> rusqlite::Result<(i64, i64)> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let (in_wal, in_file): (i64, i64) =
            statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
        let bytes = u64::try_from(in_wal).unwrap_or(0) * table::PAGE_BYTES;
        self.shared.meters.wal_bytes.set(bytes);
        Ok((in_wal, in_file))
    }

    /// Everybody sees it from now on.
    pub(super) fn unwritable(&self, error: &rusqlite::Error) -> Unwritable {
        let is_damage = schema::is_damage(error);
        let reason = match is_damage {
            true => format!("{} is damaged ({error})", self.file.display()),
            false => error.to_string(),
        };
        self.shared.set_status(Err(reason.clone()));
        Unwritable { reason, is_damage }
    }

    pub(super) fn reopen(&mut self) -> Result<(), Unwritable> {
        let reopened = self.open_anew();
        self.shared.set_status(reopened.clone());
        Ok(reopened?)
    }

    fn open_anew(&mut self) -> Result<(), String> {
        // The old connection is closed before the file is opened again: it may hold a broken
        // transaction and locks.
        let nowhere = Connection::open_in_memory().map_err(|error| error.to_string())?;
        drop(std::mem::replace(&mut self.connection, nowhere));
        self.checkpointer.end();
        self.checkpointer = Checkpointer::start(&self.file).map_err(|error| error.to_string())?;
        self.shared.readers.reopen();
        self.shared.tail.forget();
        let connection =
            schema::open(&self.file, self.tuning).map_err(|error| error.to_string())?;
        let identity = schema::identity(&connection).map_err(|error| error.to_string())?;
        let ours = identity.is_some_and(|found| {
            found.store_id == self.shared.store_id && found.epoch == self.shared.epoch
        });
        if !ours {
            return Err("the file was replaced by another store; restart the bridge".to_owned());
        }
        schema::try_to_write(&connection).map_err(|error| error.to_string())?;
        self.ledger = Ledger::load(&connection).map_err(|error| error.to_string())?;
        self.connection = connection;
        self.shared.publish(&mut self.ledger);
        Ok(())
    }

    pub(super) fn close(mut self) {
        self.checkpointer.end();
        if let Err(error) = self.checkpoint("TRUNCATE") {
            tracing::warn!(%error, "the last checkpoint failed; the next start makes up for it");
        }
        let Self {
            shared,
            connection,
            lock,
            ..
        } = self;
        drop(connection);
        drop(lock);
        shared.set_status(Err("it is closed".to_owned()));
    }
}
