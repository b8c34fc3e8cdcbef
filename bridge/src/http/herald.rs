//! Whom an event is for. One task reads the log for all who follow it and wakes those that it may have
//! something for, so that however many follow, a commit wakes one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::event::Event;
use crate::store::Store;
use crate::store::record::EventFilter;

/// Under load a commit comes every few microseconds; so many are looked at together.
const PACE: Duration = Duration::from_millis(5);
const PAGE: usize = 1024;
/// How many of the newest positions each listener's sort remembers; who is further behind reads all.
const REMEMBERED: usize = 32;

#[derive(Clone)]
pub(super) struct Herald(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    closing: CancellationToken,
    tasks: TaskTracker,
    board: Mutex<Board>,
}

#[derive(Default)]
struct Board {
    /// Somebody listens, so the log is read.
    is_read: bool,
    /// All up to here has been told.
    told: u64,
    news: HashMap<Topic, watch::Sender<News>>,
}

/// What narrows a filter most.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Topic {
    Task(String),
    Agent(String),
    Provider(String),
    All,
}

/// Where the newest events of a topic stand.
struct News {
    /// All later than this are in `positions`.
    after: u64,
    positions: VecDeque<u64>,
}

/// One who follows a topic.
pub(super) struct Listener {
    herald: Herald,
    topic: Topic,
    news: watch::Receiver<News>,
}

/// What there is for one who has seen the log up to some position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing, up to here.
    Nothing(u64),
    /// Something, later than `after` and not later than `told`.
    Something { after: u64, told: u64 },
    /// That is for the log to say.
    Unknown,
}

impl Herald {
    pub(super) fn new(store: Arc<dyn Store>, closing: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            store,
            closing,
            tasks: TaskTracker::new(),
            board: Mutex::default(),
        }))
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    pub(super) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    pub(super) fn listen(&self, filter: &EventFilter) -> Listener {
        let topic = Topic::of(filter);
        let mut board = self.0.board();
        if !board.is_read {
            board.is_read = true;
            board.told = self.0.store.log_bounds().issued;
            let telling = Telling(Arc::clone(&self.0)).run(board.told);
            self.0.tasks.spawn(telling);
        }
        let after = board.told;
        let news = board.news.entry(topic.clone()).or_insert_with(|| {
            watch::Sender::new(News {
                after,
                positions: VecDeque::new(),
            })
        });
        Listener {
            news: news.subscribe(),
            herald: self.clone(),
            topic,
        }
    }
}

impl Inner {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
    fn tell(&mut self, events: &[Event], told: u64) {
        for event in events {
            for topic in Topic::reached(event) {
                if let Some(news) = self.news.get(&topic) {
                    news.send_modify(|news| news.add(event.id.position));
                }
            }
        }
        self.told = told;
    }
}

impl Topic {
    fn of(filter: &EventFilter) -> Self {
        let EventFilter {
            provider,
            agent_id,
            task_id,
            ..
        } = filter;
        let task = task_id.clone().map(Topic::Task);
        task.or_else(|| agent_id.clone().map(Topic::Agent))
            .or_else(|| provider.clone().map(Topic::Provider))
            .unwrap_or(Topic::All)
    }

    fn reached(event: &Event) -> impl Iterator<Item = Self> {
        [
            event.task_id.clone().map(Topic::Task),
            event.agent_id.clone().map(Topic::Agent),
            event.provider.clone().map(Topic::Provider),
            Some(Topic::All),
        ]
        .into_iter()
        .flatten()
    }
}

impl News {
    fn add(&mut self, position: u64) {
        if self.positions.len() == REMEMBERED {
            self.after = self.positions.pop_front().unwrap_or(self.after);
        }
        self.positions.push_back(position);
    }
}

impl Listener {
    /// What is later than `position`. From now on [`Self::changed`] waits for more.
    pub(super) fn look(&mut self, position: u64) -> Place {
        let board = self.herald.0.board();
        let news = self.news.borrow_and_update();
        if position < news.after {
            return Place::Unknown;
        }
        match news.positions.iter().find(|found| **found > position) {
            Some(found) => Place::Something {
                after: found - 1,
                told: board.told,
            },
            None => Place::Nothing(position.max(board.told)),
        }
    }

