//! Deliveries held by this process: waiting for a slot, being sent, being settled. Decides how many more to
//! load, and prevents loading one twice. Bounded: the store's rows are authoritative, and deliveries beyond
//! the bounds stay there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::time::Instant;

use forge_base::id::DeliveryId;
use forge_net::breaker::{Change, Health};
use forge_store::destination::DueQuery;
use forge_store::record::DueDelivery;

use super::destinations::{Destination, Destinations};
use super::send::CallbackPayload;
use super::slots::Slots;
use super::{Config, Deliverer};

/// Maximum number of attempts whose outcome is being written; at this number no new attempt starts.
const SETTLING: usize = 256;
/// Maximum length of one origin's queue while there is room for many; below half of it, more are loaded from
/// the store.
const LINE: usize = 64;
/// An origin's queue gets at most 1/SHARE of the room left, and never more than one place of the last 1/SHARE of the
/// room, so blocked origins always leave room for the next one.
const SHARE: usize = 4;
/// Maximum number of waiting deliveries.
const WAITING: usize = 1024;
/// Maximum size of the waiting payloads, in bytes.
const WAITING_BYTES: usize = 8 << 20;

pub(super) struct InFlight {
    table: Mutex<Table>,
    /// Number of deliveries in all phases.
    count: watch::Sender<usize>,
    concurrency: usize,
    per_origin: usize,
}

struct Table {
    phases: HashMap<DeliveryId, Phase>,
    /// Start times of the attempts being sent, oldest first, by origin; no empty entries.
    sending: HashMap<String, SmallVec<[Instant; 4]>>,
    sending_in_all: usize,
    /// Waiting deliveries by origin; no empty queues.
    waiting: BTreeMap<String, VecDeque<Waiting>>,
    waiting_in_all: usize,
    waiting_bytes: usize,
    /// Origins for which the store might hold more due deliveries than wait here.
    overflowed: BTreeSet<String>,
    /// Origin served last, for round-robin.
    served: String,
    destinations: Destinations,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Sending,
    /// The outcome is being written; the receiver's slot is free again.
    Settling,
}

/// Due delivery that waits for a slot.
pub(super) struct Waiting {
    pub(super) due: DueDelivery,
    /// Payload, if it need not be read from the store.
    pub(super) payload: Option<CallbackPayload>,
}

/// Guard of one delivery in flight: dropping it removes the delivery from the table, however the attempt
/// ends.
pub(super) struct InFlightDelivery {
    deliverer: Deliverer,
    id: DeliveryId,
    origin: String,
    /// Time at which the attempt began.
    began: Instant,
    /// Phase number of the origin's breaker when the attempt began.
    turn: u64,
    settled: bool,
}

/// Evidence about the receiver from one attempt.
pub(super) struct Report<'a> {
    pub(super) sign: Health,
    pub(super) reason: &'a str,
    pub(super) now: Timestamp,
}

impl InFlight {
    pub(super) fn new(config: &Config) -> Self {
        let table = Table {
            phases: HashMap::new(),
            sending: HashMap::new(),
            sending_in_all: 0,
            waiting: BTreeMap::new(),
            waiting_in_all: 0,
            waiting_bytes: 0,
            overflowed: BTreeSet::new(),
            served: String::new(),
            destinations: Destinations::new(config.breaker.clone()),
        };
        Self {
            table: Mutex::new(table),
            count: watch::Sender::new(0),
            concurrency: config.concurrency.get(),
            per_origin: config.per_origin.get(),
        }
    }

    /// Query for due deliveries; `None` if no more fit here.
    pub(super) fn query(&self, now: Timestamp) -> Option<DueQuery> {
        let mut table = self.table();
        table.destinations.pass(now);
        table.destinations.forget_idle(now);
        let limit = WAITING.saturating_sub(table.waiting_in_all);
        if limit == 0 {
            return None;
        }
        let exclude = table.not_wanted();
        // The result of this query shows if the other origins overflow.
        table.overflowed.retain(|origin| exclude.contains(origin));
        Some(DueQuery {
            now,
            exclude,
            per_origin: table.line_limit(),
            limit,
            in_flight: table.phases.keys().copied().collect(),
        })
    }

    /// Adds the result of a query for `asked_for` deliveries per origin; returns the number that were not
    /// here yet.
    pub(super) fn add(&self, found: Vec<DueDelivery>, asked_for: usize) -> usize {
        let mut table = self.table();
        let mut per_origin: HashMap<String, usize> = HashMap::new();
        let mut new = 0;
        for due in found {
            let origin = &due.callback.origin;
            let count = per_origin.entry(origin.clone()).or_insert(0);
            *count += 1;
            if *count == asked_for {
                table.overflowed.insert(origin.clone());
            }
            if table.destinations.is_open(origin) {
                // The breaker opened during the query.
                continue;
            }
            if table.line(origin) >= table.line_limit() {
                table.overflowed.insert(due.callback.origin);
                continue;
            }
            let payload = None;
            new += usize::from(table.enqueue(Waiting { due, payload }));
        }
        self.count.send_replace(table.phases.len());
        new
    }

