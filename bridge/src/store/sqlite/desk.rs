//! Where changes wait to be written, and whose turn it is. While little is written and the disk is quick, whoever
//! comes writes on his own thread, and with him what waits: no other thread has to be woken, and to wake him. Else it
//! is the turn of the store's own thread, which takes all that came meanwhile at once.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use tokio::sync::oneshot;

use super::shared::lock;
use super::writer::{Haste, Op, Unwritable, Writer, panicked};

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
/// Between two attempts to open the file anew, at most.
const LONG_DELAY: Duration = Duration::from_secs(5);

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
    /// Under load, when the next commit may begin.
    not_before: Instant,
    /// When the last commit was, unless the WAL has been folded since.
    written_at: Option<Instant>,
    /// Why nothing can be written before the file is opened anew.
    failure: Option<Failure>,
    closing: Closing,
    /// When the store's thread looks again if nobody calls it; past while it is at work.
    wakes_at: Option<Instant>,
}

struct Failure {
    why: Unwritable,
    since: Instant,
    delays: ExponentialBackoff,
    again_at: Instant,
}

enum Closing {
    No,
    /// And who waits for it.
    Asked(Vec<oneshot::Sender<()>>),
    Done,
}

/// What is for the store's thread to do.
#[derive(Clone, Copy)]
enum Task {
    Write,
    Look,
    Fold,
    Reopen,
    Close,
}

enum Done {
    Written { ops: usize, begun: Instant },
    Looked,
    Folded,
    Reopened,
}

