//! Opens a store that a power cut left, and compares it with what had been observed until then.

use forge_store::roles::Accept as _;
use forge_store::roles::EventLog as _;
use forge_store::roles::Executions as _;
use forge_store::roles::Maintenance as _;
use forge_store::roles::Outbox as _;
use forge_store::roles::Records as _;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use serde_json::value::RawValue;

use forge_base::event::{NewEvent, kind};
use forge_base::id::{DeliveryId, DispatchId};
use forge_store::record::{
    Acceptance, Content, DispatchState, EventFilter, IdempotencyKey, KeyOwner, KeySpace,
    NewDispatch,
};
use forge_store::{Config, Error, Result};
use forge_store_sqlite::Sqlite;

use super::witness::{Fact, Observation};

/// Events of a page.
const PAGE: usize = 1000;

/// Promises that states have broken, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) states: usize,
    /// Facts that were looked for in them.
    pub(super) facts: usize,
    /// Dispatches, cancel requests, results or events that are missing.
    pub(super) lost: usize,
    /// Epochs or event positions that are given out again.
    pub(super) reused: usize,
    /// Results or events with another content.
    pub(super) replaced: usize,
    /// Stores that do not open, do not accept, or that a check finds damaged.
    pub(super) refused: usize,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.facts += other.facts;
        self.lost += other.lost;
        self.reused += other.reused;
        self.replaced += other.replaced;
        self.refused += other.refused;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} facts: {} lost, {} reused, {} replaced, {} refused",
            self.states, self.facts, self.lost, self.reused, self.replaced, self.refused
        )
    }
}

/// Examination of one state.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) tally: Tally,
    /// One line for each broken promise.
    pub(super) broken: Vec<String>,
}

impl Verdict {
    /// Opens, examines and closes the store in this folder; `is_thorough` adds a check of the whole file.
    pub(super) async fn of(folder: &Path, seen: &[Observation], is_thorough: bool) -> Self {
        let mut verdict = Self::default();
        verdict.tally.states = 1;
        verdict.tally.facts = seen.len();
        match Sqlite::open(&Config::default(), folder) {
            Ok(store) => {
                if let Err(error) = verdict.examine(&store, seen).await {
                    verdict.refused(format!("the store cannot be read: {error}"));
                }
                store.close().await;
            }
            Err(error) => verdict.refused(format!("the store does not open: {error}")),
        }
        if is_thorough && verdict.tally.refused == 0 {
            match Sqlite::check(folder) {
                Ok(checked) => {
                    for problem in checked.problems {
                        verdict.refused(format!("the check finds a problem: {problem}"));
                    }
                }
                Err(error) => verdict.refused(format!("the store cannot be checked: {error}")),
            }
        }
        verdict
    }

    fn lost(&mut self, what: String) {
        self.tally.lost += 1;
        self.broken.push(what);
    }

    fn reused(&mut self, what: String) {
        self.tally.reused += 1;
        self.broken.push(what);
    }

    fn replaced(&mut self, what: String) {
        self.tally.replaced += 1;
        self.broken.push(what);
    }

    fn refused(&mut self, what: String) {
        self.tally.refused += 1;
        self.broken.push(what);
    }

    async fn examine(&mut self, store: &Sqlite, seen: &[Observation]) -> Result<()> {
        let events = events(store).await?;
        let issued = store.log_bounds().issued;
        let mut highest = 0;
        for observation in seen {
            match &observation.fact {
                Fact::Boot { epoch } => {
                    if store.epoch() <= *epoch {
                        self.reused(format!("epoch {epoch} is given out again"));
                    }
                }
                Fact::Accepted { id } => {
                    if store.dispatch(*id).await?.is_none() {
                        self.lost(format!("{id} was answered 202 and is gone"));
                    }
                }
                Fact::CancelRecorded { id } => self.examine_cancel(store, *id).await?,
                Fact::Result { id, result } => self.examine_result(store, *id, result).await?,
                Fact::Output { id, bytes } => self.examine_output(store, *id, bytes).await?,
                Fact::Callback { id, body } => self.examine_callback(store, *id, body).await?,
                Fact::Event { event } => {
                    highest = highest.max(position(event));
                    self.examine_event(&events, event);
                }
            }
        }
        if issued < highest {
            self.reused(format!(
                "event {highest} was seen and {issued} is the newest"
            ));
        }
        self.accept_another(store, highest.max(issued)).await
    }

