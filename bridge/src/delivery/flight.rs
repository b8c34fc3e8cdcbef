//! Which deliveries this process has in hand: what waits for room, what is being sent, what is being
//! settled. Says what may be taken on, and that nothing is taken twice. Bounded; the store's rows are the
//! truth, and what does not fit here stays there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::id::DeliveryId;
use crate::store::record::{DeliveryPayload, DueDelivery, DueQuery};

use super::Deliverer;

/// Attempts whose outcome is being written; above it nothing new is begun.
const SETTLING: usize = 256;
/// What may wait here for one origin; below half of it the store is asked for more.
const LINE: usize = 64;
/// What may wait here in all.
const WAITING: usize = 1024;
/// What the payloads that wait may hold, in bytes.
const WAITING_BYTES: usize = 8 << 20;

pub(super) struct Flights {
    table: Mutex<Table>,
    /// How many there are in all.
    count: watch::Sender<usize>,
    concurrency: usize,
    per_origin: usize,
}

#[derive(Default)]
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
    behind: BTreeSet<String>,
    /// The origin that was served last.
    served: String,
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
    pub(super) payload: Option<DeliveryPayload>,
}

/// One delivery that is under way; its end is the end of this value, however that comes.
pub(super) struct Flight {
    deliverer: Deliverer,
    id: DeliveryId,
    origin: String,
    settled: bool,
}

impl Flights {
    pub(super) fn new(concurrency: NonZeroUsize, per_origin: NonZeroUsize) -> Self {
        Self {
            table: Mutex::default(),
            count: watch::Sender::new(0),
            concurrency: concurrency.get(),
            per_origin: per_origin.get(),
        }
    }

    /// What to ask the store for; `None` while no more fits here.
    pub(super) fn query(&self, now: Timestamp) -> Option<DueQuery> {
        let mut table = self.table();
        let limit = WAITING.saturating_sub(table.waiting_in_all);
        if limit == 0 {
            return None;
        }
        let exclude = table.long_lines();
        // Of the others the answer will tell.
        table.behind.retain(|origin| exclude.contains(origin));
        Some(DueQuery {
            now,
            exclude,
            per_origin: LINE,
            limit,
            in_flight: table.phases.keys().copied().collect(),
        })
    }

    /// Takes the store's answer. How many of it are new here.
    pub(super) fn add(&self, found: Vec<DueDelivery>) -> usize {
        let mut table = self.table();
        let mut per_origin: HashMap<String, usize> = HashMap::new();
        let mut new = 0;
        for due in found {
            let origin = &due.callback.origin;
            let count = per_origin.entry(origin.clone()).or_insert(0);
            *count += 1;
            if *count == LINE {
                table.behind.insert(origin.clone());
            }
            let payload = None;
            new += usize::from(table.enqueue(Waiting { due, payload }));
        }
        self.count.send_replace(table.phases.len());
        new
    }

    /// Takes on what has just become due, unless others wait for its origin in the store.
    pub(super) fn offer(&self, due: DueDelivery, payload: DeliveryPayload) {
        let mut table = self.table();
        let origin = &due.callback.origin;
        let line = table.waiting.get(origin).map_or(0, VecDeque::len);
        let full = line >= LINE
            || table.waiting_in_all >= WAITING
            || table.waiting_bytes + size(&payload) > WAITING_BYTES;
        if full || table.behind.contains(origin) {
            table.behind.insert(due.callback.origin);
            return;
        }
        let payload = Some(payload);
        table.enqueue(Waiting { due, payload });
        self.count.send_replace(table.phases.len());
    }

    /// The next one that has room, each origin in its turn.
    pub(super) fn next(&self, deliverer: &Deliverer) -> Option<(Waiting, Flight)> {
        let mut table = self.table();
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
        let flight = Flight {
            deliverer: deliverer.clone(),
            id,
            origin,
            settled: false,
        };
        Some((waiting, flight))
    }

    /// Whether the store may hold more for an origin that has little left here.
    pub(super) fn runs_low(&self) -> bool {
        let table = self.table();
        let mut behind = table.behind.iter();
        table.waiting_in_all < WAITING
            && behind.any(|origin| table.waiting.get(origin).is_none_or(|l| l.len() < LINE / 2))
    }

    /// Origins of which enough waits here.
    pub(super) fn long_lines(&self) -> Vec<String> {
        self.table().long_lines()
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
    fn long_lines(&self) -> Vec<String> {
        let lines = self.waiting.iter();
        lines
            .filter(|(_, line)| line.len() >= LINE / 2)
            .map(|(origin, _)| origin.clone())
            .collect()
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
            let sending = self.sending.get(origin.as_str());
            sending.is_none_or(|sending| *sending < per_origin)
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

/// In bytes.
fn size(payload: &DeliveryPayload) -> usize {
    payload.body.len() + payload.request.get().len()
}

impl Waiting {
    fn size(&self) -> usize {
        self.payload.as_ref().map_or(0, size)
    }
}

impl Flight {
    /// The receiver is done; its slot goes to the next while the outcome is written.
    pub(super) fn landed(&self) {
        let mut table = self.deliverer.shared.flights.table();
        if table.phases.insert(self.id, Phase::Settling) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
        }
        let others_wait = table.waiting_in_all > 0;
        drop(table);
        if others_wait {
            self.deliverer.shared.room.notify_one();
        }
    }

    /// It has ended for good: the store need not be asked when it is due again.
    pub(super) fn settled(mut self) {
        self.settled = true;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let shared = &self.deliverer.shared;
        let mut table = shared.flights.table();
        if table.phases.remove(&self.id) == Some(Phase::Sending) {
            table.free_slot(&self.origin);
        }
        shared.flights.count.send_replace(table.phases.len());
        let others_wait = table.waiting_in_all > 0;
        drop(table);
        if !self.settled {
            shared.wake.notify_one();
        } else if others_wait {
            shared.room.notify_one();
        }
    }
}
