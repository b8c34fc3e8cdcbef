//! One change on its way to the tables: what it does, what it says ahead of them, and who waits for it.

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::ahead::{self, Ahead, Due};
use super::ledger::Ledger;
use crate::event::LogName;
use crate::store::Error;

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

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => error.to_string(),
            Failure::Sql(error) => error.to_string(),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sql(error)
    }
}

/// Whether the medium failed, so that nothing else in the same transaction can be trusted.
pub(super) fn is_of_the_medium(error: &rusqlite::Error) -> bool {
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
    /// It has been decided before.
    pub(super) is_promised: bool,
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
pub(super) trait Job: Send {
    /// The number of the promise, if it can be decided ahead of the tables.
    fn promise(&mut self, ahead: &mut Ahead) -> Option<u64>;
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure>;
    fn answer(&mut self, outcome: Result<(), Error>);
}

struct Work<T, F, P> {
    change: F,
    promise: P,
    done: Option<T>,
    reply: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T, F, P> Job for Work<T, F, P>
where
    T: Send,
    F: Fn(&mut Tx<'_>) -> Result<T, Failure> + Send,
    P: Fn(&mut Ahead) -> Option<(u64, T)> + Send,
{
    fn promise(&mut self, ahead: &mut Ahead) -> Option<u64> {
        let (number, done) = (self.promise)(ahead)?;
        self.done = Some(done);
        Some(number)
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
        self.done = None;
        self.done = Some((self.change)(tx)?);
        Ok(())
    }

    fn answer(&mut self, outcome: Result<(), Error>) {
        let Some(reply) = self.reply.take() else {
            return;
        };
        let not_run = || Error::Unavailable("the write was not made".to_owned());
        let result = outcome.and_then(|()| self.done.take().ok_or_else(not_run));
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
    pub(super) job: Box<dyn Job>,
    pub(super) haste: Haste,
    pub(super) bytes: usize,
    /// Who waited has been answered, and the tables must come to this.
    pub(super) due: Option<Due>,
    _room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Op {
    pub(super) fn new<T: Send + 'static>(
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
        promise: impl Fn(&mut Ahead) -> Option<(u64, T)> + Send + 'static,
        haste: Haste,
        bytes: usize,
        room: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    ) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (reply, receiver) = oneshot::channel();
        let work = Work {
            change,
            promise,
            done: None,
            reply: Some(reply),
        };
        let op = Self {
            job: Box::new(work),
            haste,
            bytes,
            due: None,
            _room: room,
        };
        (op, receiver)
    }

    /// Whether it can be decided ahead of the tables; it is promised with the next `Ahead::sync`.
    pub(super) fn promise(&mut self, ahead: &mut Ahead) -> bool {
        if self.bytes <= ahead::MOST_BYTES {
            self.due = self.job.promise(ahead).map(|number| ahead.due(number));
        }
        self.due.is_some()
    }

    /// The promise is on disk.
    pub(super) fn answer(&mut self) {
        self.job.answer(Ok(()));
    }

    pub(super) fn refuse(mut self, reason: &str) {
        self.job.answer(Err(Error::Unavailable(reason.to_owned())));
    }
}