    /// Adds a delivery that has just become due, unless its origin has more in the store, which go first.
    pub(super) fn offer(&self, due: DueDelivery, payload: CallbackPayload) {
        let mut table = self.table();
        let payload = Some(payload);
        let waiting = Waiting { due, payload };
        let origin = &waiting.due.callback.origin;
        if table.destinations.is_open(origin) {
            // Loaded from the store when the breaker allows attempts again.
            return;
        }
        let full = table.line(origin) >= table.line_limit()
            || table.waiting_in_all >= WAITING
            || table.waiting_bytes + waiting.size() > WAITING_BYTES;
        if full || table.overflowed.contains(origin) {
            table.overflowed.insert(waiting.due.callback.origin);
            return;
        }
        table.enqueue(waiting);
        self.count.send_replace(table.phases.len());
    }

    /// Puts a delivery that an operator made due in front of its origin's queue, and lets an open breaker try it now.
    pub(super) fn put_first(&self, due: DueDelivery, now: Timestamp) {
        let mut table = self.table();
        table.destinations.probe(&due.callback.origin, now);
        if table.waiting_in_all >= WAITING {
            // Loaded from the store when there is room.
            return;
        }
        let origin = due.callback.origin.clone();
        let payload = None;
        if table.enqueue(Waiting { due, payload })
            && let Some(line) = table.waiting.get_mut(&origin)
        {
            line.rotate_right(1);
        }
        self.count.send_replace(table.phases.len());
    }

    /// Next delivery with a free slot, round-robin over the origins.
    pub(super) fn next(&self, deliverer: &Deliverer) -> Option<(Waiting, InFlightDelivery)> {
        let mut table = self.table();
        let now = Instant::now();
        let clock = deliverer.shared.setup.clock;
        table.destinations.pass(clock.now());
        let settling = table.phases.len() - table.sending_in_all - table.waiting_in_all;
        if settling >= SETTLING {
            return None;
        }
        let slots = Slots {
            total: self.concurrency,
            taken: table.sending_in_all,
        };
        let origin = table.next_origin(slots, self.per_origin, now)?;
        let waiting = table.dequeue(&origin)?;
        let id = waiting.due.id;
        table.phases.insert(id, Phase::Sending);
        table.sending.entry(origin.clone()).or_default().push(now);
        table.sending_in_all += 1;
        origin.clone_into(&mut table.served);
        let flight = InFlightDelivery {
            deliverer: deliverer.clone(),
            id,
            began: now,
            turn: table.destinations.turn(&origin),
            origin,
            settled: false,
        };
        Some((waiting, flight))
    }

    /// True if an overflowed origin's queue has run low, so more should be loaded from the store.
    pub(super) fn runs_low(&self) -> bool {
        let table = self.table();
        let mut behind = table.overflowed.iter();
        table.waiting_in_all < WAITING
            && behind.any(|origin| table.waiting.get(origin).is_none_or(|l| !table.is_long(l)))
    }

    /// Origins to exclude from the query: enough deliveries wait here, or the breaker is open.
    pub(super) fn not_wanted(&self) -> Vec<String> {
        self.table().not_wanted()
    }

    /// Origins whose breaker is open.
    pub(super) fn open(&self) -> Vec<String> {
        self.table().destinations.open().cloned().collect()
    }

    /// Runs `ask` on the circuit breakers, under the lock.
    pub(super) fn destinations<T>(&self, ask: impl FnOnce(&mut Destinations) -> T) -> T {
        ask(&mut self.table().destinations)
    }

    pub(super) fn snapshot(&self) -> Vec<Destination> {
        self.table().destinations.snapshot()
    }

    pub(super) fn has(&self, id: DeliveryId) -> bool {
        self.table().phases.contains_key(&id)
    }

