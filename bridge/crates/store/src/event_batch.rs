//! Events of one write as a store keeps them: their first position, what they have in common, and one text, a list of
//! `[type, time, data]` with the attempt where it differs, and the task where there is no dispatch.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use forge_base::event::{Event, LogName, NewEvent};
use forge_base::time::{from_nanos, nanos};

use crate::recent_events::PAGE_BYTES;
use crate::record::{EventFilter, EventPage, RunEvent};

/// One event: type, time, data, attempt and task. One with a task has an attempt.
#[derive(Serialize, Deserialize)]
struct Line<'a>(
    Cow<'a, str>,
    i64,
    Option<Cow<'a, RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Cow<'a, str>>,
);

fn line(event: &NewEvent, attempt: Option<u32>) -> Line<'_> {
    let data = event.data.as_deref().map(Cow::Borrowed);
    let kind = Cow::Borrowed(&*event.kind);
    Line(kind, nanos(event.timestamp), data, attempt, None)
}

fn line_of_run(of_run: &RunEvent) -> Line<'_> {
    let Line(kind, at, data, ..) = line(&of_run.event, None);
    let task = of_run.task_id.as_deref().map(Cow::Borrowed);
    Line(kind, at, data, Some(of_run.attempt), task)
}

fn text<'a>(lines: impl Iterator<Item = Line<'a>>) -> String {
    serde_json::to_string(&lines.collect::<Vec<_>>()).expect("texts, numbers and JSON")
}

/// Text of events that belong to a dispatch or to nothing.
pub fn of_events(events: &[NewEvent]) -> String {
    text(events.iter().map(|event| line(event, None)))
}

/// Text of the first events of a dispatch, with the start of its first attempt if it begins at once.
pub fn of_acceptance(events: &[NewEvent], started: Option<&NewEvent>) -> String {
    let before = events.iter().map(|event| line(event, None));
    text(before.chain(started.map(|event| line(event, Some(1)))))
}

/// Text of events of a run.
pub fn of_run(events: &[RunEvent]) -> String {
    text(events.iter().map(line_of_run))
}

/// Estimated size of events in a commit, in bytes.
pub fn size<'a>(events: impl IntoIterator<Item = &'a NewEvent>) -> usize {
    let data = |event: &NewEvent| event.data.as_ref().map_or(0, |data| data.get().len());
    events.into_iter().map(|event| 64 + data(event)).sum()
}

/// Events of one write.
pub struct EventBatch {
    /// Common part; number and position are those of the first.
    pub common: Event,
    /// Position of the last one.
    pub last: u64,
    pub text: String,
}

impl EventBatch {
    fn first(&self) -> u64 {
        self.common.id.position
    }

    /// Events in their order; none, without parsing the text, if none can match.
    pub fn events(
        &self,
        log: &LogName,
        filter: Option<&EventFilter>,
    ) -> serde_json::Result<Vec<Event>> {
        if filter.is_some_and(|filter| !filter.matches_source(&self.common)) {
            return Ok(Vec::new());
        }
        let lines: Vec<Line<'static>> = serde_json::from_str(&self.text)?;
        let common = &self.common;
        let is_counted = common.seq > 0;
        let events = (0..).zip(lines);
        let events = events.map(|(place, Line(kind, at, data, attempt, task))| {
            let mut event = Event {
                id: log.cursor(self.first() + place),
                seq: common.seq + if is_counted { place } else { 0 },
                kind: kind.into_owned(),
                timestamp: from_nanos(at),
                attempt: attempt.unwrap_or(common.attempt),
                data: data.map(Cow::into_owned),
                ..common.clone()
            };
            if let Some(task) = task {
                event.task_id = Some(task.into_owned());
            }
            event
        });
        Ok(events.collect())
    }
}

/// Page that grows by batches in the order of their positions.
pub struct GrowingPage<'a> {
    log: &'a LogName,
    filter: Option<&'a EventFilter>,
    after: u64,
    limit: usize,
    looked_at: usize,
    bytes: usize,
    page: EventPage,
}

impl<'a> GrowingPage<'a> {
    pub fn new(
        log: &'a LogName,
        filter: Option<&'a EventFilter>,
        after: u64,
        limit: usize,
    ) -> Self {
        let page = EventPage {
            events: Vec::new(),
            scanned: after,
            more: false,
        };
        Self {
            log,
            filter,
            after,
            limit,
            looked_at: 0,
            bytes: 0,
            page,
        }
    }

    /// Adds the events of a batch that are after the beginning of the page. False if the page is full.
    pub fn add(&mut self, batch: &EventBatch) -> serde_json::Result<bool> {
        if batch.last <= self.after {
            return Ok(true);
        }
        let mut events = batch.events(self.log, self.filter)?.into_iter();
        for position in batch.first()..=batch.last {
            let event = events.next();
            if position <= self.after {
                continue;
            }
            if self.looked_at == self.limit || self.bytes > PAGE_BYTES {
                self.page.more = true;
                return Ok(false);
            }
            self.looked_at += 1;
            self.page.scanned = position;
            let wanted = |event: &Event| self.filter.is_none_or(|filter| filter.matches(event));
            if let Some(event) = event.filter(wanted) {
                self.bytes += event.data_bytes();
                self.page.events.push(Arc::new(event));
            }
        }
        Ok(true)
    }

    /// The page. One that is not full has read the log up to `issued`.
    pub fn finish(mut self, issued: u64) -> EventPage {
        if !self.page.more {
            self.page.scanned = self.page.scanned.max(issued);
        }
        self.page
    }
}
