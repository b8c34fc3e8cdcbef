//! Readers of the event log. A reader pulls one page at a time and holds nothing that others wait for; a wake-up is
//! only a hint, the log is authoritative.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::auth::StreamAccess;
use super::event_fanout::{EventFanout, Pending, Subscriber};
use forge_base::event::{Cursor, Event, kind};
use forge_base::id::{DispatchId, RunId};
use forge_runs::event::RUN_COMPLETED;
use forge_store::record::{DeliveryState, DispatchRecord, DispatchState, EventFilter, EventPage};
use forge_store::{self as store, Store};

pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Maximum events of one step; bounds the memory of a slow reader.
const PAGE: usize = 128;
/// Maximum event data of one step, in bytes; a single larger event is still returned.
const PAGE_BYTES: usize = 64 * 1024;
/// Maximum time between two reads of a reader that is repeatedly woken for nothing.
const MOST_PATIENCE: Duration = Duration::from_millis(80);
/// Minimum time for searching a page whose filter matches little, even if the caller does not wait.
const LEAST_SEARCH: Duration = Duration::from_secs(1);
const LEAST_PATIENCE: Duration = Duration::from_millis(5);

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// No end: the stream of all dispatches.
    Forever,
    /// Result of this dispatch.
    Finished(DispatchId),
    /// Callback of this dispatch delivered or given up.
    Delivered(DispatchId),
    /// Last event of this run.
    RunEnded(RunId),
}

#[derive(Debug)]
pub(super) enum Step {
    Events(Vec<Arc<Event>>),
    /// No event for this reader up to the cursor.
    Idle(Cursor),
    End,
}

/// Source of wake-ups for a reader.
enum Hint {
    /// Every commit; used for one dispatch or run, whose events have an index of their own.
    Commits {
        changes: watch::Receiver<u64>,
        last_read: Instant,
        patience: Duration,
    },
    Topic(Subscriber),
}

/// Reader of the log with a filter and an end.
pub(super) struct Follow {
    store: Arc<dyn Store>,
    filter: EventFilter,
    until: Until,
    position: u64,
    has_read: bool,
    over: bool,
    hint: Hint,
    closing: CancellationToken,
    pub(super) access: StreamAccess,
    /// True once the next heartbeat is due early, because the reader's access might have ended.
    recheck: bool,
    /// Time of the next heartbeat; immediately if there is nothing to read at first.
    beat: Pin<Box<Sleep>>,
    /// Events per read; below [`PAGE`] while events are large, so that few are read twice.
    rows: usize,
}

impl Follow {
    /// Creates a reader of the events strictly after `position`.
    pub(super) fn new(
        fanout: &EventFanout,
        filter: EventFilter,
        until: Until,
        position: u64,
        access: StreamAccess,
    ) -> Self {
        let store = Arc::clone(fanout.store());
        let now = Instant::now();
        let hint = match filter.has_owner() {
            true => Hint::Commits {
                changes: store.changes(),
                last_read: now,
                patience: LEAST_PATIENCE,
            },
            false => Hint::Topic(fanout.subscribe(&filter)),
        };
        Self {
            hint,
            store,
            filter,
            until,
            position,
            has_read: false,
            over: false,
            closing: fanout.closing().clone(),
            access,
            recheck: false,
            beat: Box::pin(sleep_until(now)),
            rows: PAGE,
        }
    }

    pub(super) fn cursor(&self) -> Cursor {
        self.store.log().cursor(self.position)
    }

    /// Waits for the next events, heartbeat or end.
    pub(super) async fn next(&mut self) -> store::Result<Step> {
        while !self.over {
            let page = self.read(self.rows).await?;
            if !page.events.is_empty() {
                if let Hint::Commits { patience, .. } = &mut self.hint {
                    *patience = LEAST_PATIENCE;
                }
                let events = self.fitting(page.events);
                return Ok(self.step(events));
            }
            if std::mem::take(&mut self.recheck) || Instant::now() >= self.beat.deadline() {
                self.over = self.is_over().await?;
                return Ok(self.step(Vec::new()));
            }
            if !page.more {
                self.wait().await;
            }
        }
        Ok(Step::End)
    }

