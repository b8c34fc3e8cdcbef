//! Store in one SQLite file: an engine that writes, reads and recovers, and the tables. All SQL of the bridge is
//! below this module.
#![forbid(unsafe_code)]

mod engine;
pub mod maintenance;
pub mod open;
pub mod open_error;
mod published;
mod recent_events;
mod tables;

#[cfg(test)]
mod crash_recovery;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use serde_json::value::RawValue;
use tokio::sync::watch;

use forge_base::event::{Event, LogName, NewEvent};
use forge_base::id::{DeliveryId, DispatchId};
use forge_store::destination::{DueQuery, OpenBreaker};
use forge_store::meters::Meters;
use forge_store::record::{
    Acceptance, Begun, CancelRequest, Claim, Counts, DeliveryFilter, DeliveryPayload,
    DeliveryRecord, DispatchFilter, DispatchRecord, DueDelivery, EventFilter, EventPage, Finish,
    Finished, IdempotencyKey, Interrupted, Known, Lease, LogBounds, NewDispatch, Output, Page,
    Progress, Ready, Replay, Requeue, Reroute, Settlement, Swept,
};
use forge_store::sealed::{Resealed, Sealed};
use forge_store::{Error, Result, Store};

use engine::{Engine, Failure, Length, Urgency};
use published::{Committed, Published};
use recent_events::RecentEvents;
use tables::{Tx, accept, breaker, deliver, events, execute, queue, read, retention, rows, seal};

/// Events read from the file at a time for all readers that follow the log.
const FILL_EVENTS: usize = 256;

/// A replay of many deliveries is made in steps of this size, so that it delays nothing else.
const REPLAY_STEP: usize = 500;

/// A store in a folder of the local disk; clones are the same store.
#[derive(Clone)]
pub struct Sqlite {
    engine: Arc<Engine<Committed>>,
    published: Arc<Published>,
    recent_events: Arc<RecentEvents>,
    /// The origin that `due` served last.
    served: Arc<Mutex<String>>,
}

impl Sqlite {
    async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.write_with(Urgency::Now, bytes, change).await
    }

    async fn write_with<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let change = move |connection: &Connection, committed: &mut Committed| {
            change(&mut committed.tx(connection))
        };
        self.engine.write(urgency, bytes, change).await
    }

    /// Runs a query of a few steps in an index.
    async fn look_up<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let found = self.engine.read(Length::Short, query).await?;
        found.map_err(|error| rows::refused(&error))
    }

    /// Runs a query that can take longer.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let found = self.engine.read(Length::Long, query).await?;
        found.map_err(|error| rows::refused(&error))
    }

    /// Reads events from the file.
    async fn stored_events(
        &self,
        filter: &EventFilter,
        after: u64,
        limit: usize,
    ) -> Result<EventPage> {
        let (filter, log) = (filter.clone(), self.log().clone());
        self.read(move |connection| events::read(connection, &log, &filter, after, limit))
            .await
    }

    async fn replay_many(
        &self,
        host: Option<String>,
        since: Option<Timestamp>,
        status: forge_store::record::DeliveryState,
        now: Timestamp,
    ) -> Result<u64> {
        let (mut after, mut replayed) = (0, 0);
        loop {
            let host = host.clone();
            let chosen = self
                .read(move |connection| {
                    let chosen = deliver::Chosen {
                        status,
                        host: host.as_deref(),
                        since,
                        after,
                    };
                    deliver::choose(connection, &chosen, REPLAY_STEP)
                })
                .await?;
            let Some(last) = chosen.last() else {
                return Ok(replayed);
            };
            after = *last;
            replayed += self
                .write(0, move |tx| deliver::replay(tx, &chosen, status, now))
                .await?;
        }
    }
}

fn size_of_events(events: &[NewEvent]) -> usize {
    let data = |event: &NewEvent| event.data.as_ref().map_or(0, |data| data.get().len());
    events.iter().map(|event| 64 + data(event)).sum()
}

#[async_trait]
impl Store for Sqlite {
    fn store_id(&self) -> &str {
        &self.published.identity.store_id
    }

    fn log(&self) -> &LogName {
        &self.published.identity.log
    }

    fn epoch(&self) -> u64 {
        self.published.identity.epoch
    }

    fn status(&self) -> std::result::Result<(), String> {
        self.engine.status()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.published.newest.subscribe()
    }

    fn counts(&self) -> Counts {
        self.published.counts()
    }

    fn meters(&self) -> Arc<Meters> {
        self.engine.meters()
    }

