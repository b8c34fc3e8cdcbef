//! Call ids of one instance. An id is never reused, and a stale one is harmless: it is looked up here, never
//! dereferenced.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boundary::call_id::CallId;
use crate::instance::queue::Queue;

/// Number of free slots held back: a freed slot is reused only after this many others, so that a late use of its id can
/// be distinguished from an unknown id.
const REST: usize = 64;

/// Result of a completion by the adapter.
pub(crate) enum Used {
    /// The call was open and is now completed.
    Now(Arc<Queue>),
    /// The bridge had abandoned the call, which the adapter cannot have known.
    GivenUp,
    /// Completed before, or never issued.
    Never,
}

/// All call ids of one instance.
#[derive(Default)]
pub(crate) struct CallIds(Mutex<Table>);

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
}

struct Slot {
    generation: u32,
    state: State,
}

enum State {
    Open(Arc<Queue>),
    GivenUp,
    Spent,
}

impl CallIds {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, queue: Arc<Queue>) -> CallId {
        let mut table = self.lock();
        let reusable = (table.free.len() > REST)
            .then(|| table.free.pop_front())
            .flatten();
        if let Some(slot) = reusable {
            let entry = &mut table.slots[slot as usize];
            entry.generation += 1;
            entry.state = State::Open(queue);
            return CallId::new(slot, entry.generation);
        }
        let slot = u32::try_from(table.slots.len()).expect("each slot stands for a call in memory");
        table.slots.push(Slot {
            generation: 1,
            state: State::Open(queue),
        });
        CallId::new(slot, 1)
    }

    /// The queue of an open call.
    pub(crate) fn find(&self, call_id: CallId) -> Option<Arc<Queue>> {
        let table = self.lock();
        let slot = table.slots.get(call_id.slot())?;
        match &slot.state {
            State::Open(queue) if slot.generation == call_id.generation() => {
                Some(Arc::clone(queue))
            }
            State::Open(_) | State::GivenUp | State::Spent => None,
        }
    }

    /// Completes a call for the adapter; `Now` is returned once only.
    pub(crate) fn spend(&self, call_id: CallId) -> Used {
        let mut table = self.lock();
        let Some(slot) = table
            .slots
            .get_mut(call_id.slot())
            .filter(|slot| slot.generation == call_id.generation())
        else {
            return Used::Never;
        };
        match std::mem::replace(&mut slot.state, State::Spent) {
            State::Open(queue) => {
                table.rest(call_id);
                Used::Now(queue)
            }
            State::GivenUp => Used::GivenUp,
            State::Spent => Used::Never,
        }
    }

    /// Abandons a call for the bridge; one late answer is then no breach.
    pub(crate) fn give_up(&self, call_id: CallId) {
        let mut table = self.lock();
        let open = table.slots.get_mut(call_id.slot()).filter(|slot| {
            slot.generation == call_id.generation() && matches!(slot.state, State::Open(_))
        });
        if let Some(slot) = open {
            slot.state = State::GivenUp;
            table.rest(call_id);
        }
    }

    pub(crate) fn is_given_up(&self, call_id: CallId) -> bool {
        let table = self.lock();
        let slot = table.slots.get(call_id.slot());
        slot.is_some_and(|slot| {
            slot.generation == call_id.generation() && matches!(slot.state, State::GivenUp)
        })
    }

    /// Every open call.
    pub(crate) fn all(&self) -> Vec<(CallId, Arc<Queue>)> {
        let table = self.lock();
        let slots = (0u32..).zip(&table.slots);
        slots
            .filter_map(|(index, slot)| match &slot.state {
                State::Open(queue) => {
                    Some((CallId::new(index, slot.generation), Arc::clone(queue)))
                }
                State::GivenUp | State::Spent => None,
            })
            .collect()
    }
}

impl Table {
    fn rest(&mut self, call_id: CallId) {
        // A slot whose generations are exhausted is never reused.
        if call_id.generation() < u32::MAX {
            self.free.push_back(call_id.slot() as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::instance::queue::Bounds;

    fn queue() -> Arc<Queue> {
        Arc::new(Queue::new(Bounds {
            queued: 1,
            event: 1,
            total: None,
        }))
    }

    #[test]
    fn a_call_id_is_spent_once() {
        let call_ids = CallIds::default();
        let call_id = call_ids.open(queue());
        assert!(call_ids.find(call_id).is_some());
        assert!(matches!(call_ids.spend(call_id), Used::Now(_)));
        assert!(matches!(call_ids.spend(call_id), Used::Never));
        assert!(call_ids.find(call_id).is_none());
    }

    #[test]
    fn one_late_answer_to_a_call_given_up_is_no_breach() {
        let call_ids = CallIds::default();
        let call_id = call_ids.open(queue());
        call_ids.give_up(call_id);
        assert!(matches!(call_ids.spend(call_id), Used::GivenUp));
        assert!(matches!(call_ids.spend(call_id), Used::Never));
    }

    #[test]
    fn numbers_are_never_issued_twice_nor_zero_and_slots_are_reused() {
        let call_ids = CallIds::default();
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let call_id = call_ids.open(queue());
            assert_ne!(call_id.0, 0);
            assert!(seen.insert(call_id));
            call_ids.spend(call_id);
        }
        assert!(call_ids.lock().slots.len() <= REST + 2);
    }

    #[test]
    fn what_was_never_issued_is_unknown() {
        let call_ids = CallIds::default();
        call_ids.open(queue());
        for number in [0, 1, 7 << 32, u64::MAX] {
            assert!(matches!(call_ids.spend(CallId(number)), Used::Never));
        }
        assert_eq!(call_ids.all().len(), 1);
    }
}
