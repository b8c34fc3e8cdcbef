//! Event log. The events of one write are one row with the positions `first..=last`, which are assigned in the order of
//! the commits.

use async_trait::async_trait;
use tokio::sync::watch;

use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::event_batch;
use forge_store::record::{EventFilter, EventPage, LogBounds};
use forge_store::roles::EventLog;

use super::rows::EventRow;
use crate::batch::{EventsPlace, Needs, Rows};
use crate::open::BOUNDS;
use crate::{Columns, Postgres};

#[async_trait]
impl EventLog for Postgres {
    fn log(&self) -> &LogName {
        &self.published.identity.log
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.published.newest.subscribe()
    }

    fn log_bounds(&self) -> LogBounds {
        self.published.totals().bounds
    }

    async fn stored_log_bounds(&self) -> Result<LogBounds> {
        let read = |row: &mut Columns<'_>| Ok((row.next()?, row.next()?));
        if let Some((issued, removed)) = self.one(BOUNDS, Vec::new(), read).await? {
            self.published.observe(issued, removed);
        }
        Ok(self.log_bounds())
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage> {
        let issued = *self.published.newest.borrow();
        self.recent_events
            .events(self, issued, filter, after, limit)
            .await
    }

    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>> {
        self.newest_event(id).await
    }

    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()> {
        let provider = provider.to_owned();
        let bytes = event_batch::size(&events);
        let change = move |rows: &mut Rows| {
            rows.add_unbound(&provider, &events);
            Ok(())
        };
        self.write(bytes, Needs::default(), change).await
    }
}

/// Value of `event.provider` for events of no adapter.
pub(super) const NO_PROVIDER: &str = "";

impl Rows {
    /// Appends events of a dispatch, which is here.
    pub(super) fn append(&mut self, id: DispatchId, events: &[NewEvent]) -> Option<EventsPlace> {
        let count = events.len() as u64;
        let dispatch = self.dispatches.get_mut(&id).filter(|_| count > 0)?;
        dispatch.events += count;
        let row = EventRow {
            before: 0,
            count,
            dispatch: Some(id),
            run: None,
            seq: dispatch.events - count + 1,
            attempt: dispatch.attempts,
            provider: dispatch.provider.clone(),
            unbound_at: None,
            body: event_batch::of_events(events),
        };
        Some(self.add_events(row))
    }

    /// Appends events that belong to no dispatch and no run.
    pub(crate) fn add_unbound(&mut self, provider: &str, events: &[NewEvent]) {
        let Some(newest) = events.iter().map(|event| event.timestamp).max() else {
            return;
        };
        self.add_events(EventRow {
            before: 0,
            count: events.len() as u64,
            dispatch: None,
            run: None,
            seq: 0,
            attempt: 0,
            provider: provider.to_owned(),
            unbound_at: Some(newest),
            body: event_batch::of_events(events),
        });
    }
}
