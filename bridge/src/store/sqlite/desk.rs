//! Where changes wait to be written, and whose turn it is. What can be decided ahead of the tables is promised, and
//! made to the tables a moment later by a thread that is there for them; a crowd goes to the tables at once. While little
//! is written and the disk is quick, whoever comes promises on his own thread, and with him what waits: no other thread
//! has to be woken, and to wake him. Else a thread that is there for that takes all that came meanwhile.

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::sync::oneshot;

use super::ahead::Ahead;
use super::op::{Op, panicked};
use super::shared::lock;
use super::turns::{Closing, Done, HANDS, Hand, State, Task};
use super::writer::{Unwritable, Writer};
use crate::crash;

/// Hands in changes. When it goes, what waits is written and the store is closed.
pub(super) struct Desk(Arc<Inner>);

/// The store is closed.
#[derive(Debug)]
pub(super) struct Closed;

struct Inner {
    state: Mutex<State>,
    /// Each hand's own.
    threads: [OnceLock<Thread>; 2],
}

impl Desk {
    pub(super) fn open(ahead: Ahead, writer: Writer) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            state: Mutex::new(State::new(ahead, writer)),
            threads: [OnceLock::new(), OnceLock::new()],
        });
        let desk = Self(Arc::clone(&inner));
        let promises = Arc::clone(&inner);
        thread::Builder::new()
            .name("store-journal".to_owned())
            .spawn(move || promises.run(Hand::Promises))?;
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || inner.run(Hand::Tables))?;
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
        let may_write = state.is_calm_for(&op);
        state.add(op);
        match state.ahead.take_if(|_| may_write) {
            Some(ahead) if state.goes_ahead() => {
                let batch = state.batch();
                drop(state);
                self.0.promise(ahead, batch);
            }
            Some(ahead) => {
                let batch = state.batch();
                self.0.write_or_wait(state, ahead, batch);
            }
            None => self.0.call_threads(state),
        }
        Ok(())
    }

    /// Somebody waits for what is promised.
    pub(super) fn want_made(&self) {
        self.0.call_threads(lock(&self.0.state));
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
        self.0.call_threads(state);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.ask_to_close(None);
    }
}

/// What of a batch is promised, and what is left for the tables to decide.
fn promise(ahead: &mut Ahead, batch: Vec<Op>) -> Result<(Vec<Op>, Vec<Op>), Unwritable> {
    let mut promised = batch;
    let decided = ahead.together(|ahead| {
        let undecided = promised.iter_mut().position(|op| !op.promise(ahead));
        undecided.unwrap_or(promised.len())
    });
    let left = promised.split_off(decided);
    if !promised.is_empty() {
        if let Err(why) = ahead.sync() {
            for op in promised.into_iter().chain(left) {
                op.refuse(&why.reason);
            }
            return Err(why);
        }
        for op in &mut promised {
            op.answer();
        }
        crash::point("journal.answered");
    }
    Ok((promised, left))
}

impl Inner {
    /// Without waking who would do nothing yet.
    fn call_threads(&self, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let called = HANDS.map(|hand| {
            let wakes_at = state.wakes_at[hand as usize];
            let is_due = |at: Instant| wakes_at.is_none_or(|wakes| at < wakes);
            let called = state.next(hand, now).is_some_and(|(at, _)| is_due(at));
            if called {
                state.wakes_at[hand as usize] = Some(now);
            }
            called
        });
        drop(state);
        for (thread, called) in self.threads.iter().zip(called) {
            // One that has not begun looks before it waits.
            if called && let Some(thread) = thread.get() {
                thread.unpark();
            }
        }
    }

    /// What cannot be decided ahead goes to the tables at once, if nobody else is at them.
    fn promise(&self, mut ahead: Box<Ahead>, batch: Vec<Op>) {
        let (ops, begun) = (batch.len(), Instant::now());
        let done = catch_unwind(AssertUnwindSafe(|| promise(&mut ahead, batch)));
        let done = done.unwrap_or_else(|_| Err(ahead.unwritable(&panicked())));
        let mut state = lock(&self.state);
        match done {
            Ok((promised, left)) if state.failure.is_none() => {
                state.add_promised(promised);
                if !left.is_empty() {
                    return self.write_or_wait(state, ahead, left);
                }
                state.ahead = Some(ahead);
                self.noted(state, Ok(Done::Written { ops, begun }));
            }
            // What was promised is in the journal.
            Ok((_, left)) => {
                let reason = state
                    .failure
                    .as_ref()
                    .map(|failure| failure.why.reason.clone());
                state.ahead = Some(ahead);
                self.call_threads(state);
                for op in left {
                    op.refuse(reason.as_deref().unwrap_or_default());
                }
            }
            Err(why) => {
                state.ahead = Some(ahead);
                self.noted(state, Err(why));
            }
        }
    }

    fn write_or_wait(&self, mut state: MutexGuard<'_, State>, ahead: Box<Ahead>, batch: Vec<Op>) {
        match state.writer.take_if(|writer| !writer.is_to_look()) {
            Some(writer) => {
                state.by_tables &= !state.waiting.is_empty();
                let promised = state.take_promised();
                drop(state);
                self.write(ahead, writer, promised, batch);
            }
            None => {
                for op in batch.into_iter().rev() {
                    state.put_back(op);
                }
                state.by_tables = true;
                state.shared.want();
                state.ahead = Some(ahead);
                self.call_threads(state);
            }
        }
    }

