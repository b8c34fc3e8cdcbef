//! Event log of the model.

use std::sync::Arc;

use crate::record::{EventFilter, EventPage, EventTotals, RunEvent};
use forge_base::event::{Event, NewEvent, Written};
use forge_base::id::DispatchId;

use super::state::State;

pub(super) struct Logged {
    /// Number of its dispatch or run; no two of them have the same.
    pub(super) owner: Option<u64>,
    pub(super) event: Arc<Event>,
}

impl State {
    pub(super) fn log_events(&mut self, seq: u64, events: Vec<NewEvent>) {
        for new in events {
            self.bounds.issued += 1;
            let id = self.log.cursor(self.bounds.issued);
            let kept = self.kept(seq);
            kept.events += 1;
            let event = Event {
                id,
                seq: kept.events,
                kind: new.kind.into_owned(),
                task_id: Some(kept.record.task_id.clone()),
                agent_id: Some(kept.record.agent_id.clone()),
                dispatch_id: Some(kept.record.id),
                provider: Some(kept.record.provider.clone()),
                timestamp: new.timestamp,
                run_id: kept.record.run_id.clone(),
                trace_id: Some(kept.record.trace_id.clone()),
                attempt: kept.record.attempts,
                data: new.data,
                written: Written::default(),
            };
            self.log_event(Some(seq), event);
        }
    }

    /// Event totals of a dispatch after `more` further events.
    pub(super) fn totals_with(&self, seq: u64, more: u64) -> EventTotals {
        let mut newest_first = self.events.iter().rev();
        let own = newest_first.find(|(_, logged)| logged.owner == Some(seq));
        EventTotals {
            count: self.dispatches[&seq].events + more,
            last: match more {
                0 => own.map_or(0, |(position, _)| *position),
                more => self.bounds.issued + more,
            },
        }
    }

    pub(super) fn log_unbound(&mut self, provider: Option<&str>, events: Vec<NewEvent>) {
        for new in events {
            self.bounds.issued += 1;
            let event = Event {
                id: self.log.cursor(self.bounds.issued),
                seq: 0,
                kind: new.kind.into_owned(),
                task_id: None,
                agent_id: None,
                dispatch_id: None,
                provider: provider.map(str::to_owned),
                timestamp: new.timestamp,
                run_id: None,
                trace_id: None,
                attempt: 0,
                data: new.data,
                written: Written::default(),
            };
            self.log_event(None, event);
        }
    }

    pub(super) fn log_run(&mut self, seq: u64, events: Vec<RunEvent>) {
        for RunEvent {
            task_id,
            attempt,
            event: new,
        } in events
        {
            self.bounds.issued += 1;
            let id = self.log.cursor(self.bounds.issued);
            let run = self
                .runs
                .get_mut(&seq)
                .expect("the caller has just found it");
            let record = &mut run.record;
            record.seq += 1;
            record.last_position = self.bounds.issued;
            let event = Event {
                id,
                seq: record.seq,
                kind: new.kind.into_owned(),
                task_id,
                agent_id: None,
                dispatch_id: None,
                provider: None,
                timestamp: new.timestamp,
                run_id: Some(record.id.to_string()),
                trace_id: Some(record.trace_id.clone()),
                attempt,
                data: new.data,
                written: Written::default(),
            };
            self.log_event(Some(seq), event);
        }
    }

    fn log_event(&mut self, owner: Option<u64>, event: Event) {
        let event = Arc::new(event);
        self.events
            .insert(self.bounds.issued, Logged { owner, event });
    }

    pub(super) fn forget_events(&mut self, gone: impl Fn(&Logged) -> bool) {
        let bounds = &mut self.bounds;
        self.events.retain(|position, logged| {
            let stays = !gone(logged);
            if !stays {
                bounds.removed = bounds.removed.max(*position);
            }
            stays
        });
    }

    pub(super) fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> EventPage {
        // One dispatch or run is read by its own index: events of others do not count towards the limit.
        let mut rows = self
            .events
            .range(after.saturating_add(1)..)
            .filter(|(_, logged)| filter.matches_owner(&logged.event));
        let looked_at: Vec<_> = rows.by_ref().take(limit).collect();
        let more = rows.next().is_some();
        let scanned = match looked_at.last() {
            Some((position, _)) if more => **position,
            None if more => after,
            Some(_) | None => self.bounds.issued.max(after),
        };
        let matching = looked_at
            .into_iter()
            .map(|(_, logged)| &logged.event)
            .filter(|event| filter.matches(event));
        EventPage {
            events: matching.cloned().collect(),
            scanned,
            more,
        }
    }

    pub(super) fn last_event(&self, id: DispatchId) -> Option<Event> {
        let newest_first = self.events.values().rev();
        newest_first
            .map(|logged| &logged.event)
            .find(|event| event.dispatch_id == Some(id))
            .map(|event| Event::clone(event))
    }
}