    /// Returns up to `limit` events as soon as there is one, or none at `deadline`.
    pub(super) async fn page(
        &mut self,
        limit: usize,
        deadline: Instant,
    ) -> store::Result<Vec<Arc<Event>>> {
        let enough = deadline.max(Instant::now() + LEAST_SEARCH);
        self.beat.as_mut().reset(deadline);
        loop {
            let page = self.read(limit).await?;
            let now = Instant::now();
            let late = now >= if page.more { enough } else { deadline };
            if !page.events.is_empty() || self.over || late {
                return Ok(page.events);
            }
            if !page.more {
                self.wait().await;
            }
        }
    }

    /// True if no further event can follow the current position.
    pub(super) async fn is_over(&self) -> store::Result<bool> {
        let (id, until_delivered) = match self.until {
            Until::Forever => return Ok(false),
            Until::Finished(id) => (id, false),
            Until::Delivered(id) => (id, true),
            Until::RunEnded(id) => {
                let run = self.store.run(id).await?;
                return Ok(run.is_none_or(|run| {
                    run.status.is_ended() && self.position >= run.last_position
                }));
            }
        };
        let Some(dispatch) = self.store.dispatch(id).await? else {
            return Ok(true);
        };
        let Some(last) = self.last_of_execution(&dispatch) else {
            return Ok(false);
        };
        if self.position < last {
            return Ok(false);
        }
        if !until_delivered {
            return Ok(true);
        }
        let deliveries = self.store.deliveries_of(id).await?;
        let settled = deliveries
            .iter()
            .all(|delivery| delivery.status != DeliveryState::Pending);
        let rest = self.store.events(&self.filter, self.position, 1).await?;
        Ok(settled && rest.events.is_empty() && !rest.more)
    }

    /// Position of the last event of a finished execution.
    fn last_of_execution(&self, dispatch: &DispatchRecord) -> Option<u64> {
        #[derive(serde::Deserialize)]
        struct Ended {
            events: Totals,
        }
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Totals {
            last_cursor: String,
        }
        match (&dispatch.state, &dispatch.result) {
            (DispatchState::Finished { .. }, Some(result)) => {
                let ended: Ended = serde_json::from_str(result.get()).ok()?;
                self.store.log().position(&ended.events.last_cursor).ok()
            }
            (
                DispatchState::Finished { .. }
                | DispatchState::Queued
                | DispatchState::Running { .. },
                _,
            ) => None,
        }
    }

    async fn read(&mut self, limit: usize) -> store::Result<EventPage> {
        let mut before = self.position;
        match &mut self.hint {
            Hint::Commits {
                changes, last_read, ..
            } => {
                changes.borrow_and_update();
                *last_read = Instant::now();
            }
            Hint::Topic(subscriber) => {
                let place = subscriber.since(before);
                // The first read always uses the log: the fan-out might not have published the latest commit yet.
                if std::mem::replace(&mut self.has_read, true) {
                    match place {
                        Pending::Told(events, told) => {
                            return Ok(self.take_told(&events, told, limit));
                        }
                        Pending::After(position) => before = position,
                    }
                }
            }
        }
        let mut page = self.store.events(&self.filter, before, limit).await?;
        // Retention overtook this reader: end the stream, so that its next cursor reveals the gap.
        if self.until == Until::Forever && self.store.log_bounds().removed > before {
            self.over = true;
            page.events.clear();
            return Ok(page);
        }
        self.position = page.scanned;
        let mut events = page.events.iter();
        if let Some(end) = events.rposition(|event| self.ends_with(event))
            && !self.goes_on(page.events[end].id.position).await?
        {
            page.events.truncate(end + 1);
            self.position = page.events[end].id.position;
            self.over = true;
        }
        Ok(page)
    }

    /// True if a run was reopened after it had ended with the event at this position.
    async fn goes_on(&self, position: u64) -> store::Result<bool> {
        let Until::RunEnded(id) = self.until else {
            return Ok(false);
        };
        let run = self.store.run(id).await?;
        Ok(run.is_some_and(|run| run.last_position > position))
    }