    /// Number of deliveries held, and size of the waiting payloads in bytes.
    pub(super) fn in_hand(&self) -> (usize, usize) {
        let table = self.table();
        (table.phases.len(), table.waiting_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table().phases.is_empty()
    }

    /// Drops all waiting deliveries; they stay due in the store.
    pub(super) fn forget_waiting(&self) {
        let mut table = self.table();
        table.phases.retain(|_, phase| *phase != Phase::Waiting);
        table.waiting.clear();
        (table.waiting_in_all, table.waiting_bytes) = (0, 0);
        self.count.send_replace(table.phases.len());
    }

    pub(super) async fn none_left(&self) {
        let mut count = self.count.subscribe();
        // Cannot fail: the sender is in `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Table {
    /// Number of deliveries that wait for this origin.
    fn line(&self, origin: &str) -> usize {
        self.waiting.get(origin).map_or(0, VecDeque::len)
    }

    /// Maximum number of deliveries that wait for one origin.
    fn line_limit(&self) -> usize {
        let left = (WAITING - WAITING / SHARE).saturating_sub(self.waiting_in_all);
        (left / SHARE).clamp(1, LINE)
    }

    fn is_long(&self, line: &VecDeque<Waiting>) -> bool {
        line.len() >= (self.line_limit() / 2).max(1)
    }

    fn not_wanted(&self) -> Vec<String> {
        let lines = self.waiting.iter();
        let long = lines.filter(|(_, line)| self.is_long(line));
        let open = self.destinations.open().cloned();
        long.map(|(origin, _)| origin.clone()).chain(open).collect()
    }

    /// Drops the deliveries that wait for this origin; they stay due in the store.
    fn forget_line(&mut self, origin: &str) {
        while let Some(waiting) = self.dequeue(origin) {
            self.phases.remove(&waiting.due.id);
        }
        self.overflowed.remove(origin);
    }

    /// False if the delivery is here already.
    fn enqueue(&mut self, waiting: Waiting) -> bool {
        if self.phases.contains_key(&waiting.due.id) {
            return false;
        }
        self.phases.insert(waiting.due.id, Phase::Waiting);
        self.waiting_in_all += 1;
        self.waiting_bytes += waiting.size();
        let origin = waiting.due.callback.origin.clone();
        self.waiting.entry(origin).or_default().push_back(waiting);
        true
    }

    fn dequeue(&mut self, origin: &str) -> Option<Waiting> {
        let line = self.waiting.get_mut(origin)?;
        let waiting = line.pop_front()?;
        if line.is_empty() {
            self.waiting.remove(origin);
        }
        self.waiting_in_all -= 1;
        self.waiting_bytes -= waiting.size();
        Some(waiting)
    }

    fn next_origin(&self, slots: Slots, per_origin: usize, now: Instant) -> Option<String> {
        let after = (Bound::Excluded(self.served.as_str()), Bound::Unbounded);
        let rest = self.waiting.range::<str, _>(after);
        let mut turns = rest.chain(&self.waiting).map(|(origin, _)| origin);
        let has_room = |origin: &&String| {
            let sending = self.sending.get(origin.as_str());
            let oldest = sending.and_then(|sending| sending.first());
            let age = oldest.map_or(Duration::ZERO, |oldest| {
                now.saturating_duration_since(*oldest)
            });
            let most = self.destinations.room(origin, per_origin);
            slots.permit(sending.map_or(0, SmallVec::len), age, most)
        };
        turns.find(has_room).cloned()
    }

    /// Frees the slot of an attempt that began at this time.
    fn free_slot(&mut self, origin: &str, began: Instant) {
        self.sending_in_all -= 1;
        if let Some(sending) = self.sending.get_mut(origin) {
            if let Some(place) = sending.iter().position(|other| *other == began) {
                sending.remove(place);
            }
            if sending.is_empty() {
                self.sending.remove(origin);
            }
        }
    }
}

impl Waiting {
    /// Size of the payload, in bytes.
    fn size(&self) -> usize {
        self.payload
            .as_ref()
            .map_or(0, |payload| payload.body.len())
    }
}

impl InFlightDelivery {
    /// Frees the receiver's slot for the next delivery while the outcome is written, and reports to the
    /// circuit breaker; returns the breaker's change, if any.
    pub(super) fn record_outcome(&self, report: Option<Report<'_>>) -> Option<Change> {
        let in_flight = &self.deliverer.shared.in_flight;
        let mut table = in_flight.table();
        if table.phases.insert(self.id, Phase::Settling) == Some(Phase::Sending) {
            table.free_slot(&self.origin, self.began);
        }
        let (origin, turn) = (self.origin.as_str(), self.turn);
        let change = report.and_then(|Report { sign, reason, now }| {
            table.destinations.report(origin, turn, sign, reason, now)
        });
        if let Some(Change::Opened(_)) = change {
            table.forget_line(origin);
            in_flight.count.send_replace(table.phases.len());
        }
        let others_wait = table.waiting_in_all > 0;
        drop(table);
        if others_wait {
            self.deliverer.shared.room.notify_one();
        }
        if change.is_some() {
            // The worker stores the change; the set of due deliveries has changed as well.
            self.deliverer.shared.wake.notify_one();
        }
        change
    }

    /// Marks the delivery as ended, so the worker is not woken to look for its next due time.
    pub(super) fn settled(mut self) {
        self.settled = true;
    }
}

impl Drop for InFlightDelivery {
    fn drop(&mut self) {
        let shared = &self.deliverer.shared;
        let mut table = shared.in_flight.table();
        if table.phases.remove(&self.id) == Some(Phase::Sending) {
            table.free_slot(&self.origin, self.began);
        }
        shared.in_flight.count.send_replace(table.phases.len());
        let others_wait = table.waiting_in_all > 0;
        drop(table);
        if !self.settled {
            shared.wake.notify_one();
        } else if others_wait {
            shared.room.notify_one();
        }
    }
}