    async fn examine_cancel(&mut self, store: &Sqlite, id: DispatchId) -> Result<()> {
        let found = store.dispatch(id).await?;
        let is_kept = found.is_some_and(|dispatch| match dispatch.state {
            DispatchState::Queued | DispatchState::Running { .. } => dispatch.cancel_requested,
            DispatchState::Finished { error_code, .. } => {
                error_code.as_deref() == Some("cancelled")
            }
        });
        if !is_kept {
            self.lost(format!("the recorded request to cancel {id} is gone"));
        }
        Ok(())
    }

    async fn examine_result(
        &mut self,
        store: &Sqlite,
        id: DispatchId,
        result: &Value,
    ) -> Result<()> {
        let found = store.dispatch(id).await?;
        let found = found.and_then(|dispatch| dispatch.result);
        let found = found.map(|raw| serde_json::from_str::<Value>(raw.get()).unwrap());
        match found {
            None => self.lost(format!("the result of {id} was seen and is gone")),
            Some(found) if found != *result => {
                self.replaced(format!("{id}: the result {result} is {found} now"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn examine_output(&mut self, store: &Sqlite, id: DispatchId, bytes: &[u8]) -> Result<()> {
        match store.content(id, Content::Output, 0, usize::MAX).await? {
            None => self.lost(format!("the output of {id} was seen and is gone")),
            Some(output) if output.bytes != bytes => {
                self.replaced(format!("the output of {id} is another one now"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn examine_callback(
        &mut self,
        store: &Sqlite,
        id: DispatchId,
        body: &[u8],
    ) -> Result<()> {
        match store.payload(DeliveryId::of(id)).await {
            Err(Error::NotFound) => self.lost(format!("the callback of {id} was sent and is gone")),
            Err(error) => return Err(error),
            Ok(payload) if payload.body != body => {
                let text = String::from_utf8_lossy(&payload.body);
                self.replaced(format!("the callback of {id} is {text} now"));
            }
            Ok(_) => {}
        }
        Ok(())
    }

    fn examine_event(&mut self, events: &BTreeMap<u64, Value>, event: &Value) {
        match events.get(&position(event)) {
            None => self.lost(format!("an event was seen and is gone: {event}")),
            Some(found) if found != event => {
                self.replaced(format!("the event {event} is {found} now"));
            }
            Some(_) => {}
        }
    }

    /// Accepts another dispatch, whose events must come after all others.
    async fn accept_another(&mut self, store: &Sqlite, highest: u64) -> Result<()> {
        let new = dispatch();
        let id = new.id;
        match store.accept(new).await {
            Ok(Acceptance::Accepted { .. }) => {}
            answer => {
                self.refused(format!("another dispatch is answered {answer:?}"));
                return Ok(());
            }
        }
        let filter = EventFilter {
            dispatch: Some(id),
            ..EventFilter::default()
        };
        let page = store.events(&filter, 0, PAGE).await?;
        let first = page.events.first().map(|event| event.id.position);
        if first.is_none_or(|first| first <= highest) {
            self.reused(format!("{first:?} is given out after event {highest}"));
        }
        Ok(())
    }
}

/// All events by position.
async fn events(store: &Sqlite) -> Result<BTreeMap<u64, Value>> {
    let mut events = BTreeMap::new();
    let mut after = 0;
    loop {
        let all = EventFilter::default();
        let page = store.events(&all, after, PAGE).await?;
        for event in &page.events {
            let json = serde_json::to_value(event.as_ref()).unwrap();
            events.insert(event.id.position, json);
        }
        after = page.scanned;
        if !page.more {
            return Ok(events);
        }
    }
}

/// The position in an id of the form `<log>-<position>`.
fn position(event: &Value) -> u64 {
    let id = event["id"].as_str().unwrap();
    id.rsplit_once('-').unwrap().1.parse().unwrap()
}

fn dispatch() -> NewDispatch {
    let now = Timestamp::now();
    let request = r#"{"message":"after the cut"}"#;
    let raw = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
    NewDispatch {
        id: DispatchId::new(),
        key: IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space: KeySpace::Task,
            value: "after-the-cut".to_owned(),
        },
        task_id: "after-the-cut".to_owned(),
        agent_id: "agent".to_owned(),
        run_id: None,
        trace_id: "trace".to_owned(),
        provider: "echo".to_owned(),
        pinned: false,
        routing: raw("[]"),
        request: raw(request),
        fingerprint: forge_base::digest::sha256(request),
        attachments: Vec::new(),
        secrets: None,
        session: None,
        priority: 0,
        accepted_at: now,
        not_before: None,
        start_by: now + SignedDuration::from_hours(1),
        callback: None,
        events: vec![
            NewEvent::new(kind::ACCEPTED, now),
            NewEvent::new(kind::QUEUED, now),
        ],
        start: None,
        is_held: false,
        is_bound: false,
        retry_of: None,
        queue_limit: u64::MAX,
    }
}