    fn take_told(&mut self, events: &[Arc<Event>], told: u64, limit: usize) -> EventPage {
        let mut wanted = events.iter().filter(|event| self.filter.matches(event));
        let events: Vec<_> = wanted.by_ref().take(limit).cloned().collect();
        let more = wanted.next().is_some();
        self.position = match events.last() {
            Some(last) if more => last.id.position,
            Some(_) | None => told,
        };
        EventPage {
            events,
            scanned: self.position,
            more,
        }
    }

    /// Keeps as many events as fit into one step; the others are read again.
    fn fitting(&mut self, mut events: Vec<Arc<Event>>) -> Vec<Arc<Event>> {
        let mut bytes = 0;
        let kept = events.iter().take_while(|event| {
            let before = bytes;
            bytes += event.data_bytes();
            before == 0 || bytes <= PAGE_BYTES
        });
        let kept = kept.count();
        if kept == events.len() {
            self.rows = (self.rows * 2).min(PAGE);
            return events;
        }
        events.truncate(kept);
        self.position = events[kept - 1].id.position;
        self.over = false;
        self.rows = kept;
        events
    }

    fn ends_with(&self, event: &Event) -> bool {
        match self.until {
            Until::Forever => false,
            Until::Finished(_) => kind::is_terminal(&event.kind),
            Until::Delivered(_) => {
                event.kind == kind::CALLBACK_DELIVERED || event.kind == kind::CALLBACK_DEAD
            }
            Until::RunEnded(_) => event.kind == RUN_COMPLETED,
        }
    }

    fn step(&mut self, events: Vec<Arc<Event>>) -> Step {
        self.beat.as_mut().reset(Instant::now() + HEARTBEAT);
        if events.is_empty() {
            Step::Idle(self.cursor())
        } else {
            Step::Events(events)
        }
    }

    /// Waits until there can be new events, a heartbeat is due, the tokens are replaced, or the listener closes.
    async fn wait(&mut self) {
        tokio::select! {
            biased;
            open = self.hint.changed(&self.filter, &self.closing) => self.over |= !open,
            () = self.beat.as_mut() => {}
            () = self.access.outdated() => self.recheck = true,
        }
    }
}

impl Hint {
    /// Waits for a wake-up. Returns false if there will be no more.
    async fn changed(&mut self, filter: &EventFilter, closing: &CancellationToken) -> bool {
        let (changes, last_read, patience) = match self {
            Hint::Topic(subscriber) => return subscriber.changed(filter).await,
            Hint::Commits {
                changes,
                last_read,
                patience,
            } => (changes, last_read, patience),
        };
        let Some(Ok(())) = closing.run_until_cancelled(changes.changed()).await else {
            return false;
        };
        // Under load a commit comes every few microseconds, and most are not for this reader.
        sleep_until(*last_read + *patience).await;
        *patience = (*patience * 2).min(MOST_PATIENCE);
        true
    }
}

/// Returns the dispatch once it is finished, after `wait`, or when the listener closes.
pub(super) async fn until_finished(
    store: &dyn Store,
    mut dispatch: DispatchRecord,
    wait: Duration,
    closing: &CancellationToken,
) -> store::Result<DispatchRecord> {
    let mut changes = store.changes();
    let deadline = Instant::now() + wait;
    while !matches!(dispatch.state, DispatchState::Finished { .. }) && Instant::now() < deadline {
        changes.borrow_and_update();
        match store.dispatch(dispatch.id).await? {
            Some(now) => dispatch = now,
            None => break,
        }
        if matches!(dispatch.state, DispatchState::Finished { .. }) {
            break;
        }
        tokio::select! {
            () = closing.cancelled() => break,
            () = sleep_until(deadline) => {}
            changed = changes.changed() => match changed {
                Ok(()) => sleep(LEAST_PATIENCE).await,
                Err(_) => break,
            },
        }
    }
    Ok(dispatch)
}
