//! Which deliveries this process has in hand: what waits for room, what is being sent, what is being
//! settled. Says what may be taken on, and that nothing is taken twice. Bounded; the store's rows are the
//! truth, and what does not fit here stays there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use tokio::sync::watch;

use forge_base::id::DeliveryId;
use forge_store::destination::DueQuery;
use forge_store::record::DueDelivery;

use super::breaker::{Change, Health};
use super::destinations::{Destination, Destinations};
use super::send::CallbackPayload;
use super::{Config, Deliverer};

/// Attempts whose outcome is being written; above it nothing new is begun.
const SETTLING: usize = 256;
/// What may wait here for one origin, as long as there is room for many; below half of it the store is
/// asked for more.
const LINE: usize = 64;
/// An origin takes at most this part of the room that is left, so that however many do not move, there is
/// some for the next.
const SHARE: usize = 4;
/// What may wait here in all.
const WAITING: usize = 1024;
/// What the payloads that wait may hold, in bytes.
const WAITING_BYTES: usize = 8 << 20;

pub(super) struct InFlight {
    table: Mutex<Table>,
    /// How many there are in all.
    count: watch::Sender<usize>,
    concurrency: usize,
    per_origin: usize,
}

struct Table {
    phases: HashMap<DeliveryId, Phase>,
    /// By origin; only those with at least one.
    sending: HashMap<String, usize>,
    sending_in_all: usize,
    /// By origin; only those with at least one.
    waiting: BTreeMap<String, VecDeque<Waiting>>,
    waiting_in_all: usize,
    waiting_bytes: usize,
    /// Origins of which the store may hold more than waits here.
    overflowed: BTreeSet<String>,
    /// The origin that was served last.
    served: String,
    destinations: Destinations,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Sending,
    /// The receiver's slot is free again.
    Settling,
}

/// A delivery that is due and has no room yet.
pub(super) struct Waiting {
    pub(super) due: DueDelivery,
    /// What it sends, when that need not be read from the store.
    pub(super) payload: Option<CallbackPayload>,
}

/// One delivery that is under way; its end is the end of this value, however that comes.
pub(super) struct InFlightDelivery {
    deliverer: Deliverer,
    id: DeliveryId,
    origin: String,
    /// Of the origin's breaker when this began.
    turn: u64,
    settled: bool,
}

