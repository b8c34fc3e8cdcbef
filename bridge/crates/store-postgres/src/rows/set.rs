//! Rows of one table that a batch works on: read before, changed in memory, written after.

use std::collections::BTreeMap;

use super::script::Script;
use super::statement::Columns;
use super::table::Table;
use forge_store::Result;
use tokio_postgres::Row;

pub(crate) struct Set<T: Table>(BTreeMap<T::Key, Slot<T>>);

struct Slot<T> {
    /// The row as it is stored.
    before: Option<T>,
    now: Option<T>,
    is_changed: bool,
}

impl<T: Table> Default for Set<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Table> Set<T> {
    /// Adds the rows of an answer.
    pub(crate) fn load(&mut self, rows: &[Row]) -> Result<()> {
        let rows = rows.iter().map(|row| T::read(&mut Columns::of(row)));
        self.add(rows.collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    /// Adds stored rows; one that is here already stays as it is.
    pub(crate) fn add(&mut self, rows: Vec<T>) {
        for row in rows {
            self.0.entry(row.key()).or_insert_with(|| Slot {
                before: Some(row.clone()),
                now: Some(row),
                is_changed: false,
            });
        }
    }

    pub(crate) fn get(&self, key: &T::Key) -> Option<&T> {
        self.0.get(key)?.now.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: &T::Key) -> Option<&mut T> {
        let slot = self.0.get_mut(key)?;
        slot.is_changed = true;
        slot.now.as_mut()
    }

    /// Adds a row, or replaces the one with its key.
    pub(crate) fn put(&mut self, row: T) {
        let slot = self.0.entry(row.key()).or_insert(Slot {
            before: None,
            now: None,
            is_changed: true,
        });
        slot.now = Some(row);
        slot.is_changed = true;
    }

    pub(crate) fn remove(&mut self, key: &T::Key) {
        if let Some(slot) = self.0.get_mut(key) {
            slot.now = None;
            slot.is_changed = true;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.values().filter_map(|slot| slot.now.as_ref())
    }

    /// The rows before and after the batch.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (Option<&T>, Option<&T>)> {
        let changed = self.0.values().filter(|slot| slot.is_changed);
        changed.map(|slot| (slot.before.as_ref(), slot.now.as_ref()))
    }

    /// Adds writes of the changes, rows in the order of their keys.
    pub(crate) fn write<'a>(&'a self, script: &mut Script<'a>) {
        let (mut new, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (key, slot) in self.0.iter().filter(|(_, slot)| slot.is_changed) {
            match (&slot.before, &slot.now) {
                (None, Some(row)) => new.push(row),
                (Some(_), Some(row)) => changed.push(row),
                (Some(_), None) => gone.push(key),
                (None, None) => {}
            }
        }
        if !new.is_empty() {
            script.insert(T::NAME, &new);
        }
        if !changed.is_empty() {
            script.update(&changed);
        }
        if !gone.is_empty() {
            script.delete::<T>(gone);
        }
    }
}