    /// Until there is more than [`Self::look`] saw, or may be.
    pub(super) async fn changed(&mut self, filter: &EventFilter) {
        if self.news.changed().await.is_err() {
            // The log could not be read, which whoever asks for it now finds out.
            *self = self.herald.listen(filter);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut board = self.herald.0.board();
        let is_last = |news: &watch::Sender<News>| news.receiver_count() == 1;
        // When the telling has ended, what is there under this name is of the next one.
        let is_told = self.news.has_changed().is_ok();
        if is_told && board.news.get(&self.topic).is_some_and(is_last) {
            board.news.remove(&self.topic);
        }
    }
}

/// The task that reads; its end is the end of what all listen to.
struct Telling(Arc<Inner>);

impl Telling {
    async fn run(self, mut position: u64) {
        let Inner { store, closing, .. } = &*self.0;
        let mut changes = store.changes();
        loop {
            changes.borrow_and_update();
            let begun = Instant::now();
            let page = match store.events(&EventFilter::default(), position, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!("the event log could not be read: {error}");
                    return;
                }
            };
            position = page.scanned;
            {
                let mut board = self.0.board();
                board.tell(&page.events, position);
                if board.news.is_empty() {
                    return;
                }
            }
            if page.more {
                continue;
            }
            let woken = async {
                let changed = changes.changed().await;
                sleep_until(begun + PACE).await;
                changed
            };
            match closing.run_until_cancelled(woken).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => return,
            }
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let mut board = self.0.board();
        board.is_read = false;
        board.news.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::event;
    use super::*;
    use crate::store::memory::Memory;

    fn herald() -> Herald {
        Herald::new(Arc::new(Memory::new()), CancellationToken::new())
    }

    fn of(provider: &str) -> EventFilter {
        EventFilter {
            provider: Some(provider.to_owned()),
            ..EventFilter::default()
        }
    }

    fn something(after: u64, told: u64) -> Place {
        Place::Something { after, told }
    }

    async fn say(herald: &Herald, provider: &str, events: usize) {
        let events = (0..events).map(|_| event("e")).collect();
        let said = herald.store().append_unbound(provider, events).await;
        said.unwrap();
    }

    #[tokio::test]
    async fn each_hears_of_its_own_and_how_far_there_is_nothing() {
        let herald = herald();
        let mut all = herald.listen(&EventFilter::default());
        let mut of_a = herald.listen(&of("a"));
        assert_eq!(of_a.look(0), Place::Nothing(0));
        for (provider, for_a) in [
            ("a", something(0, 1)),
            ("b", Place::Nothing(2)),
            ("a", something(2, 3)),
        ] {
            let before = herald.store().log_bounds().issued;
            assert_eq!(all.look(before), Place::Nothing(before));
            say(&herald, provider, 1).await;
            all.changed(&EventFilter::default()).await;
            assert_eq!(all.look(before), something(before, before + 1));
            let seen = if before == 2 { 1 } else { before };
            assert_eq!(of_a.look(seen), for_a);
        }
    }

    #[tokio::test]
    async fn who_is_far_behind_or_comes_later_looks_for_itself() {
        let herald = herald();
        let mut early = herald.listen(&of("a"));
        let count = 3 * REMEMBERED as u64;
        for _ in 0..count {
            say(&herald, "a", 1).await;
        }
        while early.look(count - 1) != something(count - 1, count) {
            early.changed(&of("a")).await;
        }
        assert_eq!(early.look(1), Place::Unknown);
        let oldest = count - REMEMBERED as u64;
        assert_eq!(early.look(oldest), something(oldest, count));
        let mut late = herald.listen(&of("b"));
        assert_eq!(late.look(1), Place::Unknown);
        assert_eq!(late.look(count), Place::Nothing(count));
    }

    #[tokio::test]
    async fn nothing_is_read_for_nobody_and_again_for_the_next() {
        let herald = herald();
        drop(herald.listen(&of("a")));
        say(&herald, "a", 1).await;
        while herald.0.board().is_read {
            tokio::task::yield_now().await;
        }
        let mut next = herald.listen(&of("a"));
        say(&herald, "a", 1).await;
        next.changed(&of("a")).await;
        assert_eq!(next.look(1), something(1, 2));
    }

    #[tokio::test]
    async fn a_telling_that_broke_off_sends_its_listeners_to_the_log() {
        let herald = herald();
        let mut listener = herald.listen(&of("a"));
        say(&herald, "a", 1).await;
        while herald.0.board().told < 1 {
            tokio::task::yield_now().await;
        }
        herald.0.board().news.clear();
        assert_eq!(listener.look(1), Place::Nothing(1));
        listener.changed(&of("a")).await;
        assert_eq!(listener.look(0), Place::Unknown);
        assert_eq!(listener.look(1), Place::Nothing(1));
        say(&herald, "a", 1).await;
        listener.changed(&of("a")).await;
        assert_eq!(listener.look(1), something(1, 2));
    }
}