/// What an attempt tells of its receiver.
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

    /// What to ask the store for; `None` while no more fits here.
    pub(super) fn query(&self, now: Timestamp) -> Option<DueQuery> {
        let mut table = self.table();
        table.destinations.pass(now);
        table.destinations.forget_idle(now);
        let limit = WAITING.saturating_sub(table.waiting_in_all);
        if limit == 0 {
            return None;
        }
        let exclude = table.not_wanted();
        // Of the others the answer will tell.
        table.overflowed.retain(|origin| exclude.contains(origin));
        Some(DueQuery {
            now,
            exclude,
            per_origin: table.line_limit(),
            limit,
            in_flight: table.phases.keys().copied().collect(),
        })
    }

    /// Takes the store's answer to a question for so many of each origin. How many of it are new here.
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
                // It opened while the store was asked.
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

    /// Takes on what has just become due, unless others wait for its origin in the store.
    pub(super) fn offer(&self, due: DueDelivery, payload: CallbackPayload) {
        let mut table = self.table();
        let payload = Some(payload);
        let waiting = Waiting { due, payload };
        let origin = &waiting.due.callback.origin;
        if table.destinations.is_open(origin) {
            // It is found in the store when the receiver is tried again.
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

    /// The next one that has room, each origin in its turn.
    pub(super) fn next(&self, deliverer: &Deliverer) -> Option<(Waiting, InFlightDelivery)> {
        let mut table = self.table();
        table.destinations.pass(deliverer.shared.setup.clock.now());
        let settling = table.phases.len() - table.sending_in_all - table.waiting_in_all;
        if table.sending_in_all >= self.concurrency || settling >= SETTLING {
            return None;
        }
        let origin = table.next_origin(self.per_origin)?;
        let waiting = table.dequeue(&origin)?;
        let id = waiting.due.id;
        table.phases.insert(id, Phase::Sending);
        *table.sending.entry(origin.clone()).or_insert(0) += 1;
        table.sending_in_all += 1;
        origin.clone_into(&mut table.served);
        let flight = InFlightDelivery {
            deliverer: deliverer.clone(),
            id,
            turn: table.destinations.turn(&origin),
            origin,
            settled: false,
        };
        Some((waiting, flight))
    }

    /// Whether the store may hold more for an origin that has little left here.
    pub(super) fn runs_low(&self) -> bool {
        let table = self.table();
        let mut behind = table.overflowed.iter();
        table.waiting_in_all < WAITING
            && behind.any(|origin| table.waiting.get(origin).is_none_or(|l| !table.is_long(l)))
    }

    /// Origins of which enough waits here, and those that are not called.
    pub(super) fn not_wanted(&self) -> Vec<String> {
        self.table().not_wanted()
    }

    /// Origins that are not called.
    pub(super) fn open(&self) -> Vec<String> {
        self.table().destinations.open().cloned().collect()
    }

    /// Asks or changes what is known of the receivers.
    pub(super) fn destinations<T>(&self, ask: impl FnOnce(&mut Destinations) -> T) -> T {
        ask(&mut self.table().destinations)
    }

    pub(super) fn snapshot(&self) -> Vec<Destination> {
        self.table().destinations.snapshot()
    }

    pub(super) fn has(&self, id: DeliveryId) -> bool {
        self.table().phases.contains_key(&id)
    }

    /// How many there are, and the bytes of those that wait.
    pub(super) fn in_hand(&self) -> (usize, usize) {
        let table = self.table();
        (table.phases.len(), table.waiting_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table().phases.is_empty()
    }

    /// Leaves what waits to the store.
    pub(super) fn forget_waiting(&self) {
        let mut table = self.table();
        table.phases.retain(|_, phase| *phase != Phase::Waiting);
        table.waiting.clear();
        (table.waiting_in_all, table.waiting_bytes) = (0, 0);
        self.count.send_replace(table.phases.len());
    }

    pub(super) async fn none_left(&self) {
        let mut count = self.count.subscribe();
        // The sender is in `self`, so it cannot go away meanwhile.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Table {
    /// How many wait for this origin.
    fn line(&self, origin: &str) -> usize {
        self.waiting.get(origin).map_or(0, VecDeque::len)
    }

    /// How many may wait for one origin.
    fn line_limit(&self) -> usize {
        let left = WAITING.saturating_sub(self.waiting_in_all);
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

    /// Leaves to the store what waits for this origin.
    fn forget_line(&mut self, origin: &str) {
        while let Some(waiting) = self.dequeue(origin) {
            self.phases.remove(&waiting.due.id);
        }
        self.overflowed.remove(origin);
    }

    /// False when it is here already.
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

    fn next_origin(&self, per_origin: usize) -> Option<String> {
        let after = (Bound::Excluded(self.served.as_str()), Bound::Unbounded);
        let rest = self.waiting.range::<str, _>(after);
        let mut turns = rest.chain(&self.waiting).map(|(origin, _)| origin);
        let has_room = |origin: &&String| {
            let sending = self.sending.get(origin.as_str()).copied().unwrap_or(0);
            sending < self.destinations.room(origin, per_origin)
        };
        turns.find(has_room).cloned()
    }

    fn free_slot(&mut self, origin: &str) {
        self.sending_in_all -= 1;
        if let Some(sending) = self.sending.get_mut(origin) {
            *sending -= 1;
            if *sending == 0 {
                self.sending.remove(origin);
            }
        }
    }
}

impl Waiting {
    /// In bytes.
    fn size(&self) -> usize {
        self.payload
            .as_ref()
            .map_or(0, |payload| payload.body.len())
    }
}

impl InFlightDelivery {
    /// The receiver is done; its slot goes to the next while the outcome is written. Says whether the
    /// report changed the receiver's breaker.
    pub(super) fn record_outcome(&self, report: Option<Report<'_>>) -> Option<Change> {
        let in_flight = &self.deliverer.shared.in_flight;
        let mut table = in_flight.table();
        if table.phases.insert(self.id, Phase::Settling) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
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
            // It is to be stored, and what is due has become less or more.
            self.deliverer.shared.wake.notify_one();
        }
        change
    }

    /// It has ended for good: the store need not be asked when it is due again.
    pub(super) fn settled(mut self) {
        self.settled = true;
    }
}

impl Drop for InFlightDelivery {
    fn drop(&mut self) {
        let shared = &self.deliverer.shared;
        let mut table = shared.in_flight.table();
        if table.phases.remove(&self.id) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
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
