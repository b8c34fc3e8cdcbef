//! Where changes wait to be written, and whose turn it is. While little is written and the disk is quick, whoever
//! comes writes on his own thread, and with him what waits: no other thread has to be woken, and to wake him. Else it
//! is the turn of the store's own thread, which takes all that came meanwhile at once.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use backoff::ExponentialBackoffBuilder;
use backoff::backoff::Backoff;
use tokio::sync::oneshot;

use super::schema;
use super::shared::lock;
use super::writer::{Haste, Op, Writer, panicked};

const BATCH_OPS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;
/// Under load a commit begins at the earliest so long after the one before: what comes meanwhile shares
/// it, and all of it costs less. A batch of fewer than `CROWD` is no load: then nobody is kept waiting.
const PACE: Duration = Duration::from_micros(400);
const CROWD: usize = 8;
/// How long a change for which nobody waits looks for others to share its commit.
const RIDE: Duration = Duration::from_millis(5);
/// After so long without a write the WAL is folded into the file, and the next write begins it anew. It keeps its
/// length: where a file has to grow, a sync takes twice as long.
const IDLE: Duration = Duration::from_secs(1);
/// It is calm after so many commits in a row of so few changes that took no longer than this. Whoever comes then with
/// no more bytes than these writes himself: nothing else is done on his thread meanwhile.
const CALM_COMMITS: u32 = 8;
const CALM_OPS: usize = 3;
const CALM: Duration = Duration::from_millis(1);
const LIGHT_BYTES: usize = 64 << 10;

/// Hands in changes. When it goes, what waits is written and the store is closed.
pub(super) struct Desk(Arc<Inner>);

/// The store is closed.
#[derive(Debug)]
pub(super) struct Closed;

struct Inner {
    state: Mutex<State>,
    /// The store's own.
    thread: OnceLock<Thread>,
}

struct State {
    waiting: VecDeque<Op>,
    /// Since when the first of them waits.
    since: Instant,
    /// Whether one of them may not wait for others.
    hurried: bool,
    /// Away while somebody writes.
    writer: Option<Box<Writer>>,
    /// How many commits in a row it has been calm.
    calm: u32,
    /// When the last commit was, unless the WAL has been folded since.
    written_at: Option<Instant>,
    /// Why nothing can be written before the file is opened anew.
    failure: Option<rusqlite::Error>,
    /// The same, while that is tried.
    away: Option<String>,
    closing: Closing,
}

enum Closing {
    No,
    /// And who waits for it.
    Asked(Vec<oneshot::Sender<()>>),
    Done,
}

/// What the store's thread does next.
enum Task {
    /// And looks at the WAL.
    Write(Vec<Op>),
    Fold,
    Recover(rusqlite::Error),
    Close,
}

enum Done {
    Written { is_calm: bool },
    Folded,
    Reopened,
}

impl Desk {
    pub(super) fn open(writer: Writer) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                since: Instant::now(),
                hurried: false,
                writer: Some(Box::new(writer)),
                calm: CALM_COMMITS,
                written_at: Some(Instant::now()),
                failure: None,
                away: None,
                closing: Closing::No,
            }),
            thread: OnceLock::new(),
        });
        let desk = Self(Arc::clone(&inner));
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || inner.run())?;
        Ok(desk)
    }

    /// The change answers for itself once it is on disk.
    pub(super) fn hand_in(&self, op: Op) -> Result<(), Closed> {
        let mut state = lock(&self.0.state);
        if !matches!(state.closing, Closing::No) {
            return Err(Closed);
        }
        if let Some(reason) = state.away.clone() {
            drop(state);
            op.refuse(&reason);
            return Ok(());
        }
        let is_light = op.haste == Haste::Now && op.bytes <= LIGHT_BYTES;
        let may_write = is_light && state.calm >= CALM_COMMITS;
        state.add(op);
        if let Some(mut writer) = state
            .writer
            .take_if(|writer| may_write && !writer.is_to_look())
        {
            let batch = state.batch();
            drop(state);
            let written = commit(&mut writer, batch);
            if lock(&self.0.state).give_back(writer, written) {
                self.0.call_thread();
            }
        } else if state.writer.is_some() {
            drop(state);
            self.0.call_thread();
        }
        Ok(())
    }

    /// Returns when what waited is on disk and the file is closed.
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        self.ask_to_close(Some(done));
        // An error says that it is.
        let _ = closed.await;
    }

    fn ask_to_close(&self, done: Option<oneshot::Sender<()>>) {
        match &mut lock(&self.0.state).closing {
            closing @ Closing::No => *closing = Closing::Asked(done.into_iter().collect()),
            Closing::Asked(all) => all.extend(done),
            Closing::Done => return,
        }
        self.0.call_thread();
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.ask_to_close(None);
    }
}

