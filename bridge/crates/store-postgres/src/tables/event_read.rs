//! Reading of the event log: its rows in the order of their positions, cut into pages.

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::event::{Event, LogName, Written};
use forge_base::id::{DispatchId, RunId};
use forge_store::event_batch::{EventBatch, GrowingPage};
use forge_store::recent_events::StoredEvents;
use forge_store::record::{EventFilter, EventPage};
use forge_store::{Error, Result};

use super::events::NO_PROVIDER;
use crate::Postgres;
use crate::rows::statement::{Columns, params};

/// Rows that one statement reads at most. They can be large, and a page ends by its bytes.
const ROWS: usize = 64;

/// Columns of `batch`, of `event AS e` and the dispatch or run of each row. Rows of a run that was removed are left out.
macro_rules! select_events {
    ($rest:literal) => {
        concat!(
            "SELECT e.first, e.last, e.seq, e.attempt, e.provider, e.body, b.id, b.task_id, b.agent_id, b.run_id,
               coalesce(b.trace_id, r.trace_id), r.id
             FROM event e LEFT JOIN body b ON b.id = e.dispatch LEFT JOIN run r ON r.id = e.run
             WHERE (e.run IS NULL OR r.id IS NOT NULL) AND ",
            $rest
        )
    };
}

const OF_ALL: &str = select_events!(
    "e.first >= coalesce((SELECT first FROM event WHERE first <= $1 ORDER BY first DESC LIMIT 1), 0)
     AND e.last >= $1 ORDER BY e.first LIMIT $2"
);
const OF_DISPATCH: &str = select_events!(
    "e.dispatch = $3 AND e.first >=
       coalesce((SELECT first FROM event WHERE dispatch = $3 AND first <= $1 ORDER BY first DESC LIMIT 1), 0)
     AND e.last >= $1 ORDER BY e.first LIMIT $2"
);
const OF_RUN: &str = select_events!(
    "e.run = $3 AND e.first >=
       coalesce((SELECT first FROM event WHERE run = $3 AND first <= $1 ORDER BY first DESC LIMIT 1), 0)
     AND e.last >= $1 ORDER BY e.first LIMIT $2"
);
const NEWEST: &str = select_events!("e.dispatch = $1 ORDER BY e.first DESC LIMIT 1");

fn unreadable(error: &serde_json::Error) -> Error {
    Error::Unreadable(error.to_string())
}

fn batch(columns: &mut Columns<'_>, log: &LogName) -> Result<EventBatch> {
    let (first, last) = (columns.next()?, columns.next()?);
    let (seq, attempt) = (columns.next()?, columns.next()?);
    let (provider, text): (String, _) = (columns.next()?, columns.next()?);
    let dispatch_id: Option<DispatchId> = columns.next()?;
    let (task_id, agent_id) = (columns.next()?, columns.next()?);
    let (named, trace_id): (Option<String>, _) = (columns.next()?, columns.next()?);
    let run: Option<RunId> = columns.next()?;
    let common = Event {
        id: log.cursor(first),
        seq,
        kind: String::new(),
        task_id,
        agent_id,
        dispatch_id,
        provider: Some(provider).filter(|name| name != NO_PROVIDER),
        timestamp: Timestamp::UNIX_EPOCH,
        run_id: run.map(|id| id.to_string()).or(named),
        trace_id,
        attempt,
        data: None,
        written: Written::default(),
    };
    Ok(EventBatch { common, last, text })
}

#[async_trait]
impl StoredEvents for Postgres {
    async fn stored_events(
        &self,
        filter: Option<&EventFilter>,
        after: u64,
        limit: usize,
    ) -> Result<EventPage> {
        let log = &self.published.identity.log;
        // Everything up to here has committed, and is seen by what is read from now on.
        let issued = *self.published.newest.borrow();
        let dispatch = filter.and_then(|filter| filter.dispatch);
        let run = filter.and_then(|filter| filter.run);
        let mut page = GrowingPage::new(log, filter, after, limit);
        let mut sought = after.saturating_add(1);
        let rows = limit.saturating_add(1).min(ROWS);
        loop {
            let read = |row: &mut Columns<'_>| batch(row, log);
            let batches = match (dispatch, run) {
                (Some(id), _) => {
                    self.all(OF_DISPATCH, params![sought, rows, id], read)
                        .await?
                }
                (None, Some(id)) => self.all(OF_RUN, params![sought, rows, id], read).await?,
                (None, None) => self.all(OF_ALL, params![sought, rows], read).await?,
            };
            for batch in &batches {
                if !page.add(batch).map_err(|error| unreadable(&error))? {
                    return Ok(page.finish(issued));
                }
            }
            match batches.last() {
                Some(last) if batches.len() == rows => sought = last.last + 1,
                Some(_) | None => return Ok(page.finish(issued)),
            }
        }
    }
}

impl Postgres {
    pub(super) async fn newest_event(&self, id: DispatchId) -> Result<Option<Event>> {
        let log = &self.published.identity.log;
        let newest = self.one(NEWEST, params![id], |row| batch(row, log)).await?;
        let events =
            newest.map(|batch| batch.events(log, None).map_err(|error| unreadable(&error)));
        Ok(events.transpose()?.and_then(|mut events| events.pop()))
    }
}