    async fn recall(&self, key: &IdempotencyKey) -> Result<Option<Known>> {
        let key = key.clone();
        let found = self.look_up(move |connection| accept::recall(connection, &key));
        Ok(found.await?.map(|(_, known)| known))
    }

    async fn accept(&self, new: NewDispatch) -> Result<Acceptance> {
        let sealed = new.secrets.as_ref().map_or(0, Vec::len);
        let bytes = new.request.get().len() + new.routing.get().len() + sealed + 512;
        self.write(bytes, move |tx| accept::accept(tx, &new)).await
    }

    async fn ready(&self, provider: &str, limit: usize) -> Result<Vec<Ready>> {
        let provider = provider.to_owned();
        self.look_up(move |connection| queue::ready(connection, &provider, limit))
            .await
    }

    async fn queues(&self) -> Result<Vec<(String, u64)>> {
        Ok(self.published.queues())
    }

    async fn promote(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.write(0, move |tx| queue::promote(tx, now, limit))
            .await
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<DispatchId>> {
        self.look_up(move |connection| queue::overdue(connection, now, limit))
            .await
    }

    async fn cancelled_in_queue(&self, limit: usize) -> Result<Vec<DispatchId>> {
        self.look_up(move |connection| queue::cancelled(connection, limit))
            .await
    }

    async fn next_queue_event(&self) -> Result<Option<Timestamp>> {
        self.look_up(queue::next_event).await
    }

    async fn reroute(&self, reroute: Reroute) -> Result<()> {
        let bytes = reroute.routing.get().len();
        self.write(bytes, move |tx| queue::reroute(tx, &reroute))
            .await
    }

    async fn begin(
        &self,
        id: DispatchId,
        provider: &str,
        started: NewEvent,
    ) -> Result<(Begun, Box<RawValue>)> {
        let candidate = self
            .look_up(move |connection| execute::candidate(connection, id))
            .await?
            .ok_or(Error::NotFound)?;
        let expected = candidate.expected();
        let provider = provider.to_owned();
        let started = self
            .write(0, move |tx| {
                execute::begin(tx, &expected, &provider, &started)
            })
            .await?;
        Ok(candidate.begun(started))
    }

    async fn append(&self, lease: &Lease, progress: Progress) -> Result<()> {
        let (lease, bytes) = (lease.clone(), size_of_events(&progress.events));
        self.write(bytes, move |tx| execute::append(tx, &lease, &progress))
            .await
    }

    async fn finish(&self, claim: Claim, finish: Finish) -> Result<Finished> {
        let bytes = finish.result.get().len()
            + finish.output.as_ref().map_or(0, String::len)
            + size_of_events(&finish.events);
        self.write(bytes, move |tx| execute::finish(tx, &claim, &finish))
            .await
    }

    async fn requeue(&self, claim: Claim, requeue: Requeue) -> Result<()> {
        self.write(0, move |tx| execute::requeue(tx, &claim, &requeue))
            .await
    }

    async fn request_cancel(&self, id: DispatchId, _at: Timestamp) -> Result<CancelRequest> {
        self.write(0, move |tx| execute::request_cancel(tx, id))
            .await
    }

    async fn interrupted(&self, limit: usize) -> Result<Vec<Interrupted>> {
        let epoch = self.published.identity.epoch;
        self.read(move |connection| execute::interrupted(connection, epoch, limit))
            .await
    }

    async fn append_unbound(&self, provider: &str, events: Vec<NewEvent>) -> Result<()> {
        let provider = provider.to_owned();
        let bytes = size_of_events(&events);
        self.write(bytes, move |tx| {
            events::append_unbound(tx, &provider, &events)
        })
        .await
    }

    async fn due(&self, query: DueQuery) -> Result<Vec<DueDelivery>> {
        let served = Arc::clone(&self.served);
        self.look_up(move |connection| {
            let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
            deliver::due(connection, &query, &mut served)
        })
        .await
    }

    async fn next_due(&self, exclude: &[String]) -> Result<Option<Timestamp>> {
        let exclude = exclude.to_vec();
        self.look_up(move |connection| deliver::next_due(connection, &exclude))
            .await
    }

    async fn payload(&self, id: DeliveryId) -> Result<DeliveryPayload> {
        let found = self.look_up(move |connection| deliver::payload(connection, id));
        found.await?.ok_or(Error::NotFound)
    }

    async fn settle(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        let attempt = settlement.attempt.as_ref();
        let answer = attempt.and_then(|attempt| attempt.answer.as_ref());
        let answer = answer.map_or(0, String::len);
        let bytes = answer + size_of_events(&settlement.events);
        // The receiver has answered, and nothing follows from this.
        self.write_with(Urgency::Soon, bytes, move |tx| {
            deliver::settle(tx, id, &settlement)
        })
        .await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<u64> {
        match replay {
            Replay::One(id) => {
                self.write(0, move |tx| deliver::replay_one(tx, id, now))
                    .await
            }
            Replay::Many {
                host,
                since,
                status,
            } => self.replay_many(host, since, status, now).await,
        }
    }

    async fn overdue_deliveries(
        &self,
        origin: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueDelivery>> {
        let origin = origin.to_owned();
        self.read(move |connection| deliver::overdue(connection, &origin, now, limit))
            .await
    }

    async fn open_breakers(&self) -> Result<Vec<OpenBreaker>> {
        self.look_up(breaker::open).await
    }

    async fn keep_breakers(&self, open: Vec<OpenBreaker>, closed: Vec<String>) -> Result<()> {
        let bytes = 256 * (open.len() + closed.len());
        self.write_with(Urgency::Soon, bytes, move |tx| {
            breaker::keep(tx, &open, &closed)
        })
        .await
    }

    async fn dispatch(&self, id: DispatchId) -> Result<Option<DispatchRecord>> {
        self.look_up(move |connection| read::dispatch(connection, id))
            .await
    }

    async fn request(&self, id: DispatchId) -> Result<Box<RawValue>> {
        let found = self.read(move |connection| read::request(connection, id));
        found.await?.ok_or(Error::NotFound)
    }

    async fn by_task(&self, task_id: &str, limit: usize) -> Result<Vec<DispatchRecord>> {
        let task_id = task_id.to_owned();
        self.read(move |connection| read::by_task(connection, &task_id, limit))
            .await
    }

    async fn dispatches(&self, filter: DispatchFilter) -> Result<Page<DispatchRecord>> {
        self.read(move |connection| read::dispatches(connection, &filter))
            .await
    }

    async fn output(&self, id: DispatchId, offset: u64, limit: usize) -> Result<Option<Output>> {
        self.read(move |connection| read::output(connection, id, offset, limit))
            .await
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<DeliveryRecord>> {
        self.look_up(move |connection| read::delivery(connection, id))
            .await
    }

    async fn deliveries(&self, filter: DeliveryFilter) -> Result<Page<DeliveryRecord>> {
        self.read(move |connection| read::deliveries(connection, &filter))
            .await
    }

    async fn deliveries_of(&self, id: DispatchId) -> Result<Vec<DeliveryRecord>> {
        Ok(self
            .delivery(DeliveryId::of(id))
            .await?
            .into_iter()
            .collect())
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<EventPage> {
        // One dispatch has an index of its own, and is not worth holding the events of all others in memory.
        if filter.dispatch.is_some() {
            return self.stored_events(filter, after, limit).await;
        }
        let issued = *self.published.newest.borrow();
        let recent = &self.recent_events;
        if let Some(page) = recent.page(filter, after, limit, issued) {
            return Ok(page);
        }
        if issued.saturating_sub(after) > recent_events::REACH {
            return self.stored_events(filter, after, limit).await;
        }
        {
            let _one = recent.filling.lock().await;
            while let Some(from) = recent.missing(after, issued) {
                let all = EventFilter::default();
                let page = self.stored_events(&all, from, FILL_EVENTS).await?;
                recent.extend(from, issued, page);
            }
        }
        match recent.page(filter, after, limit, issued) {
            Some(page) => Ok(page),
            None => self.stored_events(filter, after, limit).await,
        }
    }

    async fn last_event(&self, id: DispatchId) -> Result<Option<Event>> {
        let log = self.log().clone();
        self.read(move |connection| events::last(connection, &log, id))
            .await
    }

    fn log_bounds(&self) -> LogBounds {
        self.published.bounds()
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let swept = self
            .write(0, move |tx| retention::sweep(tx, now, limit))
            .await;
        self.recent_events.clear();
        swept
    }

    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.look_up(move |connection| seal::named(connection, &name))
            .await
    }

    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>> {
        let name = name.to_owned();
        self.write(value.len(), move |tx| seal::seal_once(tx, &name, &value))
            .await
    }

    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>> {
        self.read(move |connection| seal::page(connection, after, limit))
            .await
    }

    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64> {
        let bytes = changes.iter().map(|change| change.to.len()).sum();
        self.write(bytes, move |tx| seal::reseal(tx, &changes))
            .await
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}
