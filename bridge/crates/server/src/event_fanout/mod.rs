//! Event fan-out: one task tails the log and notifies subscribers by topic, so a commit wakes one task, however
//! many streams are open.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use forge_base::event::Event;
use forge_store::Store;
use forge_store::record::EventFilter;

/// Minimum time between two reads of the log: under load a commit comes every few microseconds, and the commits
/// of this time are published together.
const PACE: Duration = Duration::from_millis(5);
/// Added to [`PACE`] for each subscriber woken: about the time that one takes, so that all have run before they are
/// woken again.
const PACE_EACH: Duration = Duration::from_micros(10);
const PAGE: usize = 1024;
/// Number of newest events that a topic keeps; a subscriber further behind reads the log.
const REMEMBERED: usize = 16;
/// Maximum event data kept with a topic, in bytes; larger events are read from the log.
const KEPT_BYTES: usize = 1024;

#[derive(Clone)]
pub(super) struct EventFanout(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    closing: CancellationToken,
    tasks: TaskTracker,
    topics: Mutex<Topics>,
}

#[derive(Default)]
struct Topics {
    /// True while the fan-out task runs, which it does while there are subscribers.
    is_read: bool,
    /// Position up to which all events are published.
    told: u64,
    listeners: u32,
    by_topic: HashMap<Topic, watch::Sender<TopicEvents>>,
}

/// Most selective field of a filter, with the event type if the filter has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Topic {
    of: TopicKey,
    kind: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TopicKey {
    Task(String),
    Agent(String),
    Provider(String),
    All,
}

/// Newest events of a topic.
struct TopicEvents {
    /// Position after which all events of the topic are in `newest`.
    after: u64,
    newest: VecDeque<(u64, Option<Arc<Event>>)>,
}

/// Subscription to one topic.
pub(super) struct Subscriber {
    fanout: EventFanout,
    topic: Topic,
    news: watch::Receiver<TopicEvents>,
}

/// Events pending for a subscriber that has seen the log up to some position.
#[derive(Debug)]
pub(super) enum Pending {
    /// All events of the topic up to this position.
    Told(Vec<Arc<Event>>, u64),
    /// The log has to be read from this position; up to it there is nothing for the topic.
    After(u64),
}

impl EventFanout {
    pub(super) fn new(store: Arc<dyn Store>, closing: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            store,
            closing,
            tasks: TaskTracker::new(),
            topics: Mutex::default(),
        }))
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    pub(super) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    pub(super) fn subscribe(&self, filter: &EventFilter) -> Subscriber {
        let topic = Topic::of(filter);
        let mut board = self.0.topics();
        if !board.is_read {
            board.is_read = true;
            board.told = self.0.store.log_bounds().issued;
            let telling = FanoutTask(Arc::clone(&self.0)).run(board.told);
            self.0.tasks.spawn(telling);
        }
        board.listeners += 1;
        let after = board.told;
        let news = board.by_topic.entry(topic.clone()).or_insert_with(|| {
            watch::Sender::new(TopicEvents {
                after,
                newest: VecDeque::new(),
            })
        });
        Subscriber {
            news: news.subscribe(),
            fanout: self.clone(),
            topic,
        }
    }
}

impl Inner {
    fn topics(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Topics {
    /// Publishes events to their topics; returns the number of subscribers woken.
    fn publish(&mut self, events: &[Arc<Event>], told: u64) -> u32 {
        let mut woken = 0;
        for event in events {
            let position = event.id.position;
            let kept = Some(event).filter(|event| event.data_bytes() <= KEPT_BYTES);
            for topic in Topic::reached(event) {
                if let Some(news) = self.by_topic.get(&topic) {
                    news.send_modify(|news| news.add(position, kept.cloned()));
                    woken += news.receiver_count();
                }
            }
        }
        self.told = told;
        // A subscriber notified of several events at once is woken once.
        self.listeners.min(u32::try_from(woken).unwrap_or(u32::MAX))
    }
}

impl Topic {
    fn of(filter: &EventFilter) -> Self {
        let task = filter.task_id.clone().map(TopicKey::Task);
        let of = task
            .or_else(|| filter.agent_id.clone().map(TopicKey::Agent))
            .or_else(|| filter.provider.clone().map(TopicKey::Provider));
        Self {
            of: of.unwrap_or(TopicKey::All),
            kind: filter.kind.clone(),
        }
    }

    fn reached(event: &Event) -> impl Iterator<Item = Self> {
        let of = [
            event.task_id.clone().map(TopicKey::Task),
            event.agent_id.clone().map(TopicKey::Agent),
            event.provider.clone().map(TopicKey::Provider),
            Some(TopicKey::All),
        ];
        of.into_iter().flatten().flat_map(|of| {
            let kinds = [None, Some(event.kind.clone())];
            kinds.map(|kind| Self {
                of: of.clone(),
                kind,
            })
        })
    }
}

impl TopicEvents {
    fn add(&mut self, position: u64, event: Option<Arc<Event>>) {
        if self.newest.len() == REMEMBERED {
            self.after = self.newest.pop_front().map_or(self.after, |(at, _)| at);
        }
        self.newest.push_back((position, event));
    }
}

impl Subscriber {
    /// Events after `position`. [`Self::changed`] then waits for later ones.
    pub(super) fn since(&mut self, position: u64) -> Pending {
        let board = self.fanout.0.topics();
        let news = self.news.borrow_and_update();
        if position < news.after {
            return Pending::After(position);
        }
        let mut later = news.newest.iter().filter(|(at, _)| *at > position);
        let kept = later.clone().map(|(_, event)| event.clone());
        match (kept.collect::<Option<Vec<_>>>(), later.next()) {
            (None, Some((first, _))) => Pending::After(first - 1),
            (events, _) => Pending::Told(events.unwrap_or_default(), position.max(board.told)),
        }
    }

    /// Waits until there can be more than [`Self::since`] returned. Returns false when the listener closes.
    pub(super) async fn changed(&mut self, filter: &EventFilter) -> bool {
        if self.news.changed().await.is_err() {
            if self.fanout.0.closing.is_cancelled() {
                return false;
            }
            // The fan-out task could not read the log; this subscriber reads it next and reports the error.
            *self = self.fanout.subscribe(filter);
        }
        true
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut board = self.fanout.0.topics();
        board.listeners -= 1;
        let is_last = |news: &watch::Sender<TopicEvents>| news.receiver_count() == 1;
        // If the fan-out task has ended, the entry of this name belongs to its successor.
        let is_told = self.news.has_changed().is_ok();
        if is_told && board.by_topic.get(&self.topic).is_some_and(is_last) {
            board.by_topic.remove(&self.topic);
        }
    }
}

/// Task that reads the log; all subscriptions end with it.
struct FanoutTask(Arc<Inner>);

impl FanoutTask {
    async fn run(self, mut position: u64) {
        let Inner { store, closing, .. } = &*self.0;
        let mut changes = store.changes();
        let mut woken = 0;
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
                let mut board = self.0.topics();
                woken = woken.max(board.publish(&page.events, position));
                if board.listeners == 0 {
                    return;
                }
            }
            if page.more {
                continue;
            }
            let next = begun + PACE + PACE_EACH * mem::take(&mut woken);
            let news = async {
                let changed = changes.changed().await;
                sleep_until(next).await;
                changed
            };
            match closing.run_until_cancelled(news).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => return,
            }
        }
    }
}

impl Drop for FanoutTask {
    fn drop(&mut self) {
        let mut board = self.0.topics();
        board.is_read = false;
        board.by_topic.clear();
    }
}

#[cfg(test)]
mod tests;
