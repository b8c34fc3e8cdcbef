//! Threads that read, each with its own connection. Short questions have a thread of their own, so that
//! the scheduler and the outbox never wait behind somebody's list.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::{schema, table};
use crate::store::Error;

/// Questions that may wait in one lane; whoever has another one waits for room.
const LANE_QUESTIONS: usize = 1024;

/// How long a question takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Length {
    /// A few steps in an index.
    Short,
    /// A page of something.
    Long,
}

pub(super) struct Readers {
    short: Arc<Lane>,
    long: Arc<Lane>,
}

impl Readers {
    /// Starts the threads: one for what is short, the rest, at least one, for what is long.
    pub(super) fn start(file: &Path, count: usize) -> io::Result<Self> {
        Ok(Self {
            short: Lane::start(file, 1)?,
            long: Lane::start(file, count.saturating_sub(1).max(1))?,
        })
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        length: Length,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let lane = match length {
            Length::Short => &self.short,
            Length::Long => &self.long,
        };
        let closed = || Error::Unavailable("it is closed".to_owned());
        let room = Arc::clone(&lane.room).acquire_owned().await;
        let room = room.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        lane.ask(Box::new(move |connection| {
            let result = connection.and_then(query);
            drop(room);
            // Nobody waits any more when the caller went away.
            let _ = reply.send(result);
        }));
        let answer = answer.await.map_err(|_| closed())?;
        answer.map_err(|error| table::refused(&error))
    }

    /// Has every thread open the file anew before its next question.
    pub(super) fn reopen(&self) {
        for lane in [&self.short, &self.long] {
            lane.state().generation += 1;
        }
    }

    /// Ends the threads; questions that wait are not answered.
    pub(super) fn close(&self) {
        for lane in [&self.short, &self.long] {
            lane.room.close();
            let mut state = lane.state();
            state.closed = true;
            state.questions.clear();
            lane.wake.notify_all();
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.close();
    }
}

type Question = Box<dyn FnOnce(rusqlite::Result<&Connection>) + Send>;

struct Lane {
    state: Mutex<State>,
    wake: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    questions: VecDeque<Question>,
    sleeping: usize,
    /// Raised when connections opened before are not to be used any more.
    generation: u64,
    closed: bool,
}

impl Lane {
    fn start(file: &Path, threads: usize) -> io::Result<Arc<Self>> {
        let lane = Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            room: Arc::new(Semaphore::new(LANE_QUESTIONS)),
        });
        for _ in 0..threads {
            let (lane, file) = (Arc::clone(&lane), file.to_owned());
            std::thread::Builder::new()
                .name("store-reader".to_owned())
                .spawn(move || lane.answer(&file))?;
        }
        Ok(lane)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, question: Question) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.questions.push_back(question);
        if state.sleeping > 0 {
            self.wake.notify_one();
        }
    }

    fn next(&self) -> Option<(Question, u64)> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(question) = state.questions.pop_front() {
                return Some((question, state.generation));
            }
            state.sleeping += 1;
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
    }

    fn answer(&self, file: &Path) {
        let mut open: Option<(Connection, u64)> = None;
        while let Some((question, generation)) = self.next() {
            if open.as_ref().is_some_and(|(_, of)| *of != generation) {
                open = None;
            }
            let connection = match &open {
                Some((connection, _)) => Ok(connection),
                None => schema::open_reader(file)
                    .map(|connection| &open.insert((connection, generation)).0),
            };
            // A question that panics must not take the lane with it; whoever asked sees no answer.
            if catch_unwind(AssertUnwindSafe(|| question(connection))).is_err() {
                open = None;
            }
        }
    }
}
