//! Writes changes: all of a batch in one transaction, and it is answered after the commit is on disk. A piece that
//! fails takes only itself back. When the disk or the database fails, nobody is told yes, and the file is opened anew
//! before the next write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::ahead::{self, Ahead};
use super::checkpoint::Checkpointer;
use super::ledger::Ledger;
use super::lock::Lock;
use super::op::{Failure, Op, Tx, is_of_the_medium, panicked};
use super::schema::{self, Tuning};
use super::shared::{InTables, Shared};
use super::table;
use crate::crash;
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

pub(super) struct Writer {
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

impl Written {
    fn add(&mut self, batch: &[Op]) {
        self.ops += batch.len();
        self.bytes += batch.iter().map(|op| op.bytes).sum::<usize>();
    }
}

impl Writer {
    /// Makes to the tables what was promised. As long as nobody waits for it, whoever else has something to do goes
    /// first: else the system would have him wait until it is all made.
    pub(super) fn make(&mut self, mut promised: Vec<Op>) -> Result<(), Unwritable> {
        crash::point("store.make");
        self.written.add(&promised);
        let outcomes = &mut Vec::new();
        let made = self.run_batch(&mut promised, outcomes, |shared| {
            if !shared.is_wanted() {
                thread::yield_now();
            }
        });
        let last = made.map_err(|error| self.failed(&error))?;
        crash::point("store.made");
        self.shared.publish_log(self.ledger.numbers.bounds);
        self.shared.publish_made(last);
        Ok(())
    }

    /// All of the batch in one transaction, after what was promised before, then the answers. After an error the
    /// outcome is unknown and everybody has been told so.
    pub(super) fn commit(
        &mut self,
        ahead: &mut Ahead,
        mut batch: Vec<Op>,
    ) -> Result<(), Unwritable> {
        crash::point("store.batch");
        self.written.add(&batch);
        let mut outcomes = Vec::with_capacity(batch.len());
        let begun = Instant::now();
        match self.run_batch(&mut batch, &mut outcomes, |_| {}) {
            Ok(last) => {
                self.shared.meters.commits.time(begun.elapsed());
                self.shared.meters.batches.number(batch.len() as u64);
                ahead.catch_up(&mut self.ledger);
                self.shared.publish(&mut self.ledger);
                self.shared.publish_made(last);
                for (mut op, outcome) in batch.into_iter().zip(outcomes) {
                    op.job.answer(outcome);
                }
                crash::point("store.answered");
                Ok(())
            }
            Err(error) => {
                let why = self.failed(&error);
                for op in batch {
                    op.refuse(&why.reason);
                }
                Err(why)
            }
        }
    }

    /// Pieces are refused before they write anything, so none needs a savepoint. If one fails later all
    /// the same, the batch is taken back and made again with a savepoint for each. The number of the last promise.
    fn run_batch(
        &mut self,
        batch: &mut [Op],
        outcomes: &mut Vec<Result<(), Error>>,
        between: impl Fn(&Shared),
    ) -> rusqlite::Result<Option<u64>> {
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
            between(&self.shared);
        }
        let last = batch.iter().filter_map(|op| op.due).next_back();
        if let Some(due) = last {
            schema::keep_promised(&self.connection, due.number)?;
        }
        crash::point("store.commit.before");
        self.statement("COMMIT")?;
        crash::point("store.commit.after");
        self.ledger.keep();
        Ok(last.map(|due| due.number))
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
        let (before, turns) = (self.ledger.mark(), self.ledger.turns.len());
        let mut tx = Tx {
            conn: &self.connection,
            ledger: &mut self.ledger,
            log: &self.shared.log,
            epoch: self.shared.epoch,
            is_promised: op.due.is_some(),
        };
        // After a panic all that is half done goes with the connection and the ledger.
        let run = catch_unwind(AssertUnwindSafe(|| op.job.run(&mut tx)));
        let failure = match (run.unwrap_or_else(|_| Err(panicked().into())), op.due) {
            (Ok(()), None) => return Ok(Ok(())),
            (Ok(()), Some(due)) if self.ledger.numbers.same_places(&due.numbers) => {
                // That was known when it was promised.
                self.ledger.turns.truncate(turns);
                return Ok(Ok(()));
            }
            (Err(Failure::Sql(error)), Some(_)) if is_of_the_medium(&error) => return Err(error),
            (outcome, Some(due)) => {
                tracing::error!(?outcome, ?due, "a promise does not fit the tables");
                return Err(ahead::torn("a promise does not fit the tables"));
            }
            (Err(failure), None) => failure,
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

    fn failed(&self, error: &rusqlite::Error) -> Unwritable {
        self.shared.meters.failures.one();
        self.unwritable(error)
    }

    pub(super) fn unwritable(&self, error: &rusqlite::Error) -> Unwritable {
        self.shared.unwritable(error)
    }

    pub(super) fn reopen(&mut self, ahead: &mut Ahead) -> Result<(), Unwritable> {
        let reopened = self.open_anew(ahead);
        self.shared.set_status(reopened.clone());
        Ok(reopened?)
    }

    fn open_anew(&mut self, ahead: &mut Ahead) -> Result<(), String> {
        // The old connection is closed before the file is opened again: it may hold a broken
        // transaction and locks.
        let nowhere = Connection::open_in_memory().map_err(|error| error.to_string())?;
        drop(std::mem::replace(&mut self.connection, nowhere));
        self.checkpointer.end();
        self.checkpointer =
            Checkpointer::start(&self.shared.file).map_err(|error| error.to_string())?;
        self.shared.readers.reopen();
        self.shared.tail.forget();
        let connection =
            schema::open(&self.shared.file, self.tuning).map_err(|error| error.to_string())?;
        let identity = schema::identity(&connection).map_err(|error| error.to_string())?;
        let ours = identity.as_ref().is_some_and(|found| {
            found.store_id == self.shared.store_id && found.epoch == self.shared.epoch
        });
        let Some(identity) = identity.filter(|_| ours) else {
            return Err("the file was replaced by another store; restart the bridge".to_owned());
        };
        schema::try_to_write(&connection).map_err(|error| error.to_string())?;
        let left = ahead::journaled(&connection, &self.shared.file, &identity);
        let left = left.map_err(|error| error.to_string())?;
        let last = ahead::redo(&connection, &identity, left)?;
        self.ledger = Ledger::load(&connection).map_err(|error| error.to_string())?;
        let shared = Arc::clone(&self.shared);
        *ahead = Ahead::open(&self.shared.file, shared, self.ledger.numbers, last)
            .map_err(|error| error.to_string())?;
        let now = InTables {
            number: last,
            stuck: false,
        };
        self.connection = connection;
        self.shared.publish(&mut self.ledger);
        self.shared.in_tables.send_replace(now);
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