    fn write(&self, ahead: Box<Ahead>, writer: Box<Writer>, mut promised: Vec<Op>, batch: Vec<Op>) {
        let (ops, begun) = (batch.len(), Instant::now());
        promised.extend(batch);
        self.perform_both(ahead, writer, |ahead, writer| {
            writer.commit(ahead, promised)?;
            Ok(Done::Written { ops, begun })
        });
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
        self.noted(state, done);
    }

    /// The same, while nothing is promised.
    fn perform_both(
        &self,
        mut ahead: Box<Ahead>,
        mut writer: Box<Writer>,
        task: impl FnOnce(&mut Ahead, &mut Writer) -> Result<Done, Unwritable>,
    ) {
        let done = catch_unwind(AssertUnwindSafe(|| task(&mut ahead, &mut writer)));
        let done = done.unwrap_or_else(|_| Err(writer.unwritable(&panicked())));
        let mut state = lock(&self.state);
        (state.ahead, state.writer) = (Some(ahead), Some(writer));
        self.noted(state, done);
    }

    fn noted(&self, mut state: MutexGuard<'_, State>, done: Result<Done, Unwritable>) {
        let refused = state.note(done);
        self.call_threads(state);
        let Some((waiting, reason)) = refused else {
            return;
        };
        for op in waiting {
            op.refuse(&reason);
        }
    }

    fn run(&self, hand: Hand) {
        let _ = self.threads[hand as usize].set(thread::current());
        loop {
            let mut state = lock(&self.state);
            let now = Instant::now();
            if matches!(hand, Hand::Promises) && matches!(state.closing, Closing::Done) {
                break;
            }
            let next = state.next(hand, now);
            let Some((_, task)) = next.filter(|(at, _)| *at <= now) else {
                let at = next.map(|(at, _)| at);
                state.wakes_at[hand as usize] = at;
                drop(state);
                match at {
                    Some(at) => thread::park_timeout(at - now),
                    None => thread::park(),
                }
                continue;
            };
            state.wakes_at[hand as usize] = Some(now);
            if self.take_on(state, task).is_none() {
                break;
            }
        }
    }

    /// `None` is the end. Those who are asked for are there.
    fn take_on(&self, mut state: MutexGuard<'_, State>, task: Task) -> Option<()> {
        match task {
            Task::Promise => {
                let ahead = state.ahead.take()?;
                let batch = state.batch();
                drop(state);
                self.promise(ahead, batch);
            }
            Task::Write => {
                let (ahead, writer) = (state.ahead.take()?, state.writer.take()?);
                let promised = state.take_promised();
                let batch = state.batch();
                state.by_tables &= !state.waiting.is_empty();
                drop(state);
                self.write(ahead, writer, promised, batch);
            }
            Task::Make => {
                let writer = state.writer.take()?;
                let promised = state.take_promised();
                drop(state);
                self.perform(writer, |writer| writer.make(promised).map(|()| Done::Made));
            }
            Task::Look => {
                let writer = state.writer.take()?;
                drop(state);
                self.perform(writer, |writer| writer.look().map(|()| Done::Looked));
            }
            Task::Fold => {
                let writer = state.writer.take()?;
                drop(state);
                self.perform(writer, |writer| writer.fold().map(|()| Done::Folded));
            }
            Task::Reopen => {
                let (ahead, writer) = (state.ahead.take()?, state.writer.take()?);
                // It is in the journal.
                state.promised.clear();
                drop(state);
                self.perform_both(ahead, writer, |ahead, writer| {
                    writer.reopen(ahead).map(|()| Done::Reopened)
                });
            }
            Task::Close => {
                let (ahead, writer) = (state.ahead.take()?, state.writer.take()?);
                drop(state);
                drop(ahead);
                self.close(*writer);
                return None;
            }
        }
        Some(())
    }

    fn close(&self, writer: Writer) {
        // What was to be said about it has been.
        let _ = catch_unwind(AssertUnwindSafe(|| writer.close()));
        let closing = mem::replace(&mut lock(&self.state).closing, Closing::Done);
        if let Some(thread) = self.threads[Hand::Promises as usize].get() {
            thread.unpark();
        }
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
    use super::super::op::Haste;
    use super::super::tests::open;
    use super::super::turns::LIGHT_BYTES;
    use super::*;
    use crate::store::Store as _;

    /// A change that tells on which thread it was made.
    async fn made_by(store: &Sqlite, haste: Haste, bytes: usize) -> String {
        let name = || thread::current().name().unwrap_or_default().to_owned();
        store
            .commit(haste, bytes, move |_| Ok(name()), |_| None)
            .await
            .unwrap()
    }

    fn is_ours(thread: &str) -> bool {
        ["store", "store-journal"].contains(&thread)
    }

    #[tokio::test]
    async fn who_comes_when_it_is_calm_writes_himself() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        // Not when the disk is slow at that moment.
        while is_ours(&made_by(&store, Haste::Now, 0).await) {}
        let heavy = made_by(&store, Haste::Now, LIGHT_BYTES).await;
        assert!(is_ours(&heavy), "{heavy}");
        let rides = made_by(&store, Haste::Soon, 0).await;
        assert!(is_ours(&rides), "{rides}");
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
        assert!(is_ours(&second.await));
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