impl Desk {
    pub(super) fn open(writer: Writer) -> io::Result<Self> {
        let now = Instant::now();
        let inner = Arc::new(Inner {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                since: now,
                hurried: false,
                writer: Some(Box::new(writer)),
                calm: CALM_COMMITS,
                not_before: now,
                written_at: Some(now),
                failure: None,
                closing: Closing::No,
                wakes_at: Some(now),
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
        if let Some(failure) = &state.failure {
            let reason = failure.why.reason.clone();
            drop(state);
            op.refuse(&reason);
            return Ok(());
        }
        let is_light = op.haste == Haste::Now && op.bytes <= LIGHT_BYTES;
        let may_write = is_light && state.calm >= CALM_COMMITS;
        state.add(op);
        let writer = state
            .writer
            .take_if(|writer| may_write && !writer.is_to_look());
        match writer {
            Some(writer) => {
                let batch = state.batch();
                drop(state);
                self.0.perform(writer, |writer| write(writer, batch));
            }
            None => self.0.call_thread(state),
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
        let mut state = lock(&self.0.state);
        match &mut state.closing {
            closing @ Closing::No => *closing = Closing::Asked(done.into_iter().collect()),
            Closing::Asked(all) => all.extend(done),
            Closing::Done => return,
        }
        self.0.call_thread(state);
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

    /// What is for the store's thread to do, and when. Who writes asks again when he is done.
    fn next(&self, now: Instant) -> Option<(Instant, Task)> {
        let writer = self.writer.as_ref()?;
        let is_closing = matches!(self.closing, Closing::Asked(_));
        if let Some(failure) = &self.failure {
            return match (is_closing, failure.why.is_damage) {
                (true, _) => Some((now, Task::Close)),
                (false, true) => None,
                (false, false) => Some((failure.again_at, Task::Reopen)),
            };
        }
        if writer.is_to_look() {
            return Some((now, Task::Look));
        }
        if !self.waiting.is_empty() {
            let at = match self.hurried || is_closing {
                true => self.not_before,
                false => self.since + RIDE,
            };
            return Some((at, Task::Write));
        }
        if is_closing {
            return Some((now, Task::Close));
        }
        self.written_at.map(|at| (at + IDLE, Task::Fold))
    }

    /// After a failure, what was waiting and what it is to be told.
    fn note(&mut self, done: Result<Done, Unwritable>) -> Option<(VecDeque<Op>, String)> {
        let now = Instant::now();
        match done {
            Ok(Done::Written { ops, begun }) => {
                let is_calm = ops <= CALM_OPS && now - begun <= CALM;
                self.calm = match is_calm {
                    true => self.calm.saturating_add(1),
                    false => 0,
                };
                if ops >= CROWD {
                    self.not_before = begun + PACE;
                }
                self.written_at = Some(now);
            }
            Ok(Done::Looked) => {}
            Ok(Done::Folded) => self.written_at = None,
            Ok(Done::Reopened) => {
                if let Some(failure) = self.failure.take() {
                    tracing::info!("the store is back after {:.1?}", now - failure.since);
                }
            }
            Err(why) => {
                self.calm = 0;
                self.hurried = false;
                let reason = why.reason.clone();
                self.failure = Some(match self.failure.take() {
                    None => Failure::new(why, now),
                    Some(failure) => failure.again(why, now),
                });
                return Some((mem::take(&mut self.waiting), reason));
            }
        }
        None
    }
}

impl Failure {
    fn new(why: Unwritable, now: Instant) -> Self {
        let then = match why.is_damage {
            true => {
                "nothing more is written to it: stop the bridge, look with `forge-bridge store check`, restore a backup"
            }
            false => "new work is refused until it can be written again",
        };
        tracing::error!("the store failed: {}; {then}", why.reason);
        let delays = ExponentialBackoffBuilder::new()
            .with_initial_interval(Duration::from_millis(50))
            .with_max_interval(LONG_DELAY)
            .with_max_elapsed_time(None)
            .build();
        Self {
            why,
            since: now,
            delays,
            again_at: now,
        }
    }

    fn again(mut self, why: Unwritable, now: Instant) -> Self {
        let delay = self.delays.next_backoff().unwrap_or(LONG_DELAY);
        Self {
            why,
            again_at: now + delay,
            ..self
        }
    }
}

fn write(writer: &mut Writer, batch: Vec<Op>) -> Result<Done, Unwritable> {
    let (ops, begun) = (batch.len(), Instant::now());
    writer.commit(batch)?;
    Ok(Done::Written { ops, begun })
}

impl Inner {
    /// Without waking it when it would do nothing yet.
    fn call_thread(&self, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let is_due = |at: Instant| state.wakes_at.is_none_or(|wakes| at < wakes);
        if state.next(now).is_some_and(|(at, _)| is_due(at)) {
            state.wakes_at = Some(now);
            drop(state);
            // One that has not begun looks before it waits.
            if let Some(thread) = self.thread.get() {
                thread.unpark();
            }
        }
    }

    /// After a panic all that is half done goes with the connection, which is opened anew.
    fn perform(
        &self,
        mut writer: Box<Writer>,
        task: impl FnOnce(&mut Writer) -> Result<Done, Unwritable>,
    ) {
        let done = catch_unwind(AssertUnwindSafe(|| task(&mut writer)));
        let done = done.unwrap_or_else(|_| Err(writer.unwritable(&panicked())));
        let mut state = lock(&self.state);
        state.writer = Some(writer);
        let refused = state.note(done);
        self.call_thread(state);
        let Some((waiting, reason)) = refused else {
            return;
        };
        for op in waiting {
            op.refuse(&reason);
        }
    }

    fn run(&self) {
        let _ = self.thread.set(thread::current());
        loop {
            let mut state = lock(&self.state);
            let now = Instant::now();
            let next = state.next(now);
            let due = next.filter(|(at, _)| *at <= now);
            let Some((writer, task)) = due.and_then(|(_, task)| Some((state.writer.take()?, task)))
            else {
                let at = next.map(|(at, _)| at);
                state.wakes_at = at;
                drop(state);
                match at {
                    Some(at) => thread::park_timeout(at - now),
                    None => thread::park(),
                }
                continue;
            };
            state.wakes_at = Some(now);
            let batch = match task {
                Task::Write => state.batch(),
                _ => Vec::new(),
            };
            drop(state);
            match task {
                Task::Write => self.perform(writer, |writer| write(writer, batch)),
                Task::Look => self.perform(writer, |writer| writer.look().map(|()| Done::Looked)),
                Task::Fold => self.perform(writer, |writer| writer.fold().map(|()| Done::Folded)),
                Task::Reopen => {
                    self.perform(writer, |writer| writer.reopen().map(|()| Done::Reopened));
                }
                Task::Close => break self.close(*writer),
            }
        }
    }

    fn close(&self, writer: Writer) {
        // What was to be said about it has been.
        let _ = catch_unwind(AssertUnwindSafe(|| writer.close()));
        let closing = mem::replace(&mut lock(&self.state).closing, Closing::Done);
        let Closing::Asked(all) = closing else { return };
        for done in all {
            // The one who asked may have gone.
            let _ = done.send(());
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

    #[tokio::test]
    async fn after_a_panic_the_file_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let desk = &store.desk.0;
        let writer = loop {
            if let Some(writer) = lock(&desk.state).writer.take() {
                break writer;
            }
        };
        let mut waits = pin!(made_by(&store, Haste::Soon, 0));
        assert!(waits.as_mut().now_or_never().is_none());
        desk.perform(writer, |_| panic!("on purpose"));
        let refused = AssertUnwindSafe(waits).catch_unwind().await;
        assert!(refused.is_err(), "{refused:?}");
        while store.write(0, |_| Ok(())).await.is_err() {}
        assert!(store.status().is_ok());
        store.close().await;
    }
}
