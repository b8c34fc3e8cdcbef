//! Queued change: its operation, and the caller that waits for the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use forge_store::{Error, Result};

/// Reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Refused by a rule of the domain; the store works.
    #[error(transparent)]
    Refused(#[from] Error),
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
}

/// Answer to the caller whose query or change failed: a value that its column should not hold concerns one record,
/// everything else the whole store.
pub(super) fn refusal(error: &rusqlite::Error) -> Error {
    let text = error.to_string();
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => Error::Unreadable(text),
        _ => Error::Unavailable(text),
    }
}

/// Urgency of a change: one that is not urgent waits for others to share its commit with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// No caller is waiting for its effect.
    Soon,
    Now,
}

/// A change of any result type.
trait Change<S>: Send {
    fn run(&mut self, connection: &Connection, state: &mut S) -> Result<(), Failure>;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

struct Pending<T, F> {
    change: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<S, T, F> Change<S> for Pending<T, F>
where
    T: Send,
    F: Fn(&Connection, &mut S) -> Result<T, Failure> + Send,
{
    fn run(&mut self, connection: &Connection, state: &mut S) -> Result<(), Failure> {
        self.done = None;
        self.done = Some((self.change)(connection, state)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Self { done, reply, .. } = *self;
        let not_run = || Error::Unavailable("the write was not made".to_owned());
        // The caller can be gone; the change stays.
        let _ = reply.send(outcome.and_then(|()| done.ok_or_else(not_run)));
    }
}

/// A change in the write queue, with the room it takes there.
pub(super) struct QueuedChange<S> {
    change: Box<dyn Change<S>>,
    pub(super) urgency: Urgency,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
    _room: OwnedSemaphorePermit,
}

impl<S> QueuedChange<S> {
    pub(super) fn new<T: Send + 'static>(
        change: impl Fn(&Connection, &mut S) -> Result<T, Failure> + Send + 'static,
        urgency: Urgency,
        bytes: usize,
        room: OwnedSemaphorePermit,
    ) -> (Self, oneshot::Receiver<Result<T>>) {
        let (reply, receiver) = oneshot::channel();
        let pending = Pending {
            change,
            done: None,
            reply,
        };
        let queued = Self {
            change: Box::new(pending),
            urgency,
            bytes,
            arrived: Instant::now(),
            _room: room,
        };
        (queued, receiver)
    }

    /// Runs the change inside the open transaction. A panic counts as a failure of the medium: the transaction and
    /// the state are dropped and read again.
    pub(super) fn run(&mut self, connection: &Connection, state: &mut S) -> Result<(), Failure> {
        let run = catch_unwind(AssertUnwindSafe(|| self.change.run(connection, state)));
        run.unwrap_or_else(|_| {
            let internal = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERNAL);
            let text = "a change panicked".to_owned();
            Err(rusqlite::Error::SqliteFailure(internal, Some(text)).into())
        })
    }

    pub(super) fn answer(self, outcome: Result<()>) {
        self.change.answer(outcome);
    }

    pub(super) fn refuse(self, reason: &str) {
        self.answer(Err(Error::Unavailable(reason.to_owned())));
    }
}