impl State {
    fn add(&mut self, op: Op) {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.hurried |= op.haste == Haste::Now;
        self.waiting.push_back(op);
    }

    fn batch(&mut self) -> Vec<Op> {
        let mut bytes = 0;
        let fits = |op: &&Op| {
            let before = bytes;
            bytes += op.bytes;
            before < BATCH_BYTES
        };
        let count = self.waiting.iter().take(BATCH_OPS).take_while(fits).count();
        let batch = self.waiting.drain(..count).collect();
        self.hurried = !self.waiting.is_empty();
        batch
    }

    /// What is to be done now, else how long there is nothing to do.
    fn next(&mut self) -> Result<(Box<Writer>, Task), Duration> {
        // Who writes sees what is left.
        let writer = self.writer.take().ok_or(IDLE)?;
        match self.task(&writer) {
            Ok(task) => Ok((writer, task)),
            Err(pause) => {
                self.writer = Some(writer);
                Err(pause)
            }
        }
    }

    fn task(&mut self, writer: &Writer) -> Result<Task, Duration> {
        if let Some(error) = self.failure.take() {
            return Ok(Task::Recover(error));
        }
        let is_closing = matches!(self.closing, Closing::Asked(_));
        if !self.waiting.is_empty() {
            let left = RIDE.saturating_sub(self.since.elapsed());
            return match self.hurried || is_closing || left.is_zero() {
                true => Ok(Task::Write(self.batch())),
                false => Err(left),
            };
        }
        if is_closing {
            return Ok(Task::Close);
        }
        if writer.is_to_look() {
            return Ok(Task::Write(Vec::new()));
        }
        match self.written_at.map(|at| IDLE.saturating_sub(at.elapsed())) {
            Some(Duration::ZERO) => Ok(Task::Fold),
            Some(left) => Err(left),
            None => Err(IDLE),
        }
    }

    /// Whether there is something to do for the thread.
    fn give_back(&mut self, writer: Box<Writer>, done: rusqlite::Result<Done>) -> bool {
        match done {
            Ok(Done::Written { is_calm }) => {
                self.calm = match is_calm {
                    true => self.calm.saturating_add(1),
                    false => 0,
                };
                self.written_at = Some(Instant::now());
            }
            Ok(Done::Folded) => self.written_at = None,
            Ok(Done::Reopened) => {}
            Err(error) => {
                self.calm = 0;
                self.away = Some(writer.reason(&error));
                self.failure = Some(error);
            }
        }
        let is_left = writer.is_to_look()
            || self.failure.is_some()
            || !self.waiting.is_empty()
            || !matches!(self.closing, Closing::No);
        self.writer = Some(writer);
        is_left
    }
}

fn commit(writer: &mut Writer, batch: Vec<Op>) -> rusqlite::Result<Done> {
    let (begun, few) = (Instant::now(), batch.len() <= CALM_OPS);
    // After a panic all that is half done goes with the connection.
    let written = catch_unwind(AssertUnwindSafe(|| writer.commit(batch)));
    written.unwrap_or_else(|_| Err(panicked()))?;
    let is_calm = few && begun.elapsed() <= CALM;
    Ok(Done::Written { is_calm })
}

