//! Sealed values of the model.

use super::state::State;
use crate::record::Page;
use crate::sealed::{Place, Resealed, Sealed};

impl State {
    pub(super) fn sealed_page(&self, after: u64, limit: usize) -> Page<Sealed> {
        let named = self.sealed.iter().map(|(name, bytes)| Sealed {
            place: Place::Named(name.clone()),
            bytes: bytes.clone(),
        });
        let mut items: Vec<_> = named.filter(|_| after == 0).collect();
        let rows = self.dispatches.range(after + 1..).take(limit);
        let (mut looked_at, mut last) = (0, None);
        for (seq, kept) in rows {
            (looked_at, last) = (looked_at + 1, Some(*seq));
            items.extend(kept.secrets.clone().map(|bytes| Sealed {
                place: Place::Dispatch(kept.record.id),
                bytes,
            }));
        }
        let next = last.filter(|_| looked_at >= limit);
        Page { items, next }
    }

    pub(super) fn reseal(&mut self, changes: Vec<Resealed>) -> u64 {
        let mut changed = 0;
        for Resealed { place, from, to } in changes {
            let value = match &place {
                Place::Named(name) => self.sealed.get_mut(name),
                Place::Dispatch(id) => {
                    let mut all = self.dispatches.values_mut();
                    let kept = all.find(|kept| kept.record.id == *id);
                    kept.and_then(|kept| kept.secrets.as_mut())
                }
            };
            if let Some(value) = value.filter(|value| **value == from) {
                *value = to;
                changed += 1;
            }
        }
        changed
    }
}
