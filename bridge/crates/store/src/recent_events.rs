//! The newest events in memory, for readers that follow the log: each event is read from the file once, however many
//! readers there are. Filled on demand and bounded; a reader that is further behind reads the file.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;

use forge_base::event::Event;

use crate::Result;
use crate::record::{EventFilter, EventPage};

const EVENTS: usize = 4096;
const BYTES: usize = 4 << 20;

/// A page ends after this many bytes of events.
pub const PAGE_BYTES: usize = 1 << 20;

/// A reader this far behind the newest event has the events between read into memory.
const REACH: u64 = 1024;

/// Events read from the store at a time for all readers that follow the log.
pub const FILL_EVENTS: usize = 256;

/// Reading of events from the store itself.
#[async_trait]
pub trait StoredEvents: Sync {
    /// A page of the events after a position, of all of them without a filter.
    async fn stored_events(
        &self,
        filter: Option<&EventFilter>,
        after: u64,
        limit: usize,
    ) -> Result<EventPage>;
}

#[derive(Default)]
pub struct RecentEvents {
    held: RwLock<Held>,
    /// Held by the caller that reads the file for all.
    filling: AsyncMutex<()>,
}

#[derive(Default)]
struct Held {
    /// All events after this position, up to `last`, are in `events`.
    after: u64,
    last: u64,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl RecentEvents {
    /// A page of the events up to `issued`, from memory if the reader follows the log, otherwise from the store.
    pub async fn events(
        &self,
        store: &impl StoredEvents,
        issued: u64,
        filter: &EventFilter,
        after: u64,
        limit: usize,
    ) -> Result<EventPage> {
        // One dispatch or run has an index of its own, and is not worth holding the events of all others in memory.
        if !filter.has_owner() {
            let mut page = self.page(filter, after, limit, issued);
            if page.is_none() && issued.saturating_sub(after) <= REACH {
                let _one = self.filling.lock().await;
                while let Some(from) = self.missing(after, issued) {
                    let page = store.stored_events(None, from, FILL_EVENTS).await?;
                    self.extend(from, issued, page);
                }
                page = self.page(filter, after, limit, issued);
            }
            if let Some(page) = page {
                return Ok(page);
            }
        }
        store.stored_events(Some(filter), after, limit).await
    }

    /// Page as the file has it, if all events up to `issued` are held.
    fn page(
        &self,
        filter: &EventFilter,
        after: u64,
        limit: usize,
        issued: u64,
    ) -> Option<EventPage> {
        let held = self.read();
        if after < held.after || held.last < issued {
            return None;
        }
        let mut page = EventPage {
            events: Vec::new(),
            scanned: after,
            more: false,
        };
        let begin = held
            .events
            .partition_point(|event| event.id.position <= after);
        let mut bytes = 0;
        for (looked_at, event) in held.events.range(begin..).enumerate() {
            if looked_at == limit || bytes > PAGE_BYTES {
                page.more = true;
                return Some(page);
            }
            page.scanned = event.id.position;
            if filter.matches(event) {
                bytes += event.data_bytes();
                page.events.push(Arc::clone(event));
            }
        }
        page.scanned = after.max(held.last);
        Some(page)
    }

    /// Position after which the file must be read before a reader at `after` finds all events up to `issued`. Held
    /// events are dropped when they are too old to be continued.
    fn missing(&self, after: u64, issued: u64) -> Option<u64> {
        let mut held = self.write();
        if held.last >= issued {
            return None;
        }
        if held.last + REACH < issued {
            *held = Held {
                after,
                last: after,
                ..Held::default()
            };
        }
        Some(held.last)
    }

    /// Adds the events of the file after `from`, unless the memory was cleared meanwhile. Positions that had been
    /// `issued` when the file was read and are not in it were removed.
    fn extend(&self, from: u64, issued: u64, page: EventPage) {
        let mut held = self.write();
        if held.last != from {
            return;
        }
        held.bytes += page.events.iter().map(|event| size(event)).sum::<usize>();
        held.events.extend(page.events);
        held.last = match page.more {
            true => page.scanned,
            false => page.scanned.max(issued),
        };
        while held.events.len() > EVENTS || held.bytes > BYTES {
            let Some(oldest) = held.events.pop_front() else {
                break;
            };
            held.bytes -= size(&oldest);
            held.after = oldest.id.position;
        }
    }

    /// Drops all events, after some of the file were removed.
    pub fn clear(&self) {
        *self.write() = Held::default();
    }

    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Estimated memory of an event that has been serialised for a reader.
fn size(event: &Event) -> usize {
    1024 + 2 * event.data_bytes()
}