impl Inner {
    fn call_thread(&self) {
        // One that has not begun looks before it waits.
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn run(&self) {
        let _ = self.thread.set(thread::current());
        loop {
            let next = lock(&self.state).next();
            let (mut writer, task) = match next {
                Ok(next) => next,
                Err(pause) => {
                    thread::park_timeout(pause);
                    continue;
                }
            };
            let done = match task {
                Task::Write(batch) => {
                    let (begun, crowd) = (Instant::now(), batch.len() >= CROWD);
                    let written = commit(&mut writer, batch);
                    let looked = written.and_then(|done| writer.look().map(|()| done));
                    if crowd {
                        thread::sleep(PACE.saturating_sub(begun.elapsed()));
                    }
                    looked
                }
                Task::Fold => writer.checkpoint("RESTART").map(|()| Done::Folded),
                Task::Recover(error) => {
                    self.recover(&mut writer, &error);
                    Ok(Done::Reopened)
                }
                Task::Close => break writer.close(),
            };
            lock(&self.state).give_back(writer, done);
        }
        let closing = mem::replace(&mut lock(&self.state).closing, Closing::Done);
        let Closing::Asked(all) = closing else { return };
        for done in all {
            // The one who asked may have gone.
            let _ = done.send(());
        }
    }

    /// Opens the file anew until it can be written, or the store is to be closed. Whoever comes meanwhile is told
    /// that the store is away. What is damaged is not written any more, lest more be lost.
    fn recover(&self, writer: &mut Writer, error: &rusqlite::Error) {
        let is_damaged = schema::is_damage(error);
        let mut reason = writer.reason(error);
        let then = match is_damaged {
            true => {
                "nothing more is written to it: stop the bridge, look with `forge-bridge store check`, restore a backup"
            }
            false => "new work is refused until it can be written again",
        };
        tracing::error!("the store failed: {reason}; {then}");
        let since = Instant::now();
        let mut delays = ExponentialBackoffBuilder::new()
            .with_initial_interval(Duration::from_millis(50))
            .with_max_interval(Duration::from_secs(5))
            .with_max_elapsed_time(None)
            .build();
        loop {
            writer.shared.set_status(Err(reason.clone()));
            let refused = {
                let mut state = lock(&self.state);
                state.away = Some(reason.clone());
                state.hurried = false;
                mem::take(&mut state.waiting)
            };
            for op in refused {
                op.refuse(&reason);
            }
            let reopened = match is_damaged {
                true => Err(reason.clone()),
                false => writer.reopen(),
            };
            match reopened {
                Ok(()) => {
                    tracing::info!("the store is back after {:.1?}", since.elapsed());
                    writer.shared.set_status(Ok(()));
                    lock(&self.state).away = None;
                    return;
                }
                Err(error) => reason = error,
            }
            let delay = delays.next_backoff().unwrap_or(Duration::from_secs(5));
            let until = Instant::now() + delay;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                if matches!(lock(&self.state).closing, Closing::Asked(_)) {
                    return;
                }
                thread::park_timeout(left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures_util::FutureExt as _;
    use tokio::runtime;

    use super::super::Sqlite;
    use super::super::tests::open;
    use super::*;
    use crate::store::Store as _;

    /// A change that tells on which thread it was made.
    async fn made_by(store: &Sqlite, haste: Haste, bytes: usize) -> String {
        let name = || thread::current().name().unwrap_or_default().to_owned();
        store
            .commit(haste, bytes, move |_| Ok(name()))
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn who_comes_when_it_is_calm_writes_himself() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        // Not when the disk is slow at that moment.
        while made_by(&store, Haste::Now, 0).await == "store" {}
        assert_eq!(
            made_by(&store, Haste::Now, LIGHT_BYTES).await,
            "store",
            "heavy"
        );
        assert_eq!(made_by(&store, Haste::Soon, 0).await, "store", "it rides");
        store.close().await;
    }

    #[tokio::test]
    async fn who_comes_while_another_writes_is_left_to_the_thread_and_a_close_to_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let (writes, is_writing) = mpsc::channel();
        let (go_on, told) = mpsc::channel();
        let told = Mutex::new(told);
        let first = store.clone();
        let first = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(first.write(0, move |_| {
                writes.send(()).unwrap();
                lock(&told).recv().unwrap();
                Ok(())
            }))
        });
        is_writing.recv().unwrap();
        let mut second = pin!(made_by(&store, Haste::Now, 0));
        assert!(second.as_mut().now_or_never().is_none());
        let mut closed = pin!(store.close());
        assert!(closed.as_mut().now_or_never().is_none());
        go_on.send(()).unwrap();
        first.join().unwrap().unwrap();
        assert_eq!(second.await, "store");
        closed.await;
        assert!(store.write(0, |_| Ok(())).await.is_err());
    }
}
