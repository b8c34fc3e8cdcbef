//! Queued change: the rows it needs, its decision on them, and the caller that waits for the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::batch::{Needs, Placed, Rows, Stop};
use forge_store::{Error, Result};

/// Decision on the rows of a batch: it looks at them first, and changes them when nothing can refuse the change any more.
/// It is made again if its transaction was rolled back.
pub(crate) trait Decide<T>: Fn(&mut Rows) -> Result<T, Stop> + Send + 'static {}

impl<T, F: Fn(&mut Rows) -> Result<T, Stop> + Send + 'static> Decide<T> for F {}

/// A change of any result type.
trait Change: Send {
    fn decide(&mut self, rows: &mut Rows) -> Result<(), Stop>;
    fn answer(self: Box<Self>, outcome: Result<Placed>);
}

struct Pending<T, F> {
    decide: F,
    done: Option<Result<T>>,
    reply: oneshot::Sender<Result<(T, Placed)>>,
}

impl<T: Send, F: Decide<T>> Change for Pending<T, F> {
    fn decide(&mut self, rows: &mut Rows) -> Result<(), Stop> {
        self.done = Some(match (self.decide)(rows) {
            Ok(done) => Ok(done),
            Err(Stop::Refused(error)) => Err(error),
            Err(stop) => return Err(stop),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<Placed>) {
        let Self { done, reply, .. } = *self;
        let not_made = || Err(Error::Unavailable("the change was not made".to_owned()));
        let answer = outcome.and_then(|placed| Ok((done.unwrap_or_else(not_made)?, placed)));
        // The caller can be gone; the change stays.
        let _ = reply.send(answer);
    }
}

/// A change in the write queue, with the room it takes there.
pub(crate) struct QueuedChange {
    change: Box<dyn Change>,
    needs: Needs,
    pub(crate) bytes: usize,
    pub(crate) arrived: Instant,
    /// Times it was put off to the next batch.
    put_off: u32,
    _room: OwnedSemaphorePermit,
}

/// Batches that a change is put off by at most. Each finds the rows that the one before did not.
const PUT_OFF: u32 = 8;

type Answer<T> = oneshot::Receiver<Result<(T, Placed)>>;

impl QueuedChange {
    pub(crate) fn new<T: Send + 'static>(
        bytes: usize,
        needs: Needs,
        decide: impl Decide<T>,
        room: OwnedSemaphorePermit,
    ) -> (Self, Answer<T>) {
        let (reply, answer) = oneshot::channel();
        let change = Box::new(Pending {
            decide,
            done: None,
            reply,
        });
        let queued = Self {
            change,
            needs,
            bytes,
            arrived: Instant::now(),
            put_off: 0,
            _room: room,
        };
        (queued, answer)
    }

    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Decides. A panic leaves the rows as they happen to be, so the batch cannot be written.
    pub(crate) fn decide(&mut self, rows: &mut Rows) -> Result<(), Stop> {
        let decided = catch_unwind(AssertUnwindSafe(|| self.change.decide(rows)));
        decided.unwrap_or(Err(Stop::Panicked))
    }

    /// The change for a batch of its own.
    pub(crate) fn alone(mut self) -> Self {
        self.needs.is_alone = true;
        self
    }

    /// The change for the next batch; refused if the rows that it needs are never found.
    pub(crate) fn put_off(mut self) -> Option<Self> {
        self.put_off += 1;
        if self.put_off <= PUT_OFF {
            return Some(self);
        }
        self.refuse("the rows of the change do not belong together");
        None
    }

    pub(crate) fn answer(self, outcome: Result<Placed>) {
        self.change.answer(outcome);
    }

    pub(crate) fn refuse(self, reason: &str) {
        self.answer(Err(Error::Unavailable(reason.to_owned())));
    }
}
