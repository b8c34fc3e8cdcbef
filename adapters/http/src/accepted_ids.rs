//! Webhook ids of accepted callbacks, so that a message that is sent again is not taken for another one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

/// Number of ids that are remembered, about 2 MB. A signature is valid for five minutes, in which one listener accepts
/// fewer.
const REMEMBERED: usize = 65_536;

/// Ids, each with the execution that it was accepted for. Above [`REMEMBERED`] the oldest is forgotten.
#[derive(Default)]
pub(crate) struct AcceptedIds {
    /// Keyed, so that no sender can choose ids that collide.
    hasher: RandomState,
    /// Hash of the execution's key by hash of the id.
    executions: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    New,
    /// Accepted before, for the same execution.
    Repeated,
    /// Accepted before, for another execution.
    OfAnother,
}

impl AcceptedIds {
    /// Records an id that is about to be accepted for an execution.
    pub(crate) fn admit(&mut self, id: &[u8], execution: &str) -> Admission {
        let id = self.hasher.hash_one(id);
        let execution = self.hasher.hash_one(execution);
        match self.executions.get(&id) {
            Some(known) if *known == execution => return Admission::Repeated,
            Some(_) => return Admission::OfAnother,
            None => {}
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.executions.remove(&oldest);
        }
        self.executions.insert(id, execution);
        self.order.push_back(id);
        Admission::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_once_and_the_oldest_are_forgotten() {
        let mut ids = AcceptedIds::default();
        assert_eq!(ids.admit(b"a", "one"), Admission::New);
        assert_eq!(ids.admit(b"a", "one"), Admission::Repeated);
        assert_eq!(ids.admit(b"a", "two"), Admission::OfAnother);
        for n in 0..REMEMBERED {
            assert_eq!(ids.admit(&n.to_be_bytes(), "two"), Admission::New);
        }
        assert_eq!(ids.executions.len(), REMEMBERED);
        assert_eq!(ids.admit(b"a", "one"), Admission::New);
    }
}
